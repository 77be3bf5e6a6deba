"""Values that scripts name around an update: a loop that is recorded with its scheduler has what comes behind it in the
next step, as the scheduler ends a step; one without it in the step before, as its steps end with the next call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from parity.compare.values import LATENTS
from parity.golden.disk.part import named
from parity.records import AFTER, LOOP, LOOP_STAGE, OUTSIDE, SCHEDULE, Floor, Key, Record, StepRecords


@dataclass
class Updates:
    """Gives each step of the side without its scheduler as many values of a name as the other side's has, in order.

    Attributes:
        modules: names of both sides' modules.
        _late: the position of the side that is without its scheduler, where the other is not.
        _held: by site what is still to come of that side; None before the first step.
    """

    modules: tuple[Collection[str], Collection[str]]
    _late: int = 0
    _held: dict[str, list[tuple[Record, Floor | None]]] | None = None

    def step(self, *both: StepRecords) -> tuple[StepRecords, StepRecords]:
        """Both sides' records of a step, each value of such a name in the step in which the other side has it.

        Args:
            both: the reference's and the candidate's, of the steps of the loop in order, then of what is outside it.
        """
        if self._held is None:
            self._held = self._begin(both)
        if not self._held:
            return both[0], both[1]
        own, other = both[self._late], both[1 - self._late]
        for r in own.records:
            if self._is_late(r.key):
                self._held[r.key.site].append((r, own.floors.get(r.key)))
        rest, found = own.where(lambda key: not self._is_late(key)), self._taken(own.step, other)
        floors = {r.key: floor for r, floor in found if floor is not None}
        own = replace(rest, records=(*(r for r, _ in found), *rest.records), floors={**floors, **rest.floors})
        return (own, other) if self._late == 0 else (other, own)

    def _begin(self, both: Sequence[StepRecords]) -> dict[str, list[tuple[Record, Floor | None]]]:
        stepped = [any(r.key.site == LATENTS for r in named(side.records)) for side in both]
        if stepped[0] == stepped[1]:
            return {}
        self._late = stepped.index(False)
        many = [Counter(r.key.site for r in named(side.records) if self._is_named(r.key)) for side in both]
        return {site: [] for site in many[self._late] - many[1 - self._late]}

    def _taken(self, step: int, other: StepRecords) -> list[tuple[Record, Floor | None]]:
        """What is of a step: of what is outside the loop all that is left."""
        many, found = Counter(r.key.site for r in named(other.records)), []
        for site, queue in (self._held or {}).items():
            taken = len(queue) if step == OUTSIDE else many[site]
            stage = AFTER if step == OUTSIDE else LOOP_STAGE
            for call, (r, floor) in enumerate(queue[:taken]):
                found.append((replace(r, key=replace(r.key, stage=stage, step=step, call=call)), floor))
            del queue[:taken]
        return found

    def _is_late(self, key: Key) -> bool:
        return key.stage == LOOP_STAGE and key.site in (self._held or {})

    def _is_named(self, key: Key) -> bool:
        """Whether a script named it in its loop, outside the model."""
        known = {LOOP, SCHEDULE, *self.modules[self._late]}
        return key.stage == LOOP_STAGE and not key.branch and key.module not in known
