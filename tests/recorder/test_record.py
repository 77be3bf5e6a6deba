"""`parity.record` in a script of somebody's own: it sees everything, changes nothing, and never ends the script."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

import parity
from parity.compare.diff import diff
from parity.errors import UsageError
from parity.golden import Golden, verify
from parity.golden.records import Key
from parity.models.registry import resolve_model
from tests.recorder import script


@pytest.fixture(scope="module")
def parts() -> script.Parts:
    return script.load()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, parts: script.Parts) -> Path:
    """The script without a mistake, with floors."""
    where = tmp_path_factory.mktemp("scripts") / "gpu"
    plain = script.generate(parts)
    with parity.record(where, **parts.named):
        seen = script.generate(parts)
    assert np.array_equal(plain, seen)
    return where


def untouched(parts: script.Parts) -> bool:
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in parts.transformer.modules())
    own = [
        name for owner in parts.named.values() for name in ("step", "decode", "cache_context") if name in vars(owner)
    ]
    return not hooked and not own


def test_a_recording_holds_what_the_script_computed(reference: Path, parts: script.Parts) -> None:
    golden = Golden.open(reference)
    assert (golden.steps, golden.complete, verify(reference)) == ((-1, 0, 1), True, [])
    step = golden.read_step(1)
    held = {(r.key.branch, r.key.site) for r in step.records}
    assert {("", "loop:timestep"), ("", "loop:sigma"), ("", "loop:latents.before"), ("", "loop:latents.after")} <= held
    assert {("uncond", "transformer_blocks.0:out.0"), ("cond", "proj_out:out"), ("cond", "loop:noise_pred")} <= held
    assert {k for k in step.floors} == {r.key for r in step.records if r.kind == "tensor"}
    outside = {r.key.site for r in golden.read_step(-1).records}
    assert outside == {"decode:in.z", "decode:out", "decode:out@read", "video:out"}
    told = golden.provenance
    assert (told.side, told.backend, told.model, told.steps) == ("reference", "torch", "CogVideoXTransformer3DModel", 2)
    assert told.settings["scheduler.shift"] == "5.0"
    assert untouched(parts)


def test_two_recordings_of_the_same_agree_exactly(reference: Path, parts: script.Parts, tmp_path: Path) -> None:
    with parity.record(tmp_path / "again", **parts.named, floors=()):
        script.generate(parts)
    found = diff(reference, tmp_path / "again")
    assert (found.verdict, found.causes) == ("pass", ())
    assert all(d.distance.rel_l2 == 0 for d in found.sites)


MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "shift applied twice": ({"shifted_again": 3.0}, "schedule:", "the schedule is shifted once more, by 3:"),
    "guidance lost": ({"scale": 1.0}, "loop:noise_pred", "the guidance scale is 1, not 6 (none is applied)"),
    "another scale": ({"scale": 4.0}, "loop:noise_pred", "the guidance scale is 4, not 6"),
    "rescale ignored": ({"rescale": 0.8}, "loop:noise_pred", "rescaled by 1 on the reference, by 0.8 on the candidate"),
    "prompts swapped": ({"swapped": True}, ":in.encoder_hidden_states", "the branches are swapped"),
    "noise in bfloat16": ({"noise": lambda x: x.bfloat16().float()}, "loop:latents.before", "rounded to bfloat16"),
    "other noise": ({"noise": lambda x: x.flip(-1)}, "loop:latents.before", "the initial noise is another"),
    "one step late": ({"late": 1}, "", "the scheduler stands 1 step late: at index 1, not 0"),
    "not divided": ({"divided": False}, "decode:in.z", "the latents are not divided by scaling_factor 1.153"),
    "frames truncated": ({"rounded": False}, "video:out", "truncated to uint8 instead of rounded"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_glue_fails_where_it_is_and_is_named(
    name: str, reference: Path, parts: script.Parts, tmp_path: Path
) -> None:
    mistake, site, cause = MISTAKES[name]
    with parity.record(tmp_path / "tpu", **parts.named, floors=(), like=reference):
        script.generate(parts, **mistake)
    parts.scheduler.set_begin_index(0)
    found = diff(reference, tmp_path / "tpu")
    assert found.verdict == "fail"
    assert found.origin is not None
    assert site in found.origin.key.site
    assert [c.cause for c in found.causes if cause in c.cause], found.causes
    assert len(found.causes) == 1, found.causes


def test_rounding_that_grows_along_the_loop_is_within_the_floors(
    reference: Path, parts: script.Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums split in two: another implementation's rounding, in a loop that nobody restarts."""
    monkeypatch.setattr(torch.nn.functional, "linear", script.split_linear)
    with parity.record(tmp_path / "split", **parts.named, floors=()):
        script.generate(parts)
    found = diff(reference, tmp_path / "split")
    (after,) = [d for d in found.sites if d.key.step == 1 and d.key.site == "loop:latents.after"]
    assert 0 < after.distance.rel_l2 < 1e-4
    assert found.verdict == "pass", found.reason


