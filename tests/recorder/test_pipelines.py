"""One line records diffusers' pipelines; another implementation's rounding passes along their loops."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")
import diffusers

import parity
from parity.compare.diff import diff
from parity.compare.independent import differences
from parity.golden import Golden
from parity.models.registry import resolve_model
from tests.support.scripts import (
    BOTH as BRANCHES,
    drawn,
    flux,
    ltx,
    recorded,
    referenced,
    split_linear,
    tame,
    wan,
    wan_two,
)


def built_in(kind: str, model: str, frames: int) -> Any:
    """A built-in model's pipeline with its text encoders, and what calls it."""
    pipe = getattr(diffusers, kind).from_pretrained(resolve_model(model))
    pipe.set_progress_bar_config(disable=True)
    size = {"height": 32, "width": 32, "num_frames": frames, "num_inference_steps": 2, "output_type": "np"}
    return pipe, lambda: pipe("a cat", generator=torch.Generator().manual_seed(0), **size).frames


def hunyuan() -> Any:
    return built_in("HunyuanVideo15Pipeline", "tiny-hunyuan-video-1.5", 5)


def cogvideox() -> Any:
    return built_in("CogVideoXPipeline", "tiny-cogvideox-1.5", 9)


def attributes(pipe: Any) -> list[set[str]]:
    return [set(vars(part)) for part in (pipe, *pipe.components.values()) if part is not None]


BOTH = {"", "cond", "uncond"}
ROWS = [(wan, BOTH)]
MORE = [(ltx, BOTH), (flux, {"", "cond"}), (wan_two, BOTH), (cogvideox, BOTH), (hunyuan, BOTH)]


@pytest.mark.parametrize(("make", "branches"), [*ROWS, *(pytest.param(*row, marks=pytest.mark.slow) for row in MORE)])
def test_pipeline_that_adds_in_another_order_agrees(
    make: Callable[[], Any], branches: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pipe, call = make()
    plain, own = call(), attributes(pipe)
    assert np.array_equal(plain, recorded(tmp_path / "a", call, pipe)), "recording changes no bit"
    assert "no floors" not in capsys.readouterr().err
    assert attributes(pipe) == own
    monkeypatch.setattr(torch.nn.functional, "linear", split_linear)
    recorded(tmp_path / "b", call, pipe, like=tmp_path / "a")
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "pass", found.reason
    golden = Golden.open(tmp_path / "a")
    last = golden.steps[-1]
    assert (golden.steps, golden.complete) == (tuple(range(-1, pipe.num_timesteps)), True)
    records = golden.read_step(last).records
    assert {r.key.branch for r in records} == branches
    assert set(golden.read_step(last).floors) == {r.key for r in records if r.kind == "tensor"}
    sites = {r.key.site for r in golden.read_step(-1).records}
    assert {"decode:in.z", "decode:out", "decode:frames"} <= sites
    (after,) = [d for d in found.sites if d.key.step == last and d.key.site == "loop:latents.after"]
    assert 0 < after.distance.ratio < 1


def test_second_transformer_of_a_pipeline_has_its_place(tmp_path: Path) -> None:
    pipe, call = wan_two()
    recorded(tmp_path / "a", call, pipe, runs=0)
    golden = Golden.open(tmp_path / "a")
    modules = golden.provenance.modules
    assert (modules["transformer_2.blocks.0"], modules["transformer_2"]) == ("transformer_2", "")
    sites = {r.key.site for r in golden.read_step(2).records}
    assert {"transformer_2:out", "transformer_2.blocks.0:out"} <= sites
    models = {name: getattr(pipe, name) for name in ("transformer", "transformer_2")}
    recorded(tmp_path / "c", call, transformer=models, scheduler=pipe.scheduler, like=tmp_path / "a")  # of a loop
    assert Golden.open(tmp_path / "c").provenance.modules == modules
    pipe.transformer_2 = pipe.transformer
    recorded(tmp_path / "b", call, pipe, runs=0)
    assert not any(r.key.module.startswith("transformer_2") for r in Golden.open(tmp_path / "b").read_step(2).records)


def test_call_to_warm_up_is_not_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe, call = ltx()
    given: list[Any] = []
    hook = pipe.transformer.register_forward_pre_hook(lambda m, a, kwargs: given.append(kwargs), with_kwargs=True)
    recorded(tmp_path / "a", call, pipe)
    hook.remove()
    with torch.no_grad(), parity.record(tmp_path / "b", pipe, like=tmp_path / "a"):
        with pipe.transformer.cache_context("cond_uncond"):
            pipe.transformer(**given[-1])
        call()
    assert "left out: 1 call before the first step's, on other latents" in capsys.readouterr().err
    assert diff(tmp_path / "a", tmp_path / "b").verdict == "pass"


def generate(pipe: Any, seed: int = 0, steps: int = 2, **options: Any) -> Any:
    given = {**BRANCHES, "height": 16, "width": 16, "num_frames": 5, "output_type": "np", **options}
    return pipe(**given, num_inference_steps=steps, generator=torch.Generator().manual_seed(seed)).frames


def run_out(pipe: Any) -> None:
    """A generation that ends in its first step's callback."""

    def full(*_: Any) -> Any:
        raise MemoryError

    with contextlib.suppress(MemoryError):
        generate(pipe, callback_on_step_end=full)


GENERATIONS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "to compile, with fewer steps": (lambda pipe: (generate(pipe, 5, 1), generate(pipe)), "pass", "its steps 1 to 2"),
    "to compile, from other noise": (lambda pipe: (generate(pipe, 5), generate(pipe)), "pass", "its steps 2 to 3"),
    "again": (lambda pipe: (run_out(pipe), generate(pipe)), "pass", "its steps 1 to 2"),
    "and another": (lambda pipe: (generate(pipe), generate(pipe, 5)), "pass", "its steps 0 to 1"),
    "with another text": (
        lambda pipe: (generate(pipe), generate(pipe, prompt_embeds=3 * BRANCHES["prompt_embeds"])),
        "pass", "its steps 0 to 1",
    ),
    "in another schedule": (lambda pipe: (generate(pipe, 0, 4), generate(pipe)), "pass", "its steps 4 to 5"),
    "of other noise alone": (lambda pipe: (generate(pipe, 5, 1), generate(pipe, 6)), "fail", "its steps 1 to 2"),
    "of another scale": (
        lambda pipe: (generate(pipe, 5, 1), generate(pipe, guidance_scale=4.0)), "fail", "its steps 1 to 2"
    ),
    "of more steps": (lambda pipe: (generate(pipe, 5, 1), generate(pipe, 0, 3)), "inconclusive", "its steps 1 to 3"),
}  # fmt: skip


