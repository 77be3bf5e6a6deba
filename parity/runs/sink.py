"""Where the records of a run go while they are made, and what becomes of its decoded frames."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from parity.paths.side import Pair
from parity.records import Facts, StepRecords
from parity.runs.stream import Ends


class Sink(Protocol):
    """Takes the records of a run as they are made, check by check (`logic`, `precision`)."""

    def begin(self, facts: Pair[Facts], name: str) -> str | None:
        """A check begins; returns the folder in which the sides leave their stage files, None for none."""
        ...

    def step(self, reference: StepRecords, candidate: StepRecords) -> None: ...

    def closer(self, reference: StepRecords, candidate: StepRecords) -> None:
        """What a closer look at a step of the check observed."""
        ...

    def finish(self, ends: Pair[Ends]) -> None:
        """The check is over."""
        ...

    def frames(self, name: str, frames: np.ndarray) -> None:
        """A decoded video [B, 3, frames, height, width], some -1 to 1."""
        ...


class NoSink:
    """Keeps nothing."""

    def begin(self, facts: Pair[Facts], name: str) -> str | None:
        return None

    def step(self, reference: StepRecords, candidate: StepRecords) -> None: ...

    def closer(self, reference: StepRecords, candidate: StepRecords) -> None: ...

    def finish(self, ends: Pair[Ends]) -> None: ...

    def frames(self, name: str, frames: np.ndarray) -> None: ...
