"""The errors a user can cause, and the exit code each ends in.

Every message says what was wrong, where, and what to do next. `parity.cli` prints the message without a traceback
and exits with `exit_code`; anything else that escapes is an internal error and keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
import signal
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol


class Say(Protocol):
    """Names the stage that begins, or how far it has come: `done` of `total` parts, where that is known."""

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None: ...


def summary(error: BaseException) -> str:
    """An exception in one line: its type, and the first line of what it says, if it can say it; two, where the first
    announces another."""
    try:
        lines = str(error).strip().splitlines()
    except BaseException as worse:  # somebody's own __str__, which may raise anything
        lines = [f"(its message cannot be read: {type(worse).__name__})"]
    said = " ".join(line.strip() for line in lines[: 1 + (lines[0].rstrip().endswith(":"))]) if lines else ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def line_of(error: BaseException, file: Path) -> str:
    """The innermost line of the user's file, else of a file beside it, that an error passed through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    return line_in(file, "".join(traceback.format_tb(error.__traceback__))) or file.name


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def line_in(file: Path, trace: str) -> str:
    """The innermost line of a port's file in a traceback, else of a file in its folder; empty where there is none."""
    file = file.resolve()
    frames = [(Path(m["file"]), m["line"]) for m in _FRAME.finditer(trace)]
    if "most recent call first" in trace:
        frames.reverse()
    for near in (lambda f: f == file, lambda f: f.parent == file.parent):
        own = [(f, line) for f, line in frames if near(f.resolve())]
        if own:
            return f"{own[-1][0].name}:{own[-1][1]}"
    return ""


def shown(value: object) -> str:
    """A value for an error message: short, on one line, whatever it is, at no cost."""
    if isinstance(value, (dict, list)) and len(value) > 8:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)} entries"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = ascii(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` of the name that is nearest; empty where none is near."""
    near = difflib.get_close_matches(text, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


class ParityError(Exception):
    """A failure that is explained to the user; base of the ones below."""

    exit_code = 2


class UsageError(ParityError):
    """Wrong usage or bad input: an unknown setting, a missing or misshapen file. Exit code 2."""


class MalformedError(ValueError):
    """What stands in a file is not what its format allows: which and why, without the file's name."""


class Terminated(BaseException):
    """SIGTERM or SIGHUP was received.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        self.number = number


class InconclusiveError(ParityError):
    """The comparison cannot be judged: nothing in common, an empty or incomparable golden. Exit code 125."""

    exit_code = 125


class PassingError(BaseException):
    """Parity's own, on its way through a port's code; not an Exception, so that no `except Exception` takes it."""