def test_generation_that_was_stopped_is_compared_as_far_as_it_came(generated: Path, tmp_path: Path) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    pipe, _ = wan()
    with contextlib.suppress(KeyboardInterrupt), torch.no_grad(), parity.record(tmp_path / "b", pipe, like=generated):
        generate(pipe, 5)
        generate(pipe, callback_on_step_end=stop)
    found = diff(generated, tmp_path / "b")
    assert (found.verdict, [s.step for s in found.steps]) == ("inconclusive", [0]), found.reason
    assert "--steps 1" in found.reason
    assert diff(generated, tmp_path / "b", steps=1).verdict == "pass"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of one generation, with floors."""
    pipe, _ = wan()
    where = tmp_path_factory.mktemp("generated") / "a"
    recorded(where, lambda: generate(pipe), pipe)
    return where


@pytest.mark.parametrize("case", GENERATIONS)
def test_generation_that_is_like_the_references_is_compared(case: str, generated: Path, tmp_path: Path) -> None:
    made, verdict, steps = GENERATIONS[case]
    pipe, _ = wan()
    recorded(tmp_path / "b", lambda: made(pipe), pipe, like=generated)
    found = diff(generated, tmp_path / "b")
    assert found.verdict == verdict, found.reason
    assert any(steps in note.text for note in found.notes)
    assert found.origin is None or found.origin.key.step == 0
    assert not any(d.key.step > 1 for d in found.sites)


class Prior(torch.nn.Module):
    """One that is called once more behind each step, for its cache alone."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, fill: bool = False) -> tuple[torch.Tensor | None, torch.Tensor]:
        y = self.lin(x)
        return (None if fill else y), y


def test_call_that_fills_a_cache_predicts_nothing(tmp_path: Path) -> None:
    pipe = SimpleNamespace(prior=Prior(), scheduler=diffusers.FlowMatchEulerDiscreteScheduler())
    pipe.scheduler.set_timesteps(2)
    x = torch.ones(1, 3, 4)
    with torch.no_grad(), parity.record(tmp_path / "a", pipe, runs=0):
        for t in pipe.scheduler.timesteps:
            x = pipe.scheduler.step(pipe.prior(x)[0], t, x)[0]
            pipe.prior(x, fill=True)
    golden = Golden.open(tmp_path / "a")
    assert golden.complete
    sites = [{r.key.site for r in golden.read_step(step).records} for step in (0, 1)]
    assert all({"loop:noise_pred", "lin:out"} <= held for held in sites)


