"""Small files that a user names or that came from elsewhere: read whole, or refused before anything is read.

A pipe or a device would block or never end, a huge file would fill the memory: both are refused by looking first.
What is written gets its name when it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parity.errors import UsageError


def unused(name: str) -> str:
    """The first of `name`, `name-2`, ... by which nothing is called here."""
    names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
    return next(free for free in names if not os.path.lexists(free))


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """A regular file's content.

    Args:
        most: bytes.

    Raises:
        OSError: there is none, it is no regular file, it cannot be read, or it is longer than `most`.
    """
    with opened(path) as (descriptor, size), os.fdopen(descriptor, "rb", closefd=False) as file:
        content = file.read(most + 1) if size <= most else b""
    if size > most or len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[tuple[int, int]]:
    """A descriptor of a regular file, and its size in bytes.

    Raises:
        OSError: there is none, or it is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block the reader
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        yield descriptor, found.st_size
    finally:
        os.close(descriptor)


def read_object(path: Path, most: int) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no file.

    Raises:
        UsageError: it cannot be read, or is no JSON object.
    """
    try:
        content = json.loads(read_bytes(path, most))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path`, to be written within it and renamed to `path` at the end; nothing is left where that fails.

    Its name is known before the file is there: a signal that comes as soon as it is leaves nothing either. Nobody can
    foresee it: in a folder that others write to, a link may not wait there.

    Raises:
        OSError: it cannot be renamed.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:  # a signal in the line above too
        temporary.unlink(missing_ok=True)
        raise
