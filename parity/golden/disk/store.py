"""Where a golden lies: a folder here, or one behind a URL, through the same six operations.

Problem. Recording, diffing and merging should not care whether the golden is local or in a bucket, and a kill or a
full disk must never leave half a file under a name that counts.

How. `put` writes under a temporary name, syncs and renames; `map` opens a regular file of exactly the expected size
and maps it, so values are paged in as they are used. Links that lead out of the folder are not followed. URLs (gs://,
s3://, hf://, memory:// and whatever else fsspec has) are read through a temporary file without a name: one part is
downloaded to it and mapped. A part is uploaded whole, so a failure never commits half of one; a bucket has no rename,
but an object appears only when its upload is complete, so the order (part, then `golden.json`) keeps a killed recording
readable just as on a disk. fsspec is imported for URLs alone.

Cost. Two syncs a file; for a URL, disk for one part at a time in the temporary folder.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import queue
import stat
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from parity.errors import ParityError, UsageError
from parity.golden.disk.format import damaged
from parity.redact import secrets_of, without_secrets

T = TypeVar("T")
INSTALL = "install it with: pip install 'tpu-parity[remote]'"


class Store(ABC):
    """A flat folder of files. All methods raise UsageError, naming the file, for whatever goes wrong.

    Attributes:
        name: as the user wrote it; never stored.
    """

    name: str

    def read(self, file: str, most: int) -> bytes | None:
        """A small file's content; None where there is no such file."""
        where = os.path.join(self.name, file)
        with self._explained(file):
            try:
                with self._opened(file, most) as descriptor:
                    if _regular(descriptor, where) > most:
                        raise damaged(where, f"it is longer than {most} bytes")
                    with open(descriptor, "rb", closefd=False) as opened:
                        return opened.read(most)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def map(self, file: str, size: int) -> memoryview:
        """A file of exactly `size` bytes, mapped into memory; the map outlives the file's name."""
        where = os.path.join(self.name, file)
        with self._explained(file):
            try:
                with self._opened(file, size) as descriptor:
                    found = _regular(descriptor, where)
                    if found != size:
                        raise damaged(where, f"it has {found} bytes where its golden lists {size}")
                    # What is empty cannot be mapped.
                    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"")
            except FileNotFoundError:
                raise damaged(where, "the file is missing") from None

    @abstractmethod
    def put(self, file: str, chunks: Iterable[Any]) -> None:
        """Write a file, all of it or nothing, in place of any that was there."""

    @abstractmethod
    def create(self) -> None:
        """Make the folder, where folders exist."""

    @abstractmethod
    def files(self) -> list[str]:
        """The names of the files in it, in order."""

    @abstractmethod
    def remove(self, file: str) -> None:
        """Remove a file."""

    @abstractmethod
    def _opened(self, file: str, most: int) -> AbstractContextManager[int]:
        """A descriptor of the file, or of a copy of it here; of what is longer than `most`, the size alone counts.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def _explained(self, file: str) -> AbstractContextManager[None]:
        """Turns what fails within into sentences that name the file and the remedy."""


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
    return RemoteStore(text) if "://" in text else LocalStore(text)


def _regular(descriptor: int, where: str) -> int:
    """The size of an open file, once it is seen to be a regular one."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise damaged(where, "it is not a regular file")
    return found.st_size


def _target(path: Path) -> Path:
    """Where a path leads.

    Raises:
        OSError: it leads to itself.
    """
    try:
        return path.resolve()
    except RuntimeError:  # what Python before 3.13 makes of a link that leads to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


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
                "free some space, then go on with `parity record --resume` (a script, or `parity run`: anew)"
            ) from error
        reason = error.strerror or type(error).__name__
        raise UsageError(f"{where}: {reason}; check the path and its permissions") from error


class LocalStore(Store):
    """A folder on this machine."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._folder = Path(path)

    def _explained(self, file: str) -> AbstractContextManager[None]:
        return explained(os.path.join(self.name, file))

    @contextlib.contextmanager
    def _opened(self, file: str, most: int) -> Iterator[int]:
        path = self._folder / file
        if path.is_symlink() and _target(path).parent != _target(self._folder):
            raise damaged(os.path.join(self.name, file), "it is a link that leads out of its golden")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block the reader
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def put(self, file: str, chunks: Iterable[Any]) -> None:
        temporary = self._folder / f".{file}.tmp"
        with self._explained(file):
            temporary.unlink(missing_ok=True)  # of a run that was killed
            try:  # from before it is there: a signal may come as soon as it is
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
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
        if self._folder.is_file():
            raise UsageError(f"{self.name}: it is a file, and a golden is a folder; name another place")
        with explained(self.name):
            self._folder.mkdir(parents=True, exist_ok=True)

    def files(self) -> list[str]:
        with explained(self.name):
            return sorted(os.listdir(self._folder)) if self._folder.is_dir() else []

    def remove(self, file: str) -> None:
        with self._explained(file):
            (self._folder / file).unlink(missing_ok=True)


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
    found: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found.put((function(), None))
        except BaseException as error:
            found.put((None, error))

    threading.Thread(target=ask, daemon=True).start()
    try:
        value, error = found.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


class RemoteStore(Store):
    """A folder behind an fsspec URL."""

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
        except ParityError:
            raise
        except Exception as error:
            said = self._words(error)
            raise UsageError(f"{self.name}/{file}: {said}; check the URL, the credentials and the network") from error

    @contextlib.contextmanager
    def _opened(self, file: str, most: int) -> Iterator[int]:
        with tempfile.NamedTemporaryFile(prefix="parity-") as spool:
            self._fs.invalidate_cache()  # another machine may be writing
            size = self._size(file)
            if size > most:  # nothing of it is downloaded
                os.truncate(spool.name, size)
            else:
                self._fs.get_file(self._path(file), spool.name)
            with open(spool.name, "rb") as opened:
                yield opened.fileno()

    def _size(self, file: str) -> int:
        try:
            return int(within(ANSWER, lambda: self._fs.info(self._path(file)))["size"])
        except FileNotFoundError as error:
            refused = _refusal(error)
            if refused is None:
                raise
            raise ConnectionError(str(refused)) from error

    def put(self, file: str, chunks: Iterable[Any]) -> None:
        with tempfile.NamedTemporaryFile(prefix="parity-") as spool:
            with explained(spool.name):
                write_file(spool.fileno(), chunks)
            with self._explained(file):
                self._fs.put_file(spool.name, self._path(file))

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