@pytest.mark.parametrize(
    ("lost", "place"), [("", ""), ("prediction", "the prediction before"), ("timestep", "timestep_back")]
)
def test_what_a_step_is_given_of_the_step_before_is_compared(lost: str, place: str, tmp_path: Path) -> None:
    """CogVideoX's DPM remembers nothing itself."""
    prior, scheduler = tame(Prior()), diffusers.CogVideoXDPMScheduler()

    def call(lost: str = "") -> None:
        scheduler.set_timesteps(3)
        x, old, times = torch.ones(1, 3, 4), None, scheduler.timesteps
        for i, t in enumerate(times):
            back = times[max(i - 1, 1 if lost == "timestep" else 0)] if i else None
            drawn = torch.Generator().manual_seed(i)
            old = None if lost == "prediction" else old
            x, old = scheduler.step(prior(x)[0], old, t, back, x, generator=drawn, return_dict=False)

    with torch.no_grad():
        for _ in parity.record(tmp_path / "a", transformer=prior, scheduler=scheduler):
            call()
        with parity.record(tmp_path / "b", transformer=prior, scheduler=scheduler, like=tmp_path / "a"):
            call(lost)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert [d.place for d in differences(found)] == ([place] if place else []), found.reason


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copy_of_a_scheduler_steps_by_itself(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    scheduler, prior, x = diffusers.FlowMatchEulerDiscreteScheduler(), Prior(), torch.ones(1, 3, 4)
    scheduler.set_timesteps(2)
    with torch.no_grad(), parity.record(tmp_path / "a", transformer=prior, scheduler=scheduler, runs=0):
        own = copied(scheduler)
        for t in scheduler.timesteps:
            own.step(x, t, x)  # a frame of its own
            x = scheduler.step(prior(x)[0], t, x)[0]
    assert (scheduler.step_index, own.step_index) == (2, 2)
    assert "step" not in vars(own)
    assert Golden.open(tmp_path / "a").steps == (0, 1)


@pytest.mark.parametrize("narrow", [True, False])
def test_the_dtype_of_a_recording_is_what_it_is_computed_in(narrow: bool, tmp_path: Path) -> None:
    """Under autocast weights are stored in another."""
    pipe, call = ltx()
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow), parity.record(tmp_path / "a", pipe, runs=0):
        call()
    assert Golden.open(tmp_path / "a").provenance.settings["dtype"] == ("bfloat16" if narrow else "float32")


def test_a_scheduler_that_is_replaced_within_the_block_is_recorded(tmp_path: Path) -> None:
    pipe, call = ltx()
    recorded(tmp_path / "ours", call, pipe)

    def anew() -> Any:
        pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
        return call()

    recorded(tmp_path / "theirs", anew, pipe, runs=0)
    found = diff(tmp_path / "ours", tmp_path / "theirs")
    assert (found.verdict, len(found.steps)) == ("pass", len(Golden.open(tmp_path / "ours").steps) - 1), found.reason


