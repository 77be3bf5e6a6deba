"""The one way out: everything that parity writes to a terminal or to a file for people passes here.

Results go to stdout (`show`), everything else to stderr (`tell`), files are whole or absent (`write`). Names can come
from somebody else's file, so text for a terminal passes `printable`. A reader that has gone (`| head`) is no error: the
exit code stays that of the verdict.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from parity.errors import UsageError
from parity.files import replacing
from parity.redact import printable, without_secrets

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """stdout or stderr, for what is laid out or moves. rich decides whether it is a terminal and keeps NO_COLOR."""
    from rich.console import Console

    # Highlighting, markup and emoji are off: a site's brackets and colons are part of its name.
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


BLOCK = 1 << 18
"""Characters of a result that are written at a time."""


def show(text: str | Iterable[str]) -> None:
    """Write a result, whole or in pieces, to stdout, with a newline at its end.

    The text is a rendered document: its own format has escaped what names hold.
    """
    held: list[str] = []
    size, last = 0, ""
    for piece in (text,) if isinstance(text, str) else text:
        held.append(piece)
        size, last = size + len(piece), piece or last
        if size >= BLOCK:
            if not _write(sys.stdout, "".join(held)):
                return
            held, size = [], 0
    _write(sys.stdout, "".join(held) + ("" if last.endswith("\n") else "\n"))


def tell(text: str) -> None:
    """Write one line to stderr, without the secrets of URLs; where there is no stderr, or no space for it, nothing."""
    if sys.stderr is not None:
        with contextlib.suppress(UsageError):
            _write(sys.stderr, printable(without_secrets(text), sys.stderr.encoding) + "\n")


def _write(stream: TextIO | None, text: str) -> bool:
    """Write and flush; returns whether somebody reads on.

    Raises:
        UsageError: the stream is closed, or takes no more.
    """
    if stream is None:
        raise UsageError("the result cannot be written: stdout is closed")
    encoding = stream.encoding or "ascii"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
        return False
    except OSError as error:
        _discard(stream)
        raise UsageError(f"the result cannot be written to stdout: {error.strerror}") from error
    return True


def _discard(stream: TextIO) -> None:
    """Nobody reads on: what is still buffered would fail again when Python flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write(path: Path, text: str | Callable[[], str], option: str, *, over: bool = True) -> None:
    """Write a file under a temporary name beside it, then rename it: a file is never half there.

    Args:
        text: of the file, or a function that makes it. option: that named the file, for the message.
        over: whether a file of that name is replaced.

    Raises:
        UsageError: the file cannot be written; without `over`, it is there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = (text if isinstance(text, str) else text()).encode("utf-8", "backslashreplace")
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: no name to put a file under
            path.write_bytes(content)
            return
        with replacing(path, over=over) as temporary:
            temporary.write_bytes(content)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{option}: cannot write '{path}': {reason}") from None
