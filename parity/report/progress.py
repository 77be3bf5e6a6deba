"""Progress: one moving line on a terminal, one line a stage in a log, and the total time at the end.

A stage is named by its text and counted by `done` and `total`, so that a log gets each stage once however many steps
it counts. Nothing is ever written to stdout, which belongs to the result.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from parity.report.output import printable, tell

WORTH_SAYING = 2.0
"""Seconds from which the total time is shown."""


class Say(Protocol):
    """Names the stage that begins, or how far it has come: `done` of `total` parts, where that is known."""

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None: ...


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
        moving = _Moving(began)
        # stdout is left alone: rich would otherwise send what is printed there to this console, and the JSON with it.
        with Live(get_renderable=moving.line, console=console, transient=True, redirect_stdout=False):
            yield moving
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


class _Moving:
    """One line that is redrawn: the stage, how far it is, and the time since the start."""

    def __init__(self, began: float) -> None:
        self._began, self._text, self._count = began, "", ""

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None:
        self._text = printable(text, "utf-8")
        self._count = "" if total is None else f"  {done or 0}/{total}"

    def line(self) -> Text:
        """The line as it is now; cut where the terminal ends, because a line that wraps is not redrawn but added."""
        told = f"{clock(time.monotonic() - self._began)}{self._count}  {self._text}"
        return Text(told, no_wrap=True, overflow="ellipsis")
