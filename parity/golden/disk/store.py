"""Where a golden lies: a folder here, or one behind a URL, through the same operations.

A kill or a full disk never leaves half a file under a name that counts: it is written under a temporary one, synced
and renamed. URLs (gs://, s3://, hf://, memory:// and whatever else fsspec has) are read and written through a temporary
file; an object of a bucket appears only when its upload is complete, so the order (part, then `golden.json`) keeps a
killed recording readable just as on a disk. fsspec is imported for URLs alone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from parity.errors import MalformedError, ParityError, UsageError
from parity.files import opened, replacing
from parity.golden.disk.format import damaged
from parity.redact import secrets_of, without_secrets

T = TypeVar("T")
INSTALL = "install it with: pip install 'tpu-parity[remote]'"


class MissingError(UsageError):
    """There is no such file."""


class Store:
    """A flat folder of files on this machine. All methods raise UsageError, naming the file, for whatever goes wrong.

    Attributes:
        name: as the user wrote it; never stored.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._folder = Path(path)

    def read(self, file: str, most: int) -> bytes | None:
        """A small file's content; None where there is no such file."""
        try:
            with self.mapped(file, None, most) as (_, buffer):
                return bytes(buffer)
        except MissingError:
            return None

    @contextlib.contextmanager
    def mapped(self, file: str, size: int | None, most: int) -> Iterator[tuple[Path, memoryview]]:
        """A file: a path to it while the context is open, and its content, mapped, which outlives the context.

        Args:
            size: that it must have, where it is known. most: bytes.

        Raises:
            MissingError: there is no such file.
        """
        where = os.path.join(self.name, file)
        with self._explained(file):
            try:
                with self._here(file, most) as path, opened(path) as (descriptor, found):
                    if found > most or size not in (None, found):
                        listed = f"it has {found} bytes where its golden lists {size}"
                        raise damaged(where, f"it is longer than {most} bytes" if size is None else listed)
                    # What is empty cannot be mapped.
                    yield path, memoryview(mmap.mmap(descriptor, found, access=mmap.ACCESS_READ) if found else b"")
            except (FileNotFoundError, NotADirectoryError):
                raise MissingError(str(damaged(where, "the file is missing"))) from None

    def put(self, file: str, write: Callable[[Path], object]) -> tuple[int, str]:
        """Write a file, all of it or nothing, in place of any that was there: its size and SHA-256.

        Args:
            write: writes it to a path.
        """
        with self._explained(file), self._placed(file) as path:
            write(path)
            with open(path, "r+b") as written:
                os.fsync(written.fileno())
                return os.fstat(written.fileno()).st_size, hashlib.file_digest(written, "sha256").hexdigest()

    def require_place(self) -> None:
        """Raise UsageError where the folder could not be made, before anything is computed for it."""
        place = self._folder.absolute()
        there = next(path for path in (place, *place.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            why = "cannot be written to" if there.is_dir() else "is a file"
            raise UsageError(f"{self.name}: a golden needs a folder, and '{there}' {why}; name another place")

    def create(self) -> None:
        """Make the folder, where folders exist."""
        if self._folder.is_file():
            raise UsageError(f"{self.name}: it is a file, and a golden is a folder; name another place")
        with explained(self.name):
            self._folder.mkdir(parents=True, exist_ok=True)

    def files(self) -> list[str]:
        """The names of the files in it, in order."""
        with explained(self.name):
            return sorted(os.listdir(self._folder)) if self._folder.is_dir() else []

    def remove(self, file: str) -> None:
        """Remove a file."""
        with self._explained(file):
            (self._folder / file).unlink(missing_ok=True)

    def _explained(self, file: str) -> AbstractContextManager[None]:
        """Turns what fails within into sentences that name the file and the remedy."""
        return explained(os.path.join(self.name, file))

    @contextlib.contextmanager
    def _here(self, file: str, most: int) -> Iterator[Path]:
        """A path to the file, or to a copy of it here; of what is longer than `most`, the size alone counts.

        Raises:
            FileNotFoundError: there is none.
        """
        yield self._folder / file  # a link, as snapshots of a hub are made of, is read as what it leads to

    @contextlib.contextmanager
    def _placed(self, file: str) -> Iterator[Path]:
        """A path to write to; what it holds in the end takes the file's place, whole."""
        with replacing(self._folder / file) as path:
            yield path
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)  # the folder is synced, so that renames last
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_store(where: str | os.PathLike[str]) -> Store:
    """The store at a path or URL; nothing is read or made yet.

    Raises:
        UsageError: an unknown URL scheme, or one whose package is not installed.
    """
    text = os.fspath(where)
    if not text:
        raise UsageError("a golden needs a folder or a URL, and the name given is empty")
    if "\0" in text:
        raise UsageError(f"{text!a} is no folder or URL: no path holds a null character")
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return RemoteStore(text) if "://" in text else Store(text)


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn the system's refusals into sentences that name the file and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UsageError(
                f"{where}: no space left ({os.strerror(error.errno)}); the steps written before are kept: "
                "free some space, then go on with `parity record --resume` (a script, or `parity run`: anew)"
            ) from error
        reason = error.strerror or type(error).__name__
        raise UsageError(f"{where}: {reason}; check the path and its permissions") from error


