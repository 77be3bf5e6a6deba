"""The closer look of a kept run: its place and its records, so that `explain` is never coarser than the run was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from parity.causes.request import ExplainRequest
from parity.compare.births import excuses
from parity.compare.conclude import divergence
from parity.compare.judge import Judge
from parity.compare.pairs.lone import met
from parity.compare.result import Origin, Result
from parity.golden import Golden
from parity.records import LOOP, PORT, StepRecords

FOLDER = "closer"
"""Of a check's records, with one golden a side."""


def looked_closer(
    request: ExplainRequest, found: Result, ours: StepRecords, theirs: StepRecords
) -> tuple[Result, StepRecords, StepRecords]:
    """The comparison with the place that a kept run came to, and both sides' records with those of its closer look.

    Args:
        found: of the records that the run kept first. ours, theirs: of the step of its origin.

    Raises:
        UsageError: a golden of the closer look is damaged.
    """
    assert found.origin is not None
    folder, told = Path(request.reference).parent / FOLDER, request.looked_at(found.origin.key)
    if request.kept is None or not (folder / "candidate").is_dir() or told == found.origin.key:
        return found, ours, theirs
    inside, other = Golden.open(folder / "reference"), Golden.open(folder / "candidate")
    if ours.step not in inside.steps or ours.step not in other.steps:
        return found, ours, theirs
    is_port = other.provenance.backend == PORT
    near, far = inside.read_step(ours.step), other.read_step(ours.step)
    far = met(near, far) if is_port else far
    judge = Judge(excuses(found.differing_settings), port=is_port)
    sites = tuple(d for d in judge.step(near, far) if d.key.module != LOOP)
    at = next((d for d in sites if d.key == told), None)
    if at is None:
        return found, ours, theirs
    birth = at.birth or "module"
    why = divergence(at, birth, outputs_match=found.why.outputs_match, sites=sites)
    placed = replace(found, origin=Origin(at.key, birth), why=why, closer=sites)
    return placed, _with(ours, near), _with(theirs, far)


def _with(step: StepRecords, closer: StepRecords) -> StepRecords:
    """A step with the records of a closer look that it has not."""
    held = {r.key for r in step.records}
    more = tuple(r for r in closer.records if r.key not in held)
    floors = {r.key: closer.floors[r.key] for r in more if r.key in closer.floors}
    return StepRecords(step.step, (*step.records, *more), {**step.floors, **floors})
