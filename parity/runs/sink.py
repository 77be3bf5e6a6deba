"""What a round needs beside its pair: where its records go, the proof that settings took effect, its token grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from parity.compare.findings import Grid
from parity.compare.result import Check
from parity.golden.records import StepRecords
from parity.paths.loaded import Loaded
from parity.reached import Reached
from parity.runs.pairing import Pairing

REACHED = "settings reached"
"""Name of the check that `reached_check` makes."""


Beside = Mapping[str, np.ndarray]
"""Final latents of the runs that were made beside a pair, by name: those that measured its floors."""


class Sink(Protocol):
    """Takes the records of a run as they are made, round by round (`structure`, `precision`).

    `finish` ends a round. `frames` takes decoded videos [B, 3, frames, height, width], some -1 to 1, by name.
    """

    def begin(self, pairing: Pairing, name: str) -> None: ...

    def step(self, reference: StepRecords, candidate: StepRecords) -> None: ...

    def finish(self, pairing: Pairing, beside: Beside) -> None: ...

    def frames(self, name: str, frames: np.ndarray) -> None: ...


class NoSink:
    """Keeps nothing."""

    def begin(self, pairing: Pairing, name: str) -> None: ...

    def step(self, reference: StepRecords, candidate: StepRecords) -> None: ...

    def finish(self, pairing: Pairing, beside: Beside) -> None: ...

    def frames(self, name: str, frames: np.ndarray) -> None: ...


def reached_check(pairing: Pairing) -> Check:
    """One line that says which settings proved that their code ran."""

    def names(reached: Reached) -> str:
        return ", ".join(reached.expected) or "none given"

    sides = (pairing.reference.side, pairing.candidate.side)
    detail = "; ".join(f"{s.role}: {names(s.reached)}" for s in sides)
    return Check(REACHED, "pass", f"code replaced by settings ran ({detail})")


def token_grid(side: Loaded) -> Grid | None:
    """How a side's image tokens lie, so that a difference in their rows can be placed in frames."""
    grid = side.family.token_grid(side.case)
    return None if grid is None else Grid(*grid)