def _refusal(error: FileNotFoundError) -> BaseException | None:
    """What really failed where fsspec's HTTP says that a file is not there: the connection, or a right to read."""
    cause = error.__cause__
    lost = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
    return cause if lost or getattr(cause, "status", 404) not in (404, 410) else None


ANSWER = 20.0
"""Seconds that a service has to say how large a file is; libraries try again for a minute where there is no network."""


def within(seconds: float, function: Callable[[], T]) -> T:
    """What a function returns, where it does in time; else its thread is left to itself, and ends with the process.

    Raises:
        TimeoutError: it did not. Whatever else it raises.
    """
    found: Future[T] = Future()

    def ask() -> None:
        try:
            found.set_result(function())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    wait((found,), timeout=seconds)
    if not found.done():
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return found.result()


class RemoteStore(Store):
    """The same behind an fsspec URL."""

    def __init__(self, url: str) -> None:
        self._secrets = secrets_of(url)
        self.name = without_secrets(url.rstrip("/"), self._secrets)
        scheme = url.partition("://")[0]
        try:
            import fsspec
        except ImportError:
            raise UsageError(f"{self.name}: {scheme}:// needs fsspec; {INSTALL}") from None
        try:
            self._fs, path = within(ANSWER, lambda: fsspec.core.url_to_fs(url.rstrip("/")))
        except ImportError as error:
            raise UsageError(f"{self.name}: {error}; {INSTALL}") from None
        except Exception as error:  # each backend has its own
            said = self._words(error)
            raise UsageError(
                f"{self.name}: {said}; use a path, gs://, s3://, hf:// or another scheme of fsspec's"
            ) from None
        self._root = str(path).rstrip("/")

    def _words(self, error: Exception) -> str:
        """A backend's own words on one line, without what is secret in the URL."""
        return without_secrets(" ".join(str(error).split()), self._secrets)[:300] or type(error).__name__

    def _path(self, file: str) -> str:
        return f"{self._root}/{file}"

    @contextlib.contextmanager
    def _explained(self, file: str) -> Iterator[None]:
        """Every backend has exceptions of its own, so all are caught; the message keeps their words."""
        try:
            yield
        except (ParityError, MalformedError):
            raise
        except Exception as error:
            said = self._words(error)
            raise UsageError(f"{self.name}/{file}: {said}; check the URL, the credentials and the network") from error

    @contextlib.contextmanager
    def _here(self, file: str, most: int) -> Iterator[Path]:
        with tempfile.NamedTemporaryFile(prefix="parity-") as spool:
            self._fs.invalidate_cache()  # another machine may be writing
            size = self._size(file)
            if size > most:  # nothing of it is downloaded
                os.truncate(spool.name, size)
            else:
                self._fs.get_file(self._path(file), spool.name)
            yield Path(spool.name)

    @contextlib.contextmanager
    def _placed(self, file: str) -> Iterator[Path]:
        with tempfile.NamedTemporaryFile(prefix="parity-") as spool:
            with explained(spool.name):
                yield Path(spool.name)
            self._fs.put_file(spool.name, self._path(file))

    def _size(self, file: str) -> int:
        try:
            return int(within(ANSWER, lambda: self._fs.info(self._path(file)))["size"])
        except FileNotFoundError as error:
            refused = _refusal(error)
            if refused is None:
                raise
            raise ConnectionError(str(refused)) from error

    def require_place(self) -> None:
        """Nothing: only writing tells."""

    def create(self) -> None:
        """Nothing: a bucket has no folders."""

    def files(self) -> list[str]:
        with self._explained(""):
            self._fs.invalidate_cache()
            try:
                return sorted(str(path).rpartition("/")[2] for path in self._fs.ls(self._root, detail=False))
            except FileNotFoundError:
                return []

    def remove(self, file: str) -> None:
        with self._explained(file), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(file))
