"""Scripts that call things in ways of their own are recorded, and end as they would."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

import parity
from parity.compare.diff import diff
from parity.golden import Golden
from tests.recorder import pipelines, script


@pytest.fixture(scope="module")
def made() -> pipelines.Made:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe, call = pipelines.ltx()
    pipe.set_progress_bar_config(disable=True)
    return pipe, call


@pytest.fixture(scope="module")
def reference(made: pipelines.Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("ways") / "gpu"
    with parity.record(where, made[0]):
        made[1]()
    return where


@pytest.mark.parametrize("inside", [True, False])
def test_inference_mode(inside: bool, made: pipelines.Made, reference: Path, tmp_path: Path) -> None:
    pipe, call = made
    if inside:
        with parity.record(tmp_path / "a", pipe) as recording, torch.inference_mode():
            call()
    else:
        with torch.inference_mode(), parity.record(tmp_path / "a", pipe) as recording:
            call()
    assert not recording.failed
    assert diff(reference, tmp_path / "a").verdict == "pass"


def test_a_recording_within_another(made: pipelines.Made, reference: Path, tmp_path: Path) -> None:
    pipe, call = made
    before = set(vars(pipe.transformer)) | set(vars(pipe.scheduler)) | set(vars(pipe.vae))
    with parity.record(tmp_path / "outer", pipe, floors=()), parity.record(tmp_path / "inner", pipe, floors=()):
        call()
    assert set(vars(pipe.transformer)) | set(vars(pipe.scheduler)) | set(vars(pipe.vae)) == before
    for name in ("outer", "inner"):
        assert diff(reference, tmp_path / name).verdict == "pass"


def test_wans_second_transformer_has_floors_and_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, call = pipelines.wan_two()
    pipe.set_progress_bar_config(disable=True)
    with parity.record(tmp_path / "a", pipe):
        call()
    golden = Golden.open(tmp_path / "a")
    assert golden.provenance.modules["transformer_2.blocks.0"] == "transformer_2"
    assert golden.provenance.modules["transformer_2"] == ""
    last = golden.read_step(2)
    second = {r.key for r in last.records if r.key.module.startswith("transformer_2")}
    assert {key.site for key in second} >= {"transformer_2:out", "transformer_2.blocks.0:out"}
    assert {key for key in second if next(r for r in last.records if r.key == key).kind == "tensor"} <= set(last.floors)
    monkeypatch.setattr(torch.nn.functional, "linear", script.split_linear)
    with parity.record(tmp_path / "b", pipe, floors=()):
        call()
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "pass", found.reason


def test_one_transformer_in_two_places_is_seen_once(tmp_path: Path) -> None:
    pipe, call = pipelines.wan_two()
    pipe.set_progress_bar_config(disable=True)
    pipe.transformer_2 = pipe.transformer
    with parity.record(tmp_path / "a", pipe, floors=()) as recording:
        call()
    assert not recording.failed
    modules = {r.key.module for r in Golden.open(tmp_path / "a").read_step(2).records}
    assert not any(module.startswith("transformer_2") for module in modules)


class Noisy(torch.nn.Module):
    """A decoder that takes more than latents, and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Conv2d(4, 3, 1)

    def decode(self, z: torch.Tensor, temb: torch.Tensor, num_frames: int = 1, return_dict: bool = True) -> Any:
        frames = self.out(z) * temb + 0.1 * torch.randn(z.shape[0], 3, *z.shape[2:])
        frames = frames.unflatten(0, (-1, num_frames))
        return {"sample": frames} if return_dict else (frames,)