def test_a_script_in_bfloat16_is_judged_around_a_float32_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = script.load(torch.bfloat16)
    with parity.record(tmp_path / "gpu", **parts.named):
        script.generate(parts)
    block = parts.transformer.transformer_blocks[0].attn1
    hooked = block.register_forward_hook(lambda module, args, out: (out[0] * 1.2, out[1]))
    with parity.record(tmp_path / "wrong", **parts.named, like=tmp_path / "gpu"):
        script.generate(parts)
    hooked.remove()
    linear = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, w, b=None: linear(x.flip(-1), w.flip(-1), b))
    with parity.record(tmp_path / "other", **parts.named, like=tmp_path / "gpu"):
        script.generate(parts)
    other, wrong = (diff(tmp_path / "gpu", tmp_path / name) for name in ("other", "wrong"))
    assert other.verdict == "pass", other.reason
    assert 1e-4 < other.steps[1].noise_pred.floor < 0.1
    assert (wrong.verdict, wrong.failed) == ("fail", "precision")
    assert wrong.origin is not None
    assert wrong.origin.key.module.startswith("transformer_blocks.0")


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_the_scripts_exception_is_the_one_that_is_seen(
    error: BaseException, parts: script.Parts, tmp_path: Path
) -> None:
    def interrupt(step: int) -> None:
        if step == 1:
            raise error

    with pytest.raises(type(error)) as raised, parity.record(tmp_path / "g", **parts.named, floors=()):
        script.generate(parts, steps=3, interrupt=interrupt)
    assert raised.value is error
    golden = Golden.open(tmp_path / "g")
    assert (golden.steps, golden.complete) == ((0,), False)
    assert untouched(parts)


