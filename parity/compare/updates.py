"""Values that scripts name behind an update: a loop that is recorded with its scheduler has them in the next step, as
the scheduler ends a step; one without it in the step that they were made in, as its steps end with the next call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from parity.compare.values import LATENTS
from parity.golden.disk.part import named
from parity.records import AFTER, LOOP, LOOP_STAGE, OUTSIDE, SCHEDULE, Key, StepRecords


@dataclass
class Updates:
    """Moves them to the step in which the other side has them.

    Attributes:
        modules: names of both sides' modules.
        _late: the position of the side that is without its scheduler, where the other is not; else None.
        _sites: what is moved; None before the first step. _held: of the step before.
    """

    modules: tuple[Collection[str], Collection[str]]
    _late: int | None = None
    _sites: frozenset[str] | None = None
    _held: StepRecords = field(default_factory=lambda: StepRecords(OUTSIDE, ()))

    def step(self, *both: StepRecords) -> tuple[StepRecords, StepRecords]:
        """Both sides' records of a step, of the one without its scheduler those that the other has in it.

        Args:
            both: the reference's and the candidate's, of the steps of the loop in order, then of what is outside it.
        """
        if self._sites is None:
            self._begin(both)
        if self._late is None or not self._sites:
            return both[0], both[1]
        own, before = both[self._late], self._held.at(both[self._late].step)
        rest, self._held = own.where(lambda key: not self._is_late(key)), own.where(self._is_late)
        if own.step == OUTSIDE:
            floors = {replace(key, stage=AFTER): floor for key, floor in before.floors.items()}
            before = replace(before.renamed(lambda key: replace(key, stage=AFTER)), floors=floors)
        own = replace(rest, records=(*before.records, *rest.records), floors={**before.floors, **rest.floors})
        return (own, both[1]) if self._late == 0 else (both[0], own)

    def _begin(self, both: Sequence[StepRecords]) -> None:
        first, second = ({r.key.site: r.key for r in named(side.records)} for side in both)
        self._sites = frozenset()
        if (LATENTS in first) != (LATENTS in second):
            self._late = int(LATENTS in first)
            own, other = (second, first) if self._late else (first, second)
            self._sites = frozenset(site for site in own.keys() - other if self._is_named(own[site]))

    def _is_late(self, key: Key) -> bool:
        return key.stage == LOOP_STAGE and key.site in (self._sites or ())

    def _is_named(self, key: Key) -> bool:
        """Whether a script named it in its loop, outside the model."""
        own = self.modules[self._late or 0]
        return key.stage == LOOP_STAGE and not key.branch and key.module not in {LOOP, SCHEDULE, *own}
