"""Progress: one moving line on a terminal, one line a stage in a log, and the total time at the end.

A stage is named by its text and counted by `done` and `total`, so that a log gets each stage once however many steps
it counts. Nothing is ever written to stdout, which belongs to the result.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID
from rich.table import Column
from rich.text import Text

from parity.report.output import printable, tell

WORTH_SAYING = 2.0
"""Seconds from which the total time is shown."""


class Say(Protocol):
    """Names the stage that begins, or how far it has come."""

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Begin the stage `text`, or count it: `done` of `total` parts are finished, where that is known."""
        ...


@contextlib.contextmanager
def progress(console: Console, quiet: bool = False) -> Iterator[Say]:
    """Report progress on a console while the block runs.

    Args:
        console: of stderr. quiet: no progress.
    """
    if quiet:
        yield _nothing
        return
    began = time.monotonic()
    if console.is_terminal and not console.is_dumb_terminal:
        with _bar(console, began) as bar:
            yield _Moving(bar)
    else:
        yield _Lines()
    taken = time.monotonic() - began
    if taken >= WORTH_SAYING:
        tell(f"finished in {clock(taken)}")


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _nothing(text: str, done: int | None = None, total: int | None = None) -> None:
    del text, done, total


class _Lines:
    """Each stage once, as a line."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None:
        if text not in self._begun:
            self._begun.add(text)
            tell(text)


class _Stage(ProgressColumn):
    """The stage, cut where the terminal ends: a line that wraps is not redrawn but added."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class _Told(ProgressColumn):
    """A text of the task, whole."""

    def __init__(self, text: Callable[[Task], str]) -> None:
        super().__init__(Column(no_wrap=True))
        self._text = text

    def render(self, task: Task) -> Text:
        return Text(self._text(task))


def _bar(console: Console, began: float) -> Progress:
    columns = (
        SpinnerColumn(),
        _Stage(),
        BarColumn(20),
        _Told(lambda task: "" if task.total is None else f"{int(task.completed)}/{int(task.total)}"),
        _Told(lambda task: clock(time.monotonic() - began)),
    )
    # stdout is left alone: rich would otherwise send what is printed there to this console, and the JSON with it.
    return Progress(*columns, console=console, transient=True, refresh_per_second=4, redirect_stdout=False)


class _Moving:
    """One line that is redrawn."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._text = ""

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None:
        if self._task is None or text != self._text:
            # A new task for a new stage: rich cannot make a known total unknown again.
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._text, self._task = text, self._bar.add_task(printable(text, "utf-8"), total=None)
        self._bar.update(self._task, completed=done, total=total)
