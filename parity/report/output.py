"""The one way out: everything that parity writes to a terminal or to a file for people passes here.

Results go to stdout (`show`), everything else to stderr (`tell`), files are whole or absent (`write`). Names can come
from somebody else's file, so text for a terminal passes `printable`. A reader that has gone (`| head`) is no error: the
exit code stays that of the verdict.

Progress is one moving line on a terminal, one line a stage in a log, and the total time at the end, all on stderr. A
stage is named by its text and counted by `done` and `total`, so that a log gets each stage once however many steps it
counts.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from parity.errors import Say, UsageError
from parity.files import replacing
from parity.redact import printable, without_secrets

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """stdout or stderr, for what is laid out or moves. rich decides whether it is a terminal and keeps NO_COLOR."""
    from rich.console import Console

    # Highlighting, markup and emoji are off: a site's brackets and colons are part of its name.
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def show(text: str | Iterable[str]) -> None:
    """Write a result, whole or in pieces, to stdout, with a newline at its end.

    The text is a rendered document: its own format has escaped what names hold.
    """
    _write(sys.stdout, (text,) if isinstance(text, str) else text)


def tell(text: str) -> None:
    """Write one line to stderr, without the secrets of URLs; where there is no stderr, or no space for it, nothing."""
    if sys.stderr is not None:
        with contextlib.suppress(UsageError):
            _write(sys.stderr, (printable(without_secrets(text), sys.stderr.encoding),))


def _write(stream: TextIO | None, pieces: Iterable[str]) -> None:
    """Write text, with a newline at its end, and flush it, as far as somebody reads it.

    Raises:
        UsageError: the stream is closed, or takes no more.
    """
    if stream is None:
        raise UsageError("the result cannot be written: stdout is closed")
    encoding, piece = stream.encoding or "ascii", ""
    try:
        for piece in filter(None, pieces):
            stream.write(piece.encode(encoding, "backslashreplace").decode(encoding))
        stream.write("" if piece.endswith("\n") else "\n")
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
    except OSError as error:
        _discard(stream)
        raise UsageError(f"the result cannot be written to stdout: {error.strerror}") from error


def _discard(stream: TextIO) -> None:
    """Nobody reads on: what is still buffered would fail again when Python flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write(path: Path, text: str | Callable[[], str], option: str) -> None:
    """Write a file under a temporary name beside it, then rename it: a file is never half there.

    Args:
        text: of the file, or a function that makes it. option: that named the file, for the message.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = (text if isinstance(text, str) else text()).encode("utf-8", "backslashreplace")
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: no name to put a file under
            path.write_bytes(content)
            return
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{option}: cannot write '{path}': {reason}") from None


# --- progress

WORTH_SAYING = 2.0
"""Seconds from which the total time is shown."""


@contextlib.contextmanager
def progress(console: Console, quiet: bool = False) -> Iterator[Say]:
    """Report progress on a console while the block runs.

    Args:
        console: of stderr. quiet: no progress.
    """
    if quiet:
        yield silent
        return
    began = time.monotonic()
    moves = console.is_terminal and not console.is_dumb_terminal
    with _moving(console) if moves else contextlib.nullcontext(_Lines()) as say:
        yield say
    taken = time.monotonic() - began
    if taken >= WORTH_SAYING:
        tell(f"finished in {timedelta(seconds=round(taken))}")


def silent(text: str, done: int | None = None, total: int | None = None) -> None:
    """In place of progress."""
    del text, done, total


class _Lines:
    """Each stage once, as a line."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None:
        if text not in self._begun:
            self._begun.add(text)
            tell(text)


@contextlib.contextmanager
def _moving(console: Console) -> Iterator[Say]:
    """One line that is redrawn, cut where the terminal ends: the time since the start, how far it is, and the stage."""
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    texts = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("fields[count]", "description"))
    # stdout is left alone: rich would otherwise send what is printed there to this console, and the JSON with it.
    with Progress(TimeElapsedColumn(), *texts, console=console, transient=True, redirect_stdout=False) as line:
        task = line.add_task("", count="")

        def say(text: str, done: int | None = None, total: int | None = None) -> None:
            count = "" if total is None else f"{done or 0}/{total}"
            line.update(task, description=printable(text, "utf-8"), count=count)

        yield say
