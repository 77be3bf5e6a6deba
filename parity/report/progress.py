"""Progress: one moving line on a terminal, one line a stage in a log, and the total time where it ends.

    3 of 7  candidate (tracing and compiling)  0:20, about 0:40 left

A stage is named by its text and counted by `done` and `total`, so that a log gets each stage once however many steps
it counts. Nothing is ever written to stdout, which belongs to the result.

Cost. A thread that redraws four times a second on a terminal; nothing elsewhere.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from parity.report.output import printable, tell
from parity.report.timing import Timing, clock

WORTH_SAYING = 2.0
"""Seconds from which the total time is said."""


class Say(Protocol):
    """Names the stage that begins, or how far it has come."""

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Begin the stage `text`, or count it: `done` of `total` parts are finished, where that is known."""
        ...


@contextlib.contextmanager
def progress(console: Console, quiet: bool = False, command: str = "") -> Iterator[Say]:
    """Report progress on a console while the block runs.

    Args:
        console: of stderr. quiet: no progress. command: what is run, whose durations are remembered; empty for none.
    """
    if quiet:
        yield _nothing
        return
    timing = Timing(command)
    if console.is_terminal and not console.is_dumb_terminal:
        with _bar(console, timing) as bar:
            yield _Moving(bar, timing)
    else:
        yield _Lines(timing)
    timing.finish()
    if timing.total >= WORTH_SAYING:
        tell(f"finished in {clock(timing.total)}")


def _nothing(text: str, done: int | None = None, total: int | None = None) -> None:
    del text, done, total


class _Lines:
    """Each stage once, as a line."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._begun: set[str] = set()

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None:
        self._timing.begin(text)
        if text not in self._begun:
            self._begun.add(text)
            left = self._timing.left
            estimate = "" if math.isnan(left) else f"  {clock(self._timing.total)}, about {clock(left)} left"
            tell(f"{self._timing.place}  {text}{estimate}" if self._timing.place else text)


BAR = 20
"""Columns of the bar."""


class _Stage(ProgressColumn):
    """The stage, cut where the terminal ends: a line that wraps is not redrawn but added."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class _Whole(ProgressColumn):
    """How far the whole command is, as the last run's durations tell; without one, how far the stage is."""

    def __init__(self, timing: Timing) -> None:
        super().__init__(Column(no_wrap=True))
        self._timing = timing

    def render(self, task: Task) -> ProgressBar:
        left = self._timing.left
        if math.isnan(left):
            return ProgressBar(
                task.total, task.completed, BAR, pulse=task.total is None, animation_time=task.get_time()
            )
        return ProgressBar(max(self._timing.total + left, 1e-9), self._timing.total, BAR)


class _Count(ProgressColumn):
    """`3/50`, or nothing where the number of parts is unknown."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{int(task.completed)}/{int(task.total)}")


class _Time(ProgressColumn):
    """`0:20, about 0:40 left`: since the command began; what is left only where an earlier run tells."""

    def __init__(self, timing: Timing) -> None:
        super().__init__(Column(no_wrap=True))
        self._timing = timing

    def render(self, task: Task) -> Text:
        left = self._timing.left
        return Text(clock(self._timing.total) + ("" if math.isnan(left) else f", about {clock(left)} left"))


def _bar(console: Console, timing: Timing) -> Progress:
    columns = (SpinnerColumn(), _Stage(), _Whole(timing), _Count(), _Time(timing))
    # stdout is left alone: rich would otherwise send what is printed there to this console, and `--json` with it.
    return Progress(*columns, console=console, transient=True, refresh_per_second=4, redirect_stdout=False)


class _Moving:
    """One line that is redrawn."""

    def __init__(self, bar: Progress, timing: Timing) -> None:
        self._bar, self._timing = bar, timing
        self._task: TaskID | None = None
        self._text = ""

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None:
        self._timing.begin(text)
        if self._task is None or text != self._text:
            # A new task for a new stage: rich cannot make a known total unknown again.
            if self._task is not None:
                self._bar.remove_task(self._task)
            place = f"{self._timing.place}  " if self._timing.place else ""
            self._text, self._task = text, self._bar.add_task(printable(place + text, "utf-8"), total=None)
        self._bar.update(self._task, completed=done, total=total)