@pytest.mark.parametrize("named", [True, False])
def test_a_decoder_that_is_given_more_than_latents(named: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    vae, z, temb = Noisy(), pipelines.drawn(4, 4, 8, 8), torch.tensor(2.0)

    def decode() -> torch.Tensor:
        torch.manual_seed(1)
        given = {"return_dict": False, "temb": temb, "num_frames": 2}
        return vae.decode(z=z, **given)[0] if named else vae.decode(z, **given)[0]

    with torch.no_grad():
        plain, after = decode(), torch.randn(3)
        with parity.record(tmp_path / "a", vae=vae) as recording:
            seen, then = decode(), torch.randn(3)
    assert not recording.failed
    assert torch.equal(plain, seen)
    assert torch.equal(after, then), "the runs beside it draw what it drew, and no more"
    part = Golden.open(tmp_path / "a").read_step(-1)
    floors = {key.site: floor for key, floor in part.floors.items()}
    assert 0 < floors["decode:out"].l2 < 1e-4 * float(np.linalg.norm(seen.numpy()))


@pytest.mark.parametrize("where", ["a block", "the decoder"])
def test_a_script_that_is_interrupted_keeps_the_half_step_and_its_diff_does_not_fail(
    where: str, made: pipelines.Made, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, call = made
    calls: list[int] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def interrupt(module: torch.nn.Module, args: Any) -> None:
        calls.append(1)
        if len(calls) == 2 or where == "the decoder":
            raise KeyboardInterrupt

    module = pipe.transformer.transformer_blocks[1] if where == "a block" else pipe.vae.decoder
    hook = module.register_forward_pre_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), parity.record(tmp_path / "b", pipe, floors=("rounding",)):
            call()
    finally:
        hook.remove()
    assert torch.nn.functional.scaled_dot_product_attention is attention
    assert not _get_current_function_mode_stack(), "nothing of what watched the call is left"
    golden = Golden.open(tmp_path / "b")
    assert not golden.complete
    found = diff(reference, tmp_path / "b")
    assert found.verdict != "fail", found.reason
    assert found.sites
    if where == "a block":
        assert "recorded to" in capsys.readouterr().err
        assert all(r.key.stage == "transformer" for step in golden.steps for r in golden.read_step(step).records)


def test_a_pipeline_that_is_called_twice_is_not_comparable_beyond_its_first_call(
    made: pipelines.Made, reference: Path, tmp_path: Path
) -> None:
    pipe, call = made
    with parity.record(tmp_path / "b", pipe):
        call()
        call()
    found = diff(reference, tmp_path / "b")
    assert found.verdict == "unjudged", found.reason
    assert "3" in found.reason
    assert "6" in found.reason


def test_a_script_that_changes_its_folder_is_recorded_where_it_began(
    made: pipelines.Made, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, call = made
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with parity.record("a", pipe, floors=()):
        os.chdir("other")
        call()
    assert diff(reference, tmp_path / "a").verdict == "pass"


def test_a_transformer_that_is_replaced_within_the_block_is_said(
    made: pipelines.Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, call = made
    own, other = pipe.transformer, pipelines.ltx()[0].transformer
    try:
        pipe.transformer = other
        plain = call()
        pipe.transformer = own
        with parity.record(tmp_path / "a", pipe) as recording:
            pipe.transformer = other
            seen = call()
    finally:
        pipe.transformer = own
    assert np.array_equal(plain, seen), "the script goes on"
    assert recording.failed.startswith("no call of the transformer was seen")
    assert "was it replaced or compiled within the block" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_a_call_to_warm_up_is_not_what_is_recorded(
    made: pipelines.Made, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, call = made
    given: list[Any] = []
    hook = pipe.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: given.append((args, kwargs)), with_kwargs=True
    )
    call()
    hook.remove()
    args, kwargs = given[-1]
    with parity.record(tmp_path / "a", pipe, floors=()):
        with torch.no_grad(), pipe.transformer.cache_context("cond_uncond"):
            pipe.transformer(*args, **kwargs)
        call()
    assert "in step 0 a branch was called more than once: the last call of each is recorded" in capsys.readouterr().err
    assert diff(reference, tmp_path / "a").verdict == "pass"
