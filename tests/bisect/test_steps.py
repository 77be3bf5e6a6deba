"""The step that brings a difference: by itself in logarithmically many probes, in the free run, killed and resumed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parity.bisect.search import silent
from parity.bisect.state import State
from parity.bisect.steps import FoundSteps, search_steps
from parity.bisect.strategy import Outcome
from parity.errors import UnjudgedError, UsageError

STEPS = 50


def outcome(bad: bool) -> tuple[Outcome, str]:
    return ("bad", "40 x") if bad else ("good", "0.5 x")


class Run:
    """Differs alone at the steps `alone`, and in the free run from step `free` on; dies at the free step `dies`."""

    def __init__(self, alone: range, free: int = STEPS, dies: int = -1) -> None:
        self.wrong, self.leaves, self.dies = alone, free, dies
        self.asked: list[int] = []
        self.begun: list[int] = []

    def alone(self, step: int) -> tuple[Outcome, str]:
        self.asked.append(step)
        return outcome(step in self.wrong)

    def free(self, known: int) -> Iterator[tuple[Outcome, str]]:
        self.begun.append(known)
        for step in range(known, STEPS):
            if step == self.dies:
                raise KeyboardInterrupt
            yield outcome(step >= self.leaves)


def search(path: Path, run: Run, *, every: bool = False) -> FoundSteps:
    with State.open(path, "steps", {}) as state:
        return search_steps(STEPS, run, state, silent, every=every, free=True)


@pytest.mark.parametrize("first", [0, 1, 2, 24, 25, 48, 49])
def test_wherever_it_begins(first: int, tmp_path: Path) -> None:
    run = Run(range(first, STEPS), first)
    found = search(tmp_path / "state", run)
    assert (found.alone, found.free) == (first, first)
    assert len(run.asked) <= math.ceil(math.log2(STEPS)) + 2
    assert run.begun == [0]


def test_one_wrong_step_is_found_by_all_and_not_guessed_at(tmp_path: Path) -> None:
    with pytest.raises(UnjudgedError, match=r"steps 0 and 49 agree.*--all"):
        search(tmp_path / "state", Run(range(20, 21)))
    again = Run(range(20, 21))
    assert search(tmp_path / "state", again, every=True).alone == 20
    assert len(again.asked) == STEPS - 2
    with pytest.raises(UsageError, match="none of the 50 steps differs"):
        search(tmp_path / "innocent", Run(range(0)), every=True)
    drifting = search(tmp_path / "drift", Run(range(0), free=30))
    assert (drifting.alone, drifting.free) == (None, 30)


def test_a_killed_free_run_is_resumed(tmp_path: Path) -> None:
    killed = Run(range(40, STEPS), free=30, dies=12)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "state", killed)
    resumed = Run(range(40, STEPS), free=30)
    found = search(tmp_path / "state", resumed)
    assert (found.alone, found.free) == (40, 30)
    assert (resumed.asked, resumed.begun) == ([], [12])
    known = Run(range(40, STEPS), free=30)
    assert search(tmp_path / "state", known) == found
    assert (known.asked, known.begun) == ([], [])


class Late:
    """A backend whose prediction is off by a thousandth from a step on; notes which steps it is called for."""

    def __init__(self, backend: Any, first: int) -> None:
        self.backend, self.first, self.called = backend, first, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def call(self, calls: Any, plan: Any) -> Any:
        self.called.append(calls.step)
        predictions, records = self.backend.call(calls, plan)
        return {b: x * 1.001 if calls.step >= self.first else x for b, x in predictions.items()}, records


def recorded(side: Any, where: Path) -> Any:
    """A golden of the reference with floors, of the loop's own values alone."""
    from parity.golden import Golden, GoldenWriter
    from parity.paths.floors import make_variants, with_floors
    from parity.paths.loop import denoise, prepare
    from parity.paths.provenance import provenance

    loop = prepare(side.with_fresh_sampler())
    with GoldenWriter(where, provenance(loop)) as writer:
        for step in with_floors(denoise(loop, None), make_variants(side, seeds=1), None, None):
            writer.write_step(step)
    return Golden.open(where)


