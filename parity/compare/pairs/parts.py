"""Parts of a step's records: of one stage, or what two sides have in common."""

from __future__ import annotations

from collections.abc import Callable

from parity.records import AFTER, Key, StepRecords


def of_stage(step: StepRecords, *, after: bool) -> StepRecords:
    """What of a step comes after the loop, or what does not."""
    return _where(step, lambda key: (key.stage == AFTER) == after)


def in_common(reference: StepRecords, candidate: StepRecords) -> tuple[StepRecords, StepRecords]:
    """What both have: where one ended within the step, what the other has more is no difference."""
    both = {r.key for r in reference.records} & {r.key for r in candidate.records}
    return _where(reference, both.__contains__), _where(candidate, both.__contains__)


def _where(step: StepRecords, kept: Callable[[Key], bool]) -> StepRecords:
    records = tuple(r for r in step.records if kept(r.key))
    return StepRecords(step.step, records, {key: floor for key, floor in step.floors.items() if kept(key)})
