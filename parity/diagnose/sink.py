"""What a round needs beside its pair: where its records go, the proof that settings took effect, its token grid."""

from __future__ import annotations

from typing import Protocol

from parity.compare.findings import Grid
from parity.compare.result import Check
from parity.diagnose.pairing import Pairing
from parity.golden.records import StepRecords
from parity.paths.side import Side
from parity.reached import Reached

REACHED = "settings reached"
"""Name of the check that `reached_check` makes."""


class Sink(Protocol):
    """Takes the records of a run as they are made, round by round (`structure`, `precision`)."""

    def begin(self, pairing: Pairing, name: str) -> None: ...

    def step(self, reference: StepRecords, candidate: StepRecords) -> None: ...

    def finish(self, pairing: Pairing) -> None: ...


class NoSink:
    """Keeps nothing."""

    def begin(self, pairing: Pairing, name: str) -> None: ...

    def step(self, reference: StepRecords, candidate: StepRecords) -> None: ...

    def finish(self, pairing: Pairing) -> None: ...


def reached_check(pairing: Pairing) -> Check:
    """One line that says which settings proved that their code ran."""

    def names(reached: Reached) -> str:
        return ", ".join(reached.expected) or "none given"

    sides = (pairing.reference.side, pairing.candidate.side)
    detail = "; ".join(f"{s.role}: {names(s.reached)}" for s in sides)
    return Check(REACHED, "pass", f"code replaced by settings ran ({detail})")


def token_grid(side: Side) -> Grid | None:
    """How a side's image tokens lie, so that a difference in their rows can be placed in frames."""
    grid = side.family.token_grid(side.case)
    return None if grid is None else Grid(*grid)
