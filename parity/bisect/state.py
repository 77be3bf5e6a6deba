"""The state file of a bisection: what is asked, and every probe that was finished.

Problem. A probe takes minutes and the machine is preemptible: what was learnt must outlive the process, and must never
be taken for the answer to another question.

How. One JSON file, replaced atomically after each probe. It names the question in full, so that a mismatch can be told
word by word; searches are deterministic, so the probes are all that a resumed one needs. While it is open the file is
locked: two processes do not mix their probes. Read as a stranger's: types and sizes are checked.

    with State.open(path, "commits", {"run": "make test", ...}) as state:
        state.add(Probe(("a1b2...",), "bad", "exit code 1", 3.2))

Cost. Two syncs a probe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from parity.bisect.ddmin import Outcome
from parity.errors import UsageError
from parity.golden.store import write_file
from parity.golden.strict import (
    MAX_NAME,
    MalformedError,
    as_int,
    as_list,
    as_mapping,
    as_number,
    as_object,
    as_text,
    number,
    parse,
    shown,
)

FORMAT = 1
KIND = "parity bisect"
MOST_BYTES = 64 * 2**20
MOST_PROBES = 100_000
MOST_ITEMS = 100_000
OUTCOMES: tuple[Outcome, ...] = ("good", "bad", "unresolved")


@dataclass(frozen=True, slots=True)
class Probe:
    """One question put to the oracle, answered.

    Attributes:
        subject: what was tried: one commit, or the items of a subset in order.
        outcome: the answer. evidence: one line that says why, such as an exit code.
        seconds: what it took.
    """

    subject: tuple[str, ...]
    outcome: Outcome
    evidence: str
    seconds: float


class State:
    """An open state file. Make it with `open`, use it in a `with`.

    Attributes:
        path: of the file. probes: finished ones, in order.
    """

    def __init__(self, path: Path, what: str, question: Mapping[str, str], lock: int) -> None:
        self.path, self.what, self.question = path, what, dict(question)
        self.probes: list[Probe] = []
        self._lock = lock

    @classmethod
    def open(cls, path: Path, what: str, question: Mapping[str, str], restart: bool = False) -> Self:
        """Open a state file, or begin one.

        Args:
            what: is bisected (`commits`, ...). question: everything that an outcome depends on, by name.
            restart: forget the probes of the file that is there, whatever it asks.

        Raises:
            UsageError: the file is damaged, no state file, of another question, in use, or cannot be written.
        """
        path = path.absolute()
        with _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = _locked(path)
        state = cls(path, what, question, lock)
        try:
            found = None if restart else _read(path)
            if found is None:
                state._write()
            else:
                state._take(found)
        except BaseException:
            state.close()
            raise
        return state

    def outcome(self, *subject: str) -> Outcome | None:
        """What is known of a subject; None where it was not probed."""
        return next((p.outcome for p in self.probes if p.subject == subject), None)

    def add(self, probe: Probe) -> None:
        """Keep a finished probe; it is on disk when this returns."""
        evidence = probe.evidence[:MAX_NAME]
        self.probes.append(Probe(probe.subject, probe.outcome, evidence, probe.seconds))
        self._write()

    def close(self) -> None:
        """Let other processes open the file."""
        if self._lock >= 0:
            _lock_file(self.path).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _write(self) -> None:
        probes = [{**asdict(p), "subject": list(p.subject), "seconds": number(p.seconds)} for p in self.probes]
        head = {"kind": KIND, "format": FORMAT, "what": self.what, "question": self.question}
        lines = ",\n  ".join(json.dumps(probe) for probe in probes)  # a probe a line, for whoever reads it
        text = json.dumps(head, indent=1)[:-2] + f',\n "probes": [\n  {lines}\n ]\n}}\n'
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with _explained(self.path):
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                write_file(descriptor, [text.encode()])
            finally:
                os.close(descriptor)
            os.replace(temporary, self.path)
            _sync_folder(self.path.parent)

    def _take(self, found: dict[str, Any]) -> None:
        try:
            what, question, probes = _typed(found)
        except MalformedError as error:
            raise _damaged(self.path, str(error)) from None
        if what != self.what:
            raise _another(self.path, f"it bisects {shown(what)}, not {self.what}")
        for name in sorted(question.keys() | self.question.keys()):
            there, here = question.get(name), self.question.get(name)
            if there != here:
                raise _another(self.path, f"{name} is {shown(there)} there and {shown(here)} here")
        self.probes = probes


def _typed(found: dict[str, Any]) -> tuple[str, dict[str, str], list[Probe]]:
    """(what, question, probes) of a document.

    Raises:
        MalformedError: it is none.
    """
    if found.get("kind") != KIND:
        raise MalformedError(f"it is no state file: its kind is {shown(found.get('kind'))}, not {KIND!r}")
    if as_int(found.get("format"), "the format") != FORMAT:
        raise MalformedError(f"its format is {found['format']}; this version of parity reads {FORMAT}")
    as_object(found, "it", frozenset({"kind", "format", "what", "question", "probes"}))
    question = {
        name: as_text(value, f"question {shown(name)}", MOST_BYTES)
        for name, value in as_mapping(found["question"], "the question").items()
    }
    probes = [_probe(value, f"probe {i}") for i, value in enumerate(as_list(found["probes"], "probes", MOST_PROBES))]
    return as_text(found["what"], "what is bisected"), question, probes


def _probe(value: Any, what: str) -> Probe:
    fields = as_object(value, what, frozenset({"subject", "outcome", "evidence", "seconds"}))
    if fields["outcome"] not in OUTCOMES:
        raise MalformedError(f"{what} has the outcome {shown(fields['outcome'])}, not one of {', '.join(OUTCOMES)}")
    items = as_list(fields["subject"], f"the subject of {what}", MOST_ITEMS)
    return Probe(
        tuple(as_text(item, f"an item of {what}") for item in items),
        fields["outcome"],
        as_text(fields["evidence"], f"the evidence of {what}"),
        as_number(fields["seconds"], f"the seconds of {what}"),
    )


def _read(path: Path) -> dict[str, Any] | None:
    """The document in a file; None where there is none."""
    with _explained(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block us
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _damaged(path, "it is not a regular file")
            content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise _damaged(path, f"it is longer than {MOST_BYTES} bytes")
    try:
        return parse(content)
    except MalformedError as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path}: not a state file of a bisection, or damaged: {why}; name another (--state) or remove it"
    )


def _another(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path}: this state file belongs to another question: {why}; name another (--state), or replace it (--restart)"
    )


def _lock_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _locked(path: Path) -> int:
    """The descriptor of the lock; the system lets go of it when the process ends, however it ends."""
    file = _lock_file(path)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it may have removed the file between our opening and locking it.
        held = file.exists() and os.path.samestat(os.fstat(descriptor), file.stat())
    except BlockingIOError:
        held = False
    if not held:
        os.close(descriptor)
        raise UsageError(
            f"{path}: another process is bisecting with this state file; wait for it, or name another (--state)"
        )
    return descriptor


def _sync_folder(folder: Path) -> None:
    """Make a rename last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kept = "; the probes written before are kept" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        reason = error.strerror or type(error).__name__
        raise UsageError(
            f"{path}: {reason}{kept}; check the path and its permissions, or name another (--state)"
        ) from None