def test_the_reference_is_recorded_once_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parity.bisect import steps_judge
    from parity.bisect.steps_judge import record_reference
    from parity.golden import GoldenWriter, Provenance
    from parity.runs.recording.record import RecordRequest
    from parity.runs.request import Request
    from parity.settings import parse

    requests: list[RecordRequest] = []
    ends = [KeyboardInterrupt, None, None]

    def record(request: RecordRequest, say: Any) -> None:
        requests.append(request)
        told = Provenance("reference", "torch", "m", {}, 0, 4)
        end = ends.pop(0)
        with GoldenWriter(request.where, told, resume=request.resume, overwrite=request.overwrite):
            if end is not None:
                raise end

    monkeypatch.setattr(steps_judge, "record", record)
    where, wanted = tmp_path / "golden", Request("m", parse("torch"), parse("torchax"), steps=4)
    with pytest.raises(KeyboardInterrupt):
        record_reference(where, wanted, False, lambda *a, **k: None)
    for restart in (False, False, True):
        assert record_reference(where, wanted, restart, lambda *a, **k: None).complete
    assert [(r.resume, r.overwrite) for r in requests] == [(False, False), (True, False), (False, True)]
    assert all(r.floors and r.side == "reference" for r in requests)


def test_a_fault_from_the_third_step_on_against_a_recorded_reference(
    tmp_path: Path, tiny_side: Callable[..., Any]
) -> None:
    from parity.bisect.steps_judge import Carried, StepsJudge
    from tests.paths.sides import live

    golden = recorded(tiny_side("torch", steps=4), tmp_path / "golden")
    carried = Carried(tmp_path / "latents")
    late = Late(tiny_side("torchax", steps=4).backend, first=2)
    loaded = dataclasses.replace(tiny_side("torchax", steps=4), backend=late)
    judge = StepsJudge(golden, live(loaded, steps=4), carried)
    with State.open(tmp_path / "state", "steps", {}) as state:
        found = search_steps(4, judge, state, silent, every=False, free=True)
    assert (found.alone, found.free) == (2, 2)
    assert late.called == [0, 3, 1, 2, 0, 1, 2]

    # Gone on with from the kept latents, the free run comes to what it came to in one piece.
    (whole,) = [p.evidence for p in found.probes if p.subject == ("free", "2")]
    begun = judge.free(0)
    assert [next(begun)[0], next(begun)[0]] == ["good", "good"]
    late.called.clear()
    assert next(judge.free(2)) == ("bad", whole)
    assert late.called == [2]
    carried.path.write_bytes(carried.path.read_bytes()[:100])
    late.called.clear()
    assert next(judge.free(2)) == ("bad", whole)  # nothing to go on with: from the beginning
    assert late.called == [0, 1, 2]


def test_a_golden_without_floors_or_of_other_inputs(tmp_path: Path, tiny_side: Callable[..., Any]) -> None:
    from parity.bisect.steps_judge import Carried, StepsJudge, open_against, steps_of
    from parity.golden import Golden, GoldenWriter
    from parity.models.registry import DEFAULT_MODEL
    from parity.paths.live import InProcess
    from parity.paths.loop import denoise, prepare
    from parity.paths.provenance import provenance
    from parity.settings import parse
    from tests.paths.sides import live

    loop = prepare(tiny_side("torch").with_fresh_sampler())
    with GoldenWriter(tmp_path / "golden", provenance(loop)) as writer:
        with pytest.raises(UnjudgedError, match="holds no steps"):
            steps_of(Golden.open(tmp_path / "golden"))
        for step in denoise(loop, None):
            writer.write_step(step)
    golden = Golden.open(tmp_path / "golden")
    judge = StepsJudge(golden, live(tiny_side("torchax")), Carried(tmp_path / "latents"))
    with pytest.raises(UnjudgedError, match="holds no floors of its noise predictions"):
        judge.alone(0)
    open_against(golden, DEFAULT_MODEL, parse("torchax"), None, None, InProcess())
    changed = dataclasses.replace(golden.provenance, inputs={name: "0" * 32 for name in golden.provenance.inputs})
    other = dataclasses.replace(golden, manifest=dataclasses.replace(golden.manifest, provenance=changed))
    with pytest.raises(UsageError, match=r"recorded from other inputs: 'cond\..*' differs; give --stage1"):
        open_against(other, DEFAULT_MODEL, parse("torchax"), None, None, InProcess())
