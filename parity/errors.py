"""The errors a user can cause, and the exit code each ends in.

Every message says what was wrong, where, and what to do next. `parity.cli` prints the message without a traceback
and exits with `exit_code`; anything else that escapes is a defect of parity and keeps its traceback.
"""

from __future__ import annotations

import signal


def summary(error: BaseException) -> str:
    """An exception in one line: its type, and the first line of what it says, if it can say it."""
    try:
        lines = str(error).strip().splitlines()
    except BaseException as worse:  # somebody's own __str__, which may raise anything
        lines = [f"(its message cannot be read: {type(worse).__name__})"]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class ParityError(Exception):
    """A failure that is explained to the user; base of the ones below."""

    exit_code = 2


class UsageError(ParityError):
    """Wrong usage or bad input: an unknown setting, a missing or misshapen file. Exit code 2."""

    exit_code = 2


class Terminated(BaseException):
    """SIGTERM or SIGHUP was received.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        self.number = number


class UnjudgedError(ParityError):
    """The comparison cannot be judged: nothing in common, an empty or incomparable golden. Exit code 125."""

    exit_code = 125
