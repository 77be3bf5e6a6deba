"""Where a golden lies: a folder here, or one behind a URL, through the same six operations.

Problem. Recording, diffing and merging should not care whether the golden is local or in a bucket, and a kill or a
full disk must never leave half a file under a name that counts.

How. `put` writes under a temporary name, syncs and renames; `map` opens a regular file of exactly the expected size
and maps it, so values are paged in as they are used. Links that lead out of the folder are not followed. URLs are in
`parity.golden.remote`, imported only for them.

Cost. Two syncs a file.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from parity.errors import UsageError
from parity.golden.format import damaged


class Store(Protocol):
    """A flat folder of files. All methods raise UsageError, naming the file, for whatever goes wrong.

    Attributes:
        name: what the user called it; never stored.
    """

    name: str

    def read(self, file: str, most: int) -> bytes | None:
        """A small file's content; None where there is no such file."""

    def map(self, file: str, size: int) -> memoryview:
        """A file of exactly `size` bytes, mapped into memory."""

    def put(self, file: str, chunks: Iterable[Any]) -> None:
        """Write a file, all of it or nothing, in place of any that was there."""

    def create(self) -> None:
        """Make the folder, where folders exist."""

    def files(self) -> list[str]:
        """The names of the files in it, in order."""

    def remove(self, file: str) -> None:
        """Remove a file."""


def open_store(where: str | os.PathLike[str]) -> Store:
    """The store at a path or URL; nothing is read or made yet.

    Raises:
        UsageError: an unknown URL scheme, or one whose package is not installed.
    """
    text = os.fspath(where)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        from parity.golden.remote import RemoteStore

        return RemoteStore(text)
    return LocalStore(text)


def map_file(descriptor: int, size: int, where: str) -> memoryview:
    """Map an open file, once it is seen to be a regular file of `size` bytes."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise damaged(where, "it is not a regular file")
    if found.st_size != size:
        raise damaged(where, f"it has {found.st_size} bytes where its golden lists {size}")
    if size == 0:  # cannot be mapped
        return memoryview(b"")
    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))


def write_file(descriptor: int, chunks: Iterable[Any]) -> None:
    """Write chunks of bytes to a descriptor, whole, and sync it."""
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn the system's refusals into sentences that name the file and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UsageError(
                f"{where}: no space left ({os.strerror(error.errno)}); the steps written before are kept: "
                "free some space and go on with --resume"
            ) from error
        reason = error.strerror or type(error).__name__
        raise UsageError(f"{where}: {reason}; check the path and its permissions") from error


class LocalStore:
    """A folder on this machine."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._folder = Path(path)

    def _where(self, file: str) -> str:
        return os.path.join(self.name, file)

    def _open(self, file: str) -> int:
        path = self._folder / file
        if path.is_symlink() and path.resolve().parent != self._folder.resolve():
            raise damaged(self._where(file), "it is a link that leads out of its golden")
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block the reader

    def read(self, file: str, most: int) -> bytes | None:
        where = self._where(file)
        try:
            with explained(where):
                descriptor = self._open(file)
        except UsageError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return None
            raise
        with explained(where), open(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise damaged(where, "it is not a regular file")
            content = opened.read(most + 1)
        if len(content) > most:
            raise damaged(where, f"it is longer than {most} bytes")
        return content

    def map(self, file: str, size: int) -> memoryview:
        where = self._where(file)
        try:
            with explained(where):
                descriptor = self._open(file)
        except UsageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise damaged(where, "the file is missing") from None
            raise
        with explained(where):
            try:
                return map_file(descriptor, size, where)
            finally:
                os.close(descriptor)

    def put(self, file: str, chunks: Iterable[Any]) -> None:
        temporary = self._folder / f".{file}.tmp"
        with explained(self._where(file)):
            temporary.unlink(missing_ok=True)  # of a run that was killed
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                try:
                    write_file(descriptor, chunks)
                finally:
                    os.close(descriptor)
                os.replace(temporary, self._folder / file)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            self._sync()

    def _sync(self) -> None:
        """Make renames last: the folder itself is synced."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def create(self) -> None:
        with explained(self.name):
            self._folder.mkdir(parents=True, exist_ok=True)

    def files(self) -> list[str]:
        with explained(self.name):
            return sorted(os.listdir(self._folder)) if self._folder.is_dir() else []

    def remove(self, file: str) -> None:
        with explained(self._where(file)):
            (self._folder / file).unlink(missing_ok=True)
