"""What a script's numbers round by has floors: an innocent variant of each script passes, and a fault in it fails."""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")
import diffusers
from transformers import T5Config, T5EncoderModel

from parity.compare.diff import diff
from parity.compare.result import Result
from parity.golden import Golden
from tests.support.scripts import (
    cogvideox_image,
    drawn,
    flux_controlnet,
    flux_vae,
    load,
    recorded,
    referenced,
    split_linear,
    tame,
    zimage,
)

Context = Callable[[], AbstractContextManager[object]]


@dataclass
class Script:
    """A script, and a variant of it that is wrong.

    Attributes:
        run: it. fault: what is wrong in the variant. pipe, parts: what is recorded.
        site: where the innocent variant rounds otherwise, and the fault shows.
    """

    run: Callable[[], Any]
    fault: Context
    pipe: tuple[Any, ...] = ()
    parts: dict[str, Any] = field(default_factory=dict)
    site: str = "loop:latents.after"
    innocent: Context = lambda: split()


@contextmanager
def split() -> Iterator[None]:
    """The sums of linear layers and of convolutions in two halves: another right implementation."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch("torch.nn.functional.linear", split_linear))
        for kind in (torch.nn.Conv2d, torch.nn.Conv3d):
            stack.enter_context(mock.patch.object(kind, "_conv_forward", _halved(kind._conv_forward)))
        yield


def _halved(whole: Any) -> Any:
    def forward(self: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, *rest: Any) -> torch.Tensor:
        half = x.shape[1] // 2
        if self.groups > 1 or not half:
            return whole(self, x, weight, bias, *rest)
        part = whole(self, x[:, :half], weight[:, :half].contiguous(), None, *rest)
        return part + whole(self, x[:, half:], weight[:, half:].contiguous(), bias, *rest)

    return forward


@contextmanager
def scaled(module: torch.nn.Module, by: float, part: int = 0) -> Iterator[None]:
    """A module with an output that is wrong, or one of several."""

    def hook(_: Any, args: Any, out: Any) -> Any:
        return out * by if torch.is_tensor(out) else tuple(x * by if i == part else x for i, x in enumerate(out))

    handle = module.register_forward_hook(hook)
    yield
    handle.remove()


class Net(torch.nn.Module):
    """A transformer of tokens [B, rows, channels]."""

    def __init__(self, given: int = 16, out: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.out = torch.nn.Linear(given, 64), torch.nn.Linear(64, out)

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor, text: Any = 0.0) -> torch.Tensor:
        return self.out(torch.sin(4 * self.inner(hidden_states) + text)) * (1 + timestep / 1000)


def loop(scheduler: Any, latents: torch.Tensor, predict: Any, **step: Any) -> torch.Tensor:
    """Four steps; `predict(latents, t)` gives the guided prediction."""
    scheduler.set_timesteps(4)
    for t in scheduler.timesteps:
        latents = scheduler.step(predict(latents, t), t, latents, return_dict=False, **step)[0]
    return latents


def draws(own: bool) -> Script:
    """A scheduler that draws, of the script's generator or of torch's own."""
    net, scheduler = Net(), diffusers.FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)
    option = {"seed": 3}

    def run() -> torch.Tensor:
        torch.manual_seed(option["seed"])
        step = {} if own else {"generator": torch.Generator().manual_seed(option["seed"])}
        return loop(scheduler, drawn(1, 32, 16), net, **step)

    return Script(run, lambda: mock.patch.dict(option, seed=4), parts={"transformer": net, "scheduler": scheduler})


def memory(kind: str) -> Script:
    """A scheduler that remembers earlier predictions, or latents."""
    net, scheduler = Net(), getattr(diffusers, kind)()

    def run() -> torch.Tensor:
        def predict(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return net(scheduler.scale_model_input(x, t), t)

        return loop(scheduler, drawn(1, 32, 16) * scheduler.init_noise_sigma, predict)

    step = scheduler.step
    wrong = lambda *args, **given: (step(*args, **given)[0] * 1.0005,)  # noqa: E731
    fault = functools.partial(mock.patch.object, scheduler, "step", wrong)
    return Script(run, fault, parts={"transformer": net, "scheduler": scheduler})


def guided(channels: int, scale: float) -> Script:
    """Guidance that keeps a token's size (QwenImage), or of a part of the channels (PixArt: a variance is left)."""
    net, scheduler = Net(out=channels), diffusers.FlowMatchEulerDiscreteScheduler()
    option = {"scale": scale}

    def predict(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        c, u = (net(x, t, drawn(64, seed=seed)) for seed in (1, 2))
        both = u + option["scale"] * (c - u)
        return both[..., :16] if channels > 16 else both * (c.norm(dim=-1) / both.norm(dim=-1))[..., None]

    run = functools.partial(loop, scheduler, drawn(1, 32, 16), predict)
    fault = functools.partial(mock.patch.dict, option, scale=scale * 1.002)
    return Script(run, fault, parts={"transformer": net, "scheduler": scheduler}, site="loop:noise_pred")


def encoded_by_hand() -> Script:
    """Latents of an image beside the noise, drawn of what the script's VAE gave."""
    net, vae = Net(given=8).bfloat16(), tame(flux_vae()).bfloat16()
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()

    def run() -> torch.Tensor:
        torch.manual_seed(3)
        image = vae.encode(drawn(1, 3, 16, 16).bfloat16()).latent_dist.sample() * vae.config.scaling_factor
        tokens = image.flatten(2).mT

        def predict(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return net(torch.cat([x, tokens], 2), t)[..., :4]

        return loop(scheduler, drawn(1, 64, 4).bfloat16(), predict)

    parts = {"transformer": net, "scheduler": scheduler, "vae": vae}
    return Script(run, lambda: scaled(vae.encoder, 1.2), parts=parts, site=":in.hidden_states")


def texts() -> Script:
    """Text of an encoder in bfloat16 that the script's own pipeline has."""
    torch.manual_seed(0)
    config = T5Config(vocab_size=64, d_model=64, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    encoder, net = tame(T5EncoderModel(config)).bfloat16(), Net().bfloat16()

    class Pipe:
        def __init__(self) -> None:
            self.transformer, self.text_encoder = net, encoder
            self.scheduler = diffusers.FlowMatchEulerDiscreteScheduler()

        def encode_prompt(self, ids: torch.Tensor) -> torch.Tensor:
            return self.text_encoder(ids)[0]

    pipe = Pipe()

    def run() -> torch.Tensor:
        text = pipe.encode_prompt(torch.arange(32)[None])
        return loop(pipe.scheduler, drawn(1, 32, 16).bfloat16(), lambda x, t: net(x, t, text))

    return Script(run, lambda: scaled(encoder.encoder.final_layer_norm, 1.2), (pipe,), site=":in.text")


def image() -> Script:
    """Latents of an image that a pipeline's VAE encodes."""
    pipe, call = cogvideox_image()
    return Script(call, lambda: scaled(pipe.vae.encoder.conv_out.conv, 1.02), (pipe,), site=":in.hidden_states")


def controlnet() -> Script:
    """What another model gives the transformer in each step."""
    pipe, call = flux_controlnet()
    site = ":in.controlnet_block_samples.0"
    return Script(call, lambda: scaled(pipe.controlnet.transformer_blocks[0], 1.001, 1), (pipe,), site=site)


def own_loop(what: str = "", dtype: torch.dtype = torch.float32, steps: int = 6) -> Script:
    """A loop of one's own, with what loops do between a transformer's calls."""
    parts = load(dtype)
    parts.vae.to(dtype)

    def run() -> torch.Tensor:
        x, second, kept = drawn(1, 3, 4, 8, 8, seed=5).to(dtype), drawn(1, 3, 4, 8, 8, seed=6).to(dtype), 0.0
        parts.scheduler.set_timesteps(steps)
        prompts = torch.cat([parts.negative, parts.embeds])
        for t in parts.scheduler.timesteps:
            given = torch.cat([x + 0.1 * second if what == "second" else x] * 2)
            out = parts.transformer(given, encoder_hidden_states=prompts, timestep=t.expand(2)).sample
            uncond, cond = out.chunk(2)
            apart = cond - uncond + (0.5 * kept if what == "momentum" else 0.0)
            if what == "momentum":
                kept, apart = apart, apart * (15 / apart.norm()).clamp(max=1)
            guidance = uncond + 6 * apart + (0.1 * kept if what == "residual" else 0.0)
            kept = guidance if what == "residual" else kept
            x = parts.scheduler.step(guidance, t, x, return_dict=False)[0]
            if what == "second":
                second = second - 0.1 * guidance  # latents that the scheduler never sees
            if what == "filter":
                x = torch.fft.irfft(torch.fft.rfft(x.float()) * 1.01, n=x.shape[-1]).to(dtype)
        return parts.vae.decode(x.permute(0, 2, 1, 3, 4)).sample

    values = parts.transformer.transformer_blocks[0].attn1.to_v
    by = 1.001 if dtype is torch.float32 else 1.2
    fault, site = lambda: scaled(values, by), "transformer_blocks.0.attn1.attention:in.value"
    return Script(run, fault, parts=parts.named, site=site)


def lists() -> Script:
    """A transformer whose forward takes and returns lists, behind its own pipeline."""
    pipe, call = zimage()
    fault = functools.partial(scaled, pipe.transformer.layers[1].attention.to_out[0], 1.001)
    return Script(call, fault, (pipe,), site="layers.1.attention:out")


def coordinates() -> Script:
    """Coordinates times frequencies up to 10^4: an ulp of what both sides hold would be a phase of 1e-3 (LTX-2)."""
    model = tame(
        diffusers.LTX2VideoTransformer3DModel(
            in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32,
            audio_in_channels=8, audio_out_channels=8, audio_num_attention_heads=2, audio_attention_head_dim=8,
            audio_cross_attention_dim=16, num_layers=2, caption_channels=32,
        )
    )  # fmt: skip
    scheduler, size = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0), {"height": 4, "width": 4}

    def run() -> torch.Tensor:
        sound = drawn(1, 6, 8, seed=4)
        texts = drawn(1, 8, 32), drawn(1, 8, 32, seed=2)
        places = model.rope.prepare_video_coords(1, 2, 4, 4, sound.device, fps=24.0)

        def predict(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return model(
                x, sound, *texts, t[None], num_frames=2, **size, audio_num_frames=6, video_coords=places,
                audio_coords=model.audio_rope.prepare_audio_coords(1, 6, sound.device), return_dict=False,
            )[0]  # fmt: skip

        return loop(scheduler, drawn(1, 32, 8, seed=3), predict)

    fault = functools.partial(scaled, model.transformer_blocks[1].attn1.to_out[0], 1.02)
    parts = {"transformer": model, "scheduler": scheduler}
    return Script(run, fault, parts=parts, site="transformer_blocks.1.attn2.attention:in.query")


def schedule() -> Script:
    """Fifty steps from 1 to 0, as float64 rounds them, or as float32 adds them up."""
    option: dict[str, Any] = {"sigmas": torch.linspace(1, 0, 51, dtype=torch.float64).float()}
    transformer = load().transformer

    def run() -> torch.Tensor:
        x, text, sigmas = drawn(1, 3, 4, 8, 8), load().embeds, 3 * option["sigmas"] / (1 + 2 * option["sigmas"])
        for s, after in itertools.pairwise(sigmas):
            t = (1000 * s)[None]
            x = x + (after - s) * transformer(x, encoder_hidden_states=text, timestep=t, return_dict=False)[0]
        return x

    added = 1 - torch.arange(51) * torch.tensor(1 / 50)
    of = functools.partial(functools.partial, mock.patch.dict, option)
    wrong = of(sigmas=added * (1 - 1e-5))
    return Script(run, wrong, parts={"transformer": transformer}, site=":in.timestep", innocent=of(sigmas=added))


def sigmas() -> Script:
    """Sigmas from 14.6 down that are made in float64, where the scheduler makes them in float32."""
    betas = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    net, scheduler = Net(), diffusers.EulerDiscreteScheduler(**betas)
    kept = np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)
    option = {"factor": 0.0}

    def run() -> torch.Tensor:
        scheduler.set_timesteps(20)
        own = np.interp(scheduler.timesteps, np.arange(1000), np.sqrt((1 - kept) / kept))
        if factor := option["factor"]:
            scheduler.sigmas = torch.tensor([*factor * own, 0.0], dtype=torch.float32)
        x = drawn(1, 32, 16) * 14.6146
        for t in scheduler.timesteps:
            x = scheduler.step(net(scheduler.scale_model_input(x, t), t), t, x, return_dict=False)[0]
        return x

    of = functools.partial(functools.partial, mock.patch.dict, option)
    parts = {"transformer": net, "scheduler": scheduler}
    return Script(run, of(factor=1 + 1e-5), parts=parts, site="schedule:sigmas", innocent=of(factor=1.0))


KINDS = {
    "sigmas in float64": sigmas,
    "schedule of another order": schedule,
    "lists in and out": lists,
    "coordinates and frequencies": coordinates,
    "plain guidance": own_loop,
    "plain guidance, 2 steps": lambda: own_loop(steps=2),
    "momentum and a norm limit": lambda: own_loop("momentum"),
    "a filter between steps": lambda: own_loop("filter", steps=16),
    "second latents stepped by hand": lambda: own_loop("second"),
    "a residual that the loop keeps": lambda: own_loop("residual"),
    "bfloat16": lambda: own_loop("", torch.bfloat16, 16),
    "draws of a generator": lambda: draws(False),
    "draws of torch's own": lambda: draws(True),
    "memory of predictions": lambda: memory("PNDMScheduler"),
    "memory of a half step": lambda: memory("HeunDiscreteScheduler"),
    "guidance that keeps a norm": lambda: guided(16, 4.0),
    "learned variance": lambda: guided(32, 4.5),
    "prepared image": image,
    "prepared image, by hand": encoded_by_hand,
    "prepared in each step": controlnet,
    "texts": texts,
}


SLOW = {
    "plain guidance", "a filter between steps", "draws of torch's own", "memory of a half step", "prepared image",
    "coordinates and frequencies", "lists in and out", "second latents stepped by hand", "momentum and a norm limit",
    "prepared in each step", "memory of predictions", "guidance that keeps a norm",
}  # fmt: skip
"""Kinds of which another has most."""


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in KINDS]
)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Script, Path]:
    """A script and its recording, which changes no bit of it, nor what is drawn next."""
    script, where = KINDS[request.param](), tmp_path_factory.mktemp("floors") / "gpu"
    torch.manual_seed(1)
    with torch.no_grad():
        plain, after = script.run(), torch.randn(4)
    torch.manual_seed(1)
    with redirect_stderr(io.StringIO()) as said:
        seen = referenced(where, script.run, *script.pipe, **script.parts)
    assert "no floors" not in said.getvalue()
    assert np.array_equal(np.asarray(torch.as_tensor(plain).float()), np.asarray(torch.as_tensor(seen).float()))
    assert torch.equal(after, torch.randn(4))
    return script, where


