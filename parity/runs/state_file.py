"""A state file: what a long search was asked, and what it finished, so that a killed one is resumed.

How. One JSON file, replaced atomically each time. It names the question in full: what was learnt is never taken for the
answer to another question, and a mismatch is named word by word. It can be locked, so that two processes
do not mix what they learn. Read as a stranger's: types and sizes are checked.

Cost. Two syncs a write.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.golden.disk.store import LocalStore
from parity.golden.strict import MalformedError, parse, shown

MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class StateFile:
    """A state file.

    Attributes:
        path: of the file. kind: its first key. of: whose state it is, for messages: `a bisection`.
        mend: what to do with a file that is not to be used.
    """

    path: Path
    kind: str
    of: str
    mend: str

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Within it no other process locks the file; it need not be there.

        Raises:
            UsageError: it is in use, or its folder cannot be written.
        """
        lock = self.path.with_name(f".{self.path.name}.lock")
        with self._explained():
            self._store.create()
            descriptor = _locked(lock)
        if descriptor is None:
            raise UsageError(
                f"{self.path}: another process uses this state file; wait for it, or name another (--state)"
            )
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
            os.close(descriptor)

    def read(self) -> dict[str, Any] | None:
        """The document in the file; None where there is none.

        Raises:
            UsageError: it cannot be read, or is no such state.
        """
        with self._explained():
            content = self._store.read(self.path.name, MOST_BYTES)
        if content is None:
            return None
        with self.damages():
            document = parse(content)
            if document.get("kind") != self.kind:
                raise MalformedError(f"it is no such file: its kind is {shown(document.get('kind'))}")
        return document

    def write(self, text: str) -> None:
        """Replace the file; it is on disk when this returns."""
        with self._explained():
            self._store.create()
            self._store.put(self.path.name, [text.encode()])

    def require(self, recorded: Mapping[str, str], asked: Mapping[str, str]) -> None:
        """Require that the file answers this question.

        Raises:
            UsageError: it answers another one; says in what it differs.
        """
        for name in sorted(recorded.keys() | asked.keys()):
            there, here = recorded.get(name), asked.get(name)
            if there != here:
                raise self.another(f"{name} is {shown(there)} there and {shown(here)} here")

    def another(self, why: str) -> UsageError:
        """The error for a file of another question."""
        return UsageError(f"{self.path}: this state file belongs to another question: {why}; {self.mend}")

    @contextlib.contextmanager
    def damages(self) -> Iterator[None]:
        """Within it, what is malformed is named with the file."""
        try:
            yield
        except MalformedError as error:
            raise self._damaged(str(error)) from None

    @property
    def _store(self) -> LocalStore:
        return LocalStore(self.path.parent)

    def _damaged(self, why: str) -> UsageError:
        return UsageError(f"{self.path}: not a state file of {self.of}, or damaged: {why}; {self.mend}")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the system's refusals into sentences that name the file and the remedy."""
        try:
            yield
        except (OSError, UsageError) as error:
            refused = error if isinstance(error, OSError) else error.__cause__
            if isinstance(refused, OSError):
                full = refused.errno in (errno.ENOSPC, errno.EDQUOT)
                reason = (refused.strerror or type(refused).__name__) + "; what was written before is kept" * full
                raise UsageError(
                    f"{self.path}: {reason}; check the path and its permissions, or name another (--state)"
                ) from None
            raise self._damaged("it is not a regular file in its folder, or too long") from None


def _locked(lock: Path) -> int | None:
    """A descriptor that locks a file, None where another process has it; the lock ends with the process in any case."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have removed the file between our opening and locking it.
        if lock.exists() and os.path.samestat(os.fstat(descriptor), lock.stat()):
            return descriptor
    os.close(descriptor)
    return None