def test_a_failure_of_paritys_ends_the_recording_and_not_the_script(
    parts: script.Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no room")

    plain = script.generate(parts)
    monkeypatch.setattr("parity.recorder.loop.Loop._stepped", broken)
    with parity.record(tmp_path / "g", **parts.named, floors=()) as recording:
        seen = script.generate(parts)
    assert np.array_equal(plain, seen)
    assert recording.failed == "RuntimeError: no room"
    assert "ended in step 0: RuntimeError: no room; the script goes on" in capsys.readouterr().err


def test_a_model_that_cannot_run_in_float64_is_recorded_with_the_floors_of_rounding(
    parts: script.Parts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def narrow(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if args[0].dtype == torch.float64:
            raise NotImplementedError("no kernel for Double\nat line 3")

    plain = script.generate(parts)
    handle = parts.transformer.transformer_blocks[1].ff.register_forward_pre_hook(narrow)
    try:
        with parity.record(tmp_path / "g", **parts.named):
            seen = script.generate(parts)
    finally:
        handle.remove()
    assert np.array_equal(plain, seen)
    said = capsys.readouterr().err
    assert said.count("cannot be run in float64 here (NotImplementedError: no kernel for Double)") == 1
    golden = Golden.open(tmp_path / "g")
    assert golden.complete
    assert golden.steps == (-1, 0, 1)
    for number in (0, 1):
        step = golden.read_step(number)
        assert step.floors[Key("transformer", number, "cond", "loop:noise_pred")].l2 > 0
    with parity.record(tmp_path / "again", **parts.named, like=tmp_path / "g"):
        script.generate(parts)
    assert diff(tmp_path / "g", tmp_path / "again").verdict == "pass"


FLEX = """
import sys, torch
import parity
from torch.nn.attention.flex_attention import flex_attention

programs = []
def compiler(graph, inputs):
    programs.append([x.dtype for x in inputs if isinstance(x, torch.Tensor)])
    return graph.forward

compiled = torch.compile(flex_attention, dynamic=False, backend=compiler)

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q = torch.nn.Linear(16, 16)
    def forward(self, hidden_states, timestep):
        given = (self.to_q(hidden_states), hidden_states, hidden_states)
        q, k, v = (x.unflatten(2, (2, 8)).transpose(1, 2) for x in given)
        def near(score, b, h, i, j):
            return torch.where(j < 5, score, float("-inf"))
        return compiled(q, k, v, score_mod=near).transpose(1, 2).flatten(2) + timestep

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
    def forward(self, hidden_states, timestep):
        for block in self.blocks:
            hidden_states = block(hidden_states, timestep)
        return hidden_states

torch.manual_seed(0)
model, x = Model(), torch.randn(1, 6, 16)
with torch.no_grad():
    before, own = model(x, torch.tensor(1.0)), compiled
    with parity.record(sys.argv[1], transformer=model):
        seen = model(x, torch.tensor(1.0))
        parity.tap("out", seen)
assert torch.equal(before, seen) and compiled is own
assert all(torch.float64 not in dtypes for dtypes in programs), programs
"""


def test_a_compiled_flex_attention_is_seen_and_has_a_truth_in_float64(tmp_path: Path) -> None:
    """What the compiler cannot lower in float64 is run operation by operation there. In a process of its own: dynamo
    and torchax do not go together."""
    (tmp_path / "script.py").write_text(FLEX)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "g")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "float64" not in done.stderr
    step = Golden.open(tmp_path / "g").read_step(0)
    seen = {r.key.site: r for r in step.records}
    ports = ("in.query", "in.key", "in.value", "out")
    for i in range(2):
        for port in ports:
            record = seen[f"blocks.{i}.attention:{port}"]
            assert record.shape == (1, 6, 2, 8)
            assert record.key in step.floors


def test_stop_after_leaves_the_block(parts: script.Parts, tmp_path: Path) -> None:
    reached = []
    with parity.record(tmp_path / "g", **parts.named, floors=(), stop_after=1):
        script.generate(parts, steps=3, interrupt=reached.append)
        pytest.fail("the block was not left")
    assert reached == [0]
    assert (Golden.open(tmp_path / "g").steps, Golden.open(tmp_path / "g").complete) == ((0,), True)


def test_wrong_usage_is_said_before_anything_runs(parts: script.Parts, reference: Path) -> None:
    model = parts.transformer
    for message, options in (
        ("there is a golden here already", {"where": reference, **parts.named}),
        ("give a diffusers pipeline", {"where": "x"}),
        ("must be a torch.nn.Module", {"where": "x", "transformer": 3}),
        (
            "no module matches the site 'blocks.7'",
            {"where": "x", "transformer": model, "sites": "blocks.7"},
        ),
        ("floors takes fp64, rounding", {"where": "x", "transformer": model, "floors": ("fp32",)}),
    ):
        with pytest.raises(UsageError, match=message), parity.record(**options):  # type: ignore[arg-type]
            pytest.fail("nothing may run")
    assert untouched(parts)


def built_in(kind: str, model: str, frames: int) -> tuple[Any, Callable[[], Any]]:
    """A built-in model's pipeline, and what calls it."""
    pipe = getattr(diffusers, kind).from_pretrained(resolve_model(model))
    size = {"height": 32, "width": 32, "num_frames": frames, "num_inference_steps": 2, "output_type": "np"}
    return pipe, lambda: pipe("a cat", generator=torch.Generator().manual_seed(0), **size).frames


@pytest.mark.parametrize(
    "given", [("HunyuanVideo15Pipeline", "tiny-hunyuan-video-1.5", 5), ("CogVideoXPipeline", "tiny-cogvideox-1.5", 9)]
)
def test_a_pipeline_is_recorded_with_one_line(given: tuple[str, str, int], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe, call = built_in(*given)
    pipe.set_progress_bar_config(disable=True)
    plain = call()
    with parity.record(tmp_path / "a", pipe):
        seen = call()
    with parity.record(tmp_path / "b", pipe, floors=()):
        call()
    assert np.array_equal(plain, seen)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "pass", found.reason
    golden = Golden.open(tmp_path / "a")
    assert golden.steps == (-1, 0, 1)
    assert {r.key.branch for r in golden.read_step(0).records} == {"", "cond", "uncond"}
    sites = {r.key.site for r in golden.read_step(-1).records}
    assert {"decode:in.z", "decode:out", "decode:frames"} <= sites