def candidate(reference: tuple[Script, Path], where: Path, change: Context) -> Result:
    script, golden = reference
    torch.manual_seed(1)
    with change():
        recorded(where, script.run, *script.pipe, **script.parts, runs=0)
    return diff(golden, where)


def test_innocent_variant_of_a_script_passes(reference: tuple[Script, Path], tmp_path: Path) -> None:
    found = candidate(reference, tmp_path / "tpu", reference[0].innocent)
    assert found.verdict == "pass", found.reason
    distances = [d.distance for d in found.sites if d.key.site == reference[0].site]
    assert any(d.rel_l2 > 0 for d in distances)
    assert max(d.floor for d in distances) > 3e-7 or reference[0].site.startswith(("loop:", "schedule:")), (
        "more than its last bit"
    )


def test_fault_of_a_script_fails(reference: tuple[Script, Path], tmp_path: Path) -> None:
    found = candidate(reference, tmp_path / "tpu", reference[0].fault)
    assert found.origin is not None
    assert (found.verdict, found.origin.key.site) == ("fail", reference[0].site)


def test_floors_allow_for_the_elementary_functions_of_a_chip(tmp_path: Path) -> None:
    class Tanh(Net):
        def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor, text: Any = 0.0) -> torch.Tensor:
            return torch.tanh(super().forward(hidden_states, timestep, text))

    net, x = Tanh(), drawn(1, 8, 16)
    floors = []
    for chip in ("", "v5e"):
        referenced(tmp_path / f"gpu{chip}", lambda: net(x, torch.ones(1)), transformer=net, chip=chip)
        golden = Golden.open(tmp_path / f"gpu{chip}")
        assert golden.provenance.chip == chip
        floors += [f.l2 for key, f in golden.read_step(0).floors.items() if key.site == ":out"]
    assert floors[1] > 100 * floors[0]  # its tanh may be 5e-4 off
