"""What a pipeline, or a script, encodes of an image has the floor of its encoder's rounding."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import parity
from parity.compare.diff import diff
from parity.golden import Golden
from tests.recorder import pipelines, script


def made(make: Callable[[], pipelines.Made]) -> pipelines.Made:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe, call = make()
    pipe.set_progress_bar_config(disable=True)
    return pipe, call


def halved(module: torch.nn.Module) -> None:
    """Convolutions that add their channels in two halves: another right implementation."""
    for conv in module.modules():
        if isinstance(conv, torch.nn.modules.conv._ConvNd) and conv.groups == 1 and conv.in_channels > 1:
            conv._conv_forward = _Halves(conv._conv_forward)


class _Halves:
    def __init__(self, own: Any) -> None:
        self.own = own

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: Any, *rest: Any) -> torch.Tensor:
        half = x.shape[1] // 2
        part = self.own(x[:, :half], weight[:, :half], None, *rest)
        return part + self.own(x[:, half:], weight[:, half:], bias, *rest)


@pytest.mark.parametrize("make", [pipelines.cogvideox_image, pipelines.flux_control])
def test_an_encoder_that_rounds_otherwise_passes_and_a_wrong_one_fails(
    make: Callable[[], pipelines.Made], tmp_path: Path
) -> None:
    pipe, call = made(make)
    plain = call()
    with parity.record(tmp_path / "gpu", pipe):
        seen = call()
    assert np.array_equal(plain, seen), "recording changes nothing, nor what is drawn"
    step = Golden.open(tmp_path / "gpu").read_step(0)
    given = next(r for r in step.records if r.key.site == ":in.hidden_states")
    assert given.moments is not None
    assert step.floors[given.key].l2 / given.moments.l2 > 4e-7, "more than its last bit, which is 2.4e-7"
    assert not {"encode", "prepare_latents"} & (vars(pipe.vae).keys() | vars(pipe).keys())
    halved(pipe.vae.encoder)
    with parity.record(tmp_path / "tpu", pipe, floors=()):
        call()
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == "pass", found.reason
    first = next(d for d in found.sites if d.key.site == ":in.hidden_states")
    assert first.distance.rel_l2 > 0, "the encoder did round otherwise"
    last = pipe.vae.encoder.conv_out
    with torch.no_grad():
        getattr(last, "conv", last).weight.mul_(1.02)
    with parity.record(tmp_path / "wrong", pipe, floors=()):
        call()
    assert diff(tmp_path / "gpu", tmp_path / "wrong").verdict == "fail"


class Predictor(torch.nn.Module):
    """Of latents and an image's beside them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(hidden_states))


@pytest.mark.parametrize("way", ["sample", "mode"])
def test_a_script_that_encodes_by_hand_has_it_too(way: str, tmp_path: Path) -> None:
    vae, model = made(pipelines.flux)[0].vae.to(torch.bfloat16), Predictor().to(torch.bfloat16)
    scheduler = pipelines.diffusers.FlowMatchEulerDiscreteScheduler()

    def generate() -> torch.Tensor:
        torch.manual_seed(3)
        posterior = vae.encode(pipelines.drawn(1, 3, 16, 16).bfloat16(), return_dict=False)[0]
        image = (posterior.sample() if way == "sample" else posterior.mode()) * vae.config.scaling_factor
        latents = pipelines.drawn(1, 4, 8, 8).bfloat16()
        scheduler.set_timesteps(2)
        for t in scheduler.timesteps:
            out = model(torch.cat([latents, image], 1), t[None])
            latents = scheduler.step(out, t, latents, return_dict=False)[0]
        return torch.cat([latents.flatten(), torch.randn(4)])

    with torch.no_grad():
        plain = generate()
        with parity.record(tmp_path / "gpu", transformer=model, scheduler=scheduler, vae=vae):
            seen = generate()
        assert torch.equal(plain, seen)
        halved(vae.encoder)
        with parity.record(tmp_path / "tpu", transformer=model, scheduler=scheduler, vae=vae, floors=()):
            generate()
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == "pass", found.reason
    first = next(d for d in found.sites if d.key.site == ":in.hidden_states")
    assert first.distance.rel_l2 > 0


def test_a_controlnet_that_rounds_otherwise_passes_and_a_wrong_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, call = made(pipelines.flux_controlnet)
    plain = call()
    with parity.record(tmp_path / "gpu", pipe):
        seen = call()
    assert np.array_equal(plain, seen)
    golden = Golden.open(tmp_path / "gpu")
    relative = []
    for number in (0, 1):
        step = golden.read_step(number)
        record = next(r for r in step.records if r.key.site == ":in.controlnet_block_samples.0")
        assert record.moments is not None
        relative.append(step.floors[record.key].l2 / record.moments.l2)
    assert relative[0] > 3e-7, "more than its last bit"
    assert relative[1] > 3e-7
    scaled = pipe.controlnet.transformer_blocks[0].register_forward_hook(lambda m, a, out: (out[0], out[1] * 1.001))
    with parity.record(tmp_path / "wrong", pipe, floors=()):
        call()
    scaled.remove()
    assert diff(tmp_path / "gpu", tmp_path / "wrong").verdict == "fail"
    monkeypatch.setattr(torch.nn.functional, "linear", script.split_linear)
    with parity.record(tmp_path / "tpu", pipe, floors=()):
        call()
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == "pass", found.reason


def test_an_encoder_that_cannot_be_repeated_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, call = made(pipelines.cogvideox_image)
    own, calls = pipe.vae.encoder.forward, []

    def once(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("no memory")
        return own(*args, **kwargs)

    monkeypatch.setattr(pipe.vae.encoder, "forward", once)
    with parity.record(tmp_path / "gpu", pipe):
        call()
    assert "the rounding of prepare_latents is not known (RuntimeError: no memory" in capsys.readouterr().err
    assert Golden.open(tmp_path / "gpu").complete
