"""Goldens behind URLs: gs://, s3://, memory:// and whatever else fsspec knows.

Problem. The GPU machine, the TPU machine and CI meet in a bucket.

How. fsspec, imported here and nowhere else. A part is written to a temporary local file first and uploaded whole, so
a failure never commits half of one; reading downloads one part to a temporary file without a name and maps it. A
bucket has no rename, but an object appears only when its upload is complete, so the order (part, then `golden.json`)
keeps a killed recording readable just as on a disk.

Cost. Disk for one part at a time in the temporary folder; memory for one block of it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from parity.errors import ParityError, UsageError
from parity.golden.format import damaged
from parity.golden.store import explained, map_file, write_file

INSTALL = "install it with: pip install 'tpu-parity[remote]'"


class RemoteStore:
    """A folder behind an fsspec URL; see `parity.golden.store.Store`."""

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        scheme = url.partition("://")[0]
        try:
            import fsspec
        except ImportError:
            raise UsageError(f"{url}: {scheme}:// needs fsspec; {INSTALL}") from None
        try:
            self._fs, path = fsspec.core.url_to_fs(self.name)
        except ImportError as error:
            raise UsageError(f"{url}: {error}; {INSTALL}") from None
        except ValueError as error:
            raise UsageError(f"{url}: {error}; use a path, gs://, s3:// or another scheme of fsspec's") from None
        self._root = str(path).rstrip("/")

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
            said = " ".join(str(error).split())[:300] or type(error).__name__
            raise UsageError(f"{self.name}/{file}: {said}; check the URL, the credentials and the network") from error

    def _size(self, file: str) -> int:
        self._fs.invalidate_cache()  # another machine may be writing
        return int(self._fs.info(self._path(file))["size"])

    def read(self, file: str, most: int) -> bytes | None:
        with self._explained(file):
            try:
                if self._size(file) > most:
                    raise damaged(f"{self.name}/{file}", f"it is longer than {most} bytes")
                return bytes(self._fs.cat_file(self._path(file)))
            except FileNotFoundError:
                return None

    def map(self, file: str, size: int) -> memoryview:
        where = f"{self.name}/{file}"
        with self._explained(file), tempfile.NamedTemporaryFile(prefix="parity-") as spool:
            try:
                found = self._size(file)
                if found != size:  # before anything is downloaded
                    raise damaged(where, f"it has {found} bytes where its golden lists {size}")
                self._fs.get_file(self._path(file), spool.name)
            except FileNotFoundError:
                raise damaged(where, "the file is missing") from None
            with explained(spool.name), open(spool.name, "rb") as opened:
                return map_file(opened.fileno(), size, where)  # the map outlives the file's name

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
