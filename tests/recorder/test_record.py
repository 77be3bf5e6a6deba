"""`parity.record` around a loop of one's own: it sees everything, changes nothing, and never ends the script."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

pytest.importorskip("diffusers")

import diffusers

import parity
from parity.compare.diff import diff
from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, verify
from tests.support.scripts import Parts, cogvideox, generate, load, recorded, referenced


@pytest.fixture(scope="module")
def parts() -> Parts:
    return load()


@pytest.fixture(scope="module")
def plain(parts: Parts) -> np.ndarray:
    """What the script computes by itself."""
    return generate(parts)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, parts: Parts, plain: np.ndarray) -> Path:
    """The script without a mistake, with floors."""
    where = tmp_path_factory.mktemp("scripts") / "gpu"
    assert np.array_equal(plain, referenced(where, lambda: generate(parts), **parts.named))
    return where


@pytest.fixture(autouse=True)
def _untouched(parts: Parts) -> Iterator[None]:
    """Nothing of what watched a script is left, however it ended."""
    attention = torch.nn.functional.scaled_dot_product_attention
    yield
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in parts.transformer.modules())
    names = {"step", "decode", "forward", "cache_context"}
    assert not any(names & vars(owner).keys() for owner in parts.named.values())
    assert torch.nn.functional.scaled_dot_product_attention is attention
    assert not _get_current_function_mode_stack()


def test_recording_holds_what_the_script_computed(reference: Path, parts: Parts) -> None:
    golden = Golden.open(reference)
    assert (golden.steps, golden.complete, verify(reference)) == ((-1, 0, 1), True, [])
    step = golden.read_step(1)
    held = {(r.key.branch, r.key.site) for r in step.records}
    assert {("", f"loop:{x}") for x in ("timestep", "sigma", "latents.before", "latents.after", "noise_pred")} <= held
    assert {("uncond", "transformer_blocks.0:out.0"), ("cond", "proj_out:out"), ("cond", "loop:noise_pred")} <= held
    texts = {
        r.key.branch: r.moments.l2 for r in step.records if r.key.site == ":in.encoder_hidden_states" and r.moments
    }
    assert texts == pytest.approx({"cond": float(parts.embeds.norm()), "uncond": float(parts.negative.norm())})
    values = {r.key.site: float(np.asarray(r.value)) for r in step.records if r.key.site in ("loop:sigma", "loop:dt")}
    sigmas = parts.scheduler.sigmas
    assert values == pytest.approx({"loop:sigma": float(sigmas[1]), "loop:dt": float(sigmas[2] - sigmas[1])})
    assert set(step.floors) == {r.key for r in step.records if r.kind == "tensor"}
    outside = {r.key.site for r in golden.read_step(-1).records}
    assert outside == {"decode:in.z", "decode:out", "decode:out@read", "video:out"}
    told = golden.provenance
    assert (told.side, told.backend, told.model, told.steps) == ("reference", "torch", "CogVideoXTransformer3DModel", 2)
    assert (told.settings["scheduler.shift"], told.settings["vae.scaling_factor"]) == ("5.0", "0.48")


class Mine(diffusers.FlowMatchEulerDiscreteScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize("kind", [diffusers.FlowMatchEulerDiscreteScheduler, Mine])
def test_a_config_is_what_its_class_takes(kind: Any, tmp_path: Path, parts: Parts) -> None:
    """diffusers keeps what a scheduler of another class was made with, of which this one reads nothing."""
    made = {**diffusers.UniPCMultistepScheduler(solver_order=3).config, "shift": 5.0}
    own = replace(parts, scheduler=kind.from_config(made) if kind is not Mine else Mine(shift=5.0))
    recorded(tmp_path / "gpu", lambda: generate(own), **own.named, runs=0)
    told = Golden.open(tmp_path / "gpu").provenance.settings
    assert told["scheduler.shift"] == "5.0"
    assert not told.keys() & {"scheduler.solver_order", "scheduler.beta_end"}


@pytest.mark.parametrize(
    ("reference", "given", "sites"),
    [("all", {}, "all"), ("all", {"sites": "none"}, "none"), ("transformer_blocks.0*", {}, "blocks")],
)
def test_a_candidate_is_observed_where_its_reference_was(
    reference: str, given: dict[str, Any], sites: str, tmp_path: Path, parts: Parts
) -> None:
    """A glob is of the reference's names."""
    recorded(tmp_path / "gpu", lambda: generate(parts), **parts.named, runs=0, sites=reference)
    recorded(tmp_path / "tpu", lambda: generate(parts), **parts.named, like=tmp_path / "gpu", **given)
    golden = Golden.open(tmp_path / "tpu")
    assert golden.provenance.sites == sites
    assert any(r.key.module == "transformer_blocks.0.attn1.to_q" for r in golden.read_step(0).records) == (
        sites == "all"
    )


