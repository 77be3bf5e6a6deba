"""Streams of records: what follows their steps, and where the records of a run go while they are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from parity.paths.plan import Ends
from parity.paths.side import Pair
from parity.records import Facts, StepRecords
from parity.runs.request import Say


def until_end(steps: Iterable[Any], ends: Ends) -> Iterator[StepRecords]:
    """The steps of a stream; what follows them is taken into `ends`."""
    for step in steps:
        if isinstance(step, Ends):
            vars(ends).update(vars(step))
        else:
            yield step


def counted(steps: Iterable[StepRecords], text: str, total: int, say: Say) -> Iterator[StepRecords]:
    """The steps, with a line for each once it is there."""
    for step in steps:
        say(text, step.step, total)
        yield step


def exhaust(steps: Iterator[StepRecords]) -> None:
    """Take what follows the last step."""
    for _ in steps:
        continue


class Sink:
    """Takes the records of a run as they are made, check by check (`logic`, `precision`). This one keeps nothing."""

    def begin(self, facts: Pair[Facts], name: str) -> str | None:
        """A check begins; returns the folder in which the sides leave their stage files, None for none."""
        return None

    def step(self, reference: StepRecords, candidate: StepRecords) -> None:
        """A step of both sides."""

    def closer(self, reference: StepRecords, candidate: StepRecords) -> None:
        """What a closer look at a step of the check observed."""

    def finish(self, name: str, ends: Pair[Ends]) -> None:
        """The check is over."""

    def frames(self, name: str, frames: np.ndarray) -> None:
        """A decoded video [B, 3, frames, height, width], some -1 to 1."""


class Rounds(Sink):
    """A sink that keeps what the sides of each check came to, and hands everything on.

    Attributes:
        inner: the sink of the run. ends: check -> what both sides ended in, in the order of the checks.
    """

    def __init__(self, inner: Sink) -> None:
        self.inner, self.ends = inner, dict[str, Pair[Ends]]()
        for name in ("begin", "step", "closer", "frames"):
            setattr(self, name, getattr(inner, name))

    def finish(self, name: str, ends: Pair[Ends]) -> None:
        self.inner.finish(name, ends)
        self.ends[name] = ends