@pytest.mark.parametrize("method", ["postprocess_video", pytest.param("postprocess", marks=pytest.mark.slow)])
def test_what_a_processor_gives_at_last_is_recorded(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method of it that takes each video from another hid what it does to them itself."""
    pipe, call = ltx()
    recorded(tmp_path / "ours", call, pipe)
    own = getattr(pipe.video_processor, method)
    monkeypatch.setattr(pipe.video_processor, method, lambda *given, **named: 0.9 * np.array(own(*given, **named)))
    recorded(tmp_path / "theirs", call, pipe, runs=0)
    found = diff(tmp_path / "ours", tmp_path / "theirs")
    assert (found.verdict, "the frames (vae): " in found.reason) == ("fail", True), found.reason


def test_the_frames_of_each_video_are_recorded(tmp_path: Path) -> None:
    pipe, _ = ltx()
    with parity.record(tmp_path / "a", pipe, runs=0):
        for shape in ((2, 3, 5, 8, 8), (1, 3, 5, 8, 8)):
            pipe.video_processor.postprocess_video(torch.zeros(shape))
    frames = [r for r in Golden.open(tmp_path / "a").read_step(-1).records if r.key.site == "decode:frames"]
    assert [(r.key.call, r.shape) for r in frames] == [(i, (5, 8, 8, 3)) for i in range(3)]


@pytest.mark.parametrize(("offset", "verdict"), [(1e-7, "pass"), (0.1, "fail")])
def test_frames_that_are_named_behind_the_call_have_the_floors_of_those_within(
    offset: float, verdict: str, tmp_path: Path
) -> None:
    """Though runs of the call alone do not name them."""
    pipe, call = ltx()
    with parity.record(tmp_path / "ours", pipe):
        parity.tap("video", torch.from_numpy(call()))
    with parity.record(tmp_path / "theirs", pipe, like=tmp_path / "ours"):
        parity.tap("video", torch.from_numpy(call() + np.float32(offset)))
    found = diff(tmp_path / "ours", tmp_path / "theirs")
    assert (found.verdict, found.origin is None or found.origin.key.site == "video:out") == (verdict, True), (
        found.reason
    )


@pytest.mark.parametrize("turned", [False, True])
def test_frames_behind_a_wrong_decode_are_judged_too(
    turned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, call = ltx()
    recorded(tmp_path / "ours", call, pipe)
    scaled, made = pipe._denormalize_latents, pipe.video_processor.postprocess_video
    monkeypatch.setattr(pipe, "_denormalize_latents", lambda *given: 1.1 * scaled(*given), raising=False)
    monkeypatch.setattr(
        pipe.video_processor,
        "postprocess_video",
        lambda video, *given, **named: made(video.flip(2) if turned else video, *given, **named),
    )
    recorded(tmp_path / "theirs", call, pipe, runs=0)
    found = diff(tmp_path / "ours", tmp_path / "theirs")
    assert [d.place for d in differences(found)] == ["what is decoded", *(["the frames"] if turned else [])]


@pytest.mark.slow
def test_another_output_type_is_no_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Floats, tensors with the channels first, pictures of 8 bits."""
    pipe, call = ltx()
    recorded(tmp_path / "np", call, pipe)
    own = pipe.video_processor.postprocess_video
    for output in ("pt", "pil"):
        monkeypatch.setattr(
            pipe.video_processor, "postprocess_video", lambda video, output_type, o=output: own(video, o)
        )
        recorded(tmp_path / output, call, pipe, runs=0)
        found = diff(tmp_path / "np", tmp_path / output)
        assert found.verdict == "pass", found.reason
        (frames,) = [d for d in found.sites if d.key.site == "decode:frames"]
        assert (output == "pil") == ("pictures of 8 bits against floats" in str([n.text for n in found.notes]))
        assert (frames.distance.rel_l2 == 0) == (output == "pt")


@pytest.mark.parametrize("gain", [1.0, 1.01])
def test_batch_of_both_branches_within_the_context_of_one_is_taken_apart(gain: float, tmp_path: Path) -> None:
    """A loop made one call of two, where the first of them stood."""
    pipe, _ = wan()
    model, scheduler = pipe.transformer.eval(), diffusers.FlowMatchEulerDiscreteScheduler()
    texts = BRANCHES["prompt_embeds"], BRANCHES["negative_prompt_embeds"]

    def go(*, at_once: bool) -> torch.Tensor:
        scheduler.set_timesteps(1)
        x, t = drawn(1, 16, 2, 2, 2, seed=5), scheduler.timesteps[:1]
        with model.cache_context("cond"):
            both = (torch.cat([x, x]), torch.cat([t, t]), torch.cat(texts)) if at_once else (x, t, texts[0])
            cond, *more = model(*both, return_dict=False)[0].split(1)
        with model.cache_context("uncond"):
            uncond = more[0] if more else model(x, t, texts[1], return_dict=False)[0]
        return scheduler.step(uncond + 4 * (cond - uncond), t[0], x, return_dict=False)[0]

    parts = {"transformer": model, "scheduler": scheduler}
    referenced(tmp_path / "a", lambda: go(at_once=False), **parts)
    model.blocks[0].register_forward_hook(lambda module, args, out: gain * out)
    recorded(tmp_path / "b", lambda: go(at_once=True), like=tmp_path / "a", **parts)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.verdict == ("pass" if gain == 1 else "fail"), found.reason
    assert (found.origin and found.origin.key.site) == (None if gain == 1 else "blocks.0:out")