def another_draw(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(9))


MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "shift applied twice": ({"shifted_again": 3.0}, "schedule:", "shifted once more, by 3:"),
    "guidance lost": ({"scale": 1.0}, "loop:noise_pred", "the guidance scale is 1, not 6 (none is applied)"),
    "another scale": ({"scale": 4.0}, "loop:noise_pred", "the guidance scale is 4, not 6"),
    "rescale ignored": ({"rescale": 0.8}, "loop:noise_pred", "rescaled by 1 on the reference, by 0.8 on the candidate"),
    "prompts swapped": ({"swapped": True}, "loop:noise_pred", "the branches or the prompts are swapped"),
    "noise in bfloat16": ({"noise": lambda x: x.bfloat16().float()}, "loop:latents.before", "rounded to bfloat16"),
    "other noise": ({"noise": another_draw}, "loop:latents.before", "the initial noise is another"),
    "noise turned round": ({"noise": lambda x: x.flip(-1)}, "loop:latents.before", "from last to first along axis 4"),
    "one step late": ({"late": 1}, "", "the scheduler stands 1 step late: at index 1, not 0"),
    "not divided": ({"divided": False}, "decode:in.z", "the latents are not divided by scaling_factor 0.48"),
    "frames truncated": ({"rounded": False}, "video:out", "truncated to uint8 instead of rounded"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_of_a_script_is_placed_and_named(name: str, reference: Path, parts: Parts, tmp_path: Path) -> None:
    mistake, site, cause = MISTAKES[name]
    recorded(tmp_path / "tpu", lambda: generate(parts, **mistake), **parts.named, like=reference)
    parts.scheduler.set_begin_index(0)
    found = diff(reference, tmp_path / "tpu")
    assert (found.verdict, found.origin is not None and site in found.origin.key.site) == ("fail", True)
    assert [cause in c.cause for c in found.causes] == [True], found.causes


def _another(named: dict[str, Any]) -> Any:
    return parity.record("another", **named, runs=0)


def _elsewhere(named: dict[str, Any]) -> Any:
    return contextlib.chdir("/")


def _none(named: dict[str, Any]) -> Any:
    return contextlib.nullcontext()


def _inference(named: dict[str, Any]) -> Any:
    return torch.inference_mode()


@pytest.mark.parametrize(
    ("around", "within"),
    [(_none, _none), (_none, _inference), (_inference, _none), (_another, _none), (_none, _elsewhere)],
)
def test_script_in_its_own_way_is_recorded_exactly(
    around: Any, within: Any, reference: Path, parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with around(parts.named), parity.record("tpu", **parts.named, like=reference), within(parts.named):
        generate(parts)
    found = diff(reference, tmp_path / "tpu")
    assert (found.verdict, found.causes) == ("pass", ()), found.reason
    assert all(d.distance.rel_l2 == 0 for d in found.sites)


def test_loop_that_is_run_twice_is_compared_once(reference: Path, parts: Parts, tmp_path: Path) -> None:
    recorded(tmp_path / "tpu", lambda: [generate(parts), generate(parts)], **parts.named, like=reference)
    found = diff(reference, tmp_path / "tpu")
    assert found.verdict == "pass", found.reason
    assert any("its steps 0 to 1 are compared" in note.text for note in found.notes)
    found = diff(tmp_path / "tpu", reference)
    assert (found.verdict, "2" in found.reason, "4" in found.reason) == ("inconclusive", True, True)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize(
    ("where", "steps"), [("the loop", (0,)), ("a block", (0,)), ("half a step", (0, 1)), ("the decoder", (0, 1))]
)
def test_interrupted_script_keeps_its_exception_and_its_steps(
    error: BaseException, where: str, steps: tuple[int, ...], reference: Path, parts: Parts, tmp_path: Path
) -> None:
    at = list[float]()

    def interrupt(step: float) -> None:
        at.append(step)
        if step == {"the loop": 1, "half a step": 1.5}.get(where):
            raise error

    def inside(*_: Any) -> None:
        if where == "the decoder" or at[-1] == 1:
            raise error

    block, decoder = parts.transformer.transformer_blocks[0].ff, parts.vae.out
    hooks = [
        m.register_forward_pre_hook(inside) for n, m in (("a block", block), ("the decoder", decoder)) if n == where
    ]
    with pytest.raises(type(error)) as raised:
        recorded(tmp_path / "g", lambda: generate(parts, interrupt=interrupt), **parts.named, like=reference)
    for hook in hooks:
        hook.remove()
    assert raised.value is error
    golden = Golden.open(tmp_path / "g")
    assert (golden.steps, golden.complete) == (steps, False)
    found = diff(reference, tmp_path / "g")
    assert (found.verdict != "fail", bool(found.sites)) == (True, True), found.reason


def test_failure_of_paritys_ends_the_recording_and_not_the_script(
    parts: Parts, plain: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(GoldenWriter, "write_step", full)
    with parity.record(tmp_path / "g", **parts.named, runs=0) as recording:
        seen = generate(parts)
    assert np.array_equal(plain, seen)
    assert recording.failed == "RuntimeError: no room"
    assert "ended in step 0: RuntimeError: no room; the script goes on" in capsys.readouterr().err


def test_transformer_that_is_replaced_within_the_block_is_reported(
    parts: Parts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other = parts.transformer, cogvideox()
    try:
        with parity.record(tmp_path / "g", **parts.named) as recording:
            parts.transformer = other
            generate(parts)
    finally:
        parts.transformer = own
    assert recording.failed.startswith("no call of the transformer was seen")
    assert "was it replaced or compiled within the block" in capsys.readouterr().err
    assert not (tmp_path / "g").exists()


def test_stop_after_leaves_the_block(parts: Parts, tmp_path: Path) -> None:
    reached = []
    with parity.record(tmp_path / "g", **parts.named, runs=0, stop_after=1):
        generate(parts, steps=3, interrupt=reached.append)
        pytest.fail("the block was not left")
    assert reached == [0, 0.5]
    assert (Golden.open(tmp_path / "g").steps, Golden.open(tmp_path / "g").complete) == ((0,), True)


def test_wrong_usage_is_refused_before_anything_runs(parts: Parts, reference: Path) -> None:
    model = parts.transformer
    for message, options in (
        ("there is a golden here already", {"where": reference, **parts.named}),
        ("give a diffusers pipeline that has a transformer", {"where": "x"}),
        ("transformer= of your own loop, or a vae=", {"where": "x", "vae": object()}),
        ("transformer= of your own loop, or a vae=", {"where": "x", "scheduler": object()}),
        ("must be a torch.nn.Module", {"where": "x", "transformer": 3}),
        (
            "chip must be one of v4, v5e, v5p, v6e, tpu7x; found 'v7'",
            {"where": "x", "transformer": model, "chip": "v7"},
        ),
        ("runs must be at least 0, a whole number; found -1", {"where": "x", "transformer": model, "runs": -1}),
        ("stop_after must be at least 1", {"where": "x", **parts.named, "stop_after": 0}),
        ("branches must be names, each once", {"where": "x", "transformer": model, "branches": "cond"}),
        ("layout must be one of channels_first, channels_last", {"where": "x", "transformer": model, "layout": "nhwc"}),
        ("chip is of floors", {"where": "x", "transformer": model, "chip": "v6e", "like": "g"}),
        ("like must name a golden", {"where": "x", "transformer": model, "like": ""}),
        ("no module matches the site 'blocks.7'", {"where": "x", "transformer": model, "sites": "blocks.7"}),
    ):
        with pytest.raises(UsageError, match=message), parity.record(**options):  # type: ignore[arg-type]
            pytest.fail("nothing may run")
