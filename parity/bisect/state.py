"""The state file of a bisection: what is asked, and every probe that was finished.

Problem. A probe takes minutes and the machine is preemptible: what was learnt must outlive the process. Strategies are
deterministic, so the probes are all that a resumed search needs.

    with State.open(path, "commits", {"run": "make test", ...}) as state:
        state.add(Probe(("a1b2...",), "bad", "exit code 1", 3.2))
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from parity.bisect.strategy import OUTCOMES, Outcome
from parity.cache import cache_dir
from parity.golden import strict
from parity.runs.state_file import MOST_BYTES, StateFile

FORMAT = 1
MEND = "name another (--state), or replace it (--restart)"
KIND = "parity bisect"
MOST = 100_000
"""Probes of a file, items of a probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question, judged.

    Attributes:
        subject: what was tried: one commit, or the items of a subset in order.
        outcome: good, bad or unresolved. evidence: one line that says why, such as an exit code.
        seconds: what it took.
    """

    subject: tuple[str, ...]
    outcome: Outcome
    evidence: str
    seconds: float


class State:
    """An open state file. Make it with `open`, use it in a `with`.

    Attributes:
        probes: finished ones, in order.
    """

    def __init__(self, file: StateFile, what: str, question: Mapping[str, str]) -> None:
        self._file, self._what, self._question = file, what, dict(question)
        self.probes: list[Probe] = []

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path | None, what: str, question: Mapping[str, str], restart: bool = False) -> Iterator[Self]:
        """Within it the state file is open, and locked; begun where it is not there.

        Args:
            path: None for one in parity's cache, where the same question finds it again.
            what: is bisected (`commits`, ...). question: everything that an outcome depends on, by name.
            restart: forget the probes of the file that is there, whatever it asks.

        Raises:
            UsageError: the file is damaged, no state file, of another question, in use, or cannot be written.
        """
        file = StateFile((path or _default_path(what, question)).absolute(), KIND, "a bisection", MEND)
        state = cls(file, what, question)
        with file.locked():
            document = None if restart else file.read()
            if document is None:
                state._write()
            else:
                state._take(document)
            yield state

    @property
    def path(self) -> Path:
        return self._file.path

    def probe(self, subject: tuple[str, ...]) -> Probe | None:
        """What is recorded of a subject; None where it was not probed."""
        return next((p for p in self.probes if p.subject == subject), None)

    def add(self, probe: Probe) -> None:
        """Keep a finished probe; it is on disk when this returns."""
        self.probes.append(replace(probe, evidence=probe.evidence[: strict.MAX_NAME]))
        self._write()

    def _write(self) -> None:
        probes = [{**asdict(p), "subject": list(p.subject), "seconds": strict.number(p.seconds)} for p in self.probes]
        head = {"kind": KIND, "format": FORMAT, "what": self._what, "question": self._question}
        lines = ",\n  ".join(json.dumps(probe) for probe in probes)  # a probe a line, for whoever reads it
        self._file.write(json.dumps(head, indent=1)[:-2] + f',\n "probes": [\n  {lines}\n ]\n}}\n')

    def _take(self, document: dict[str, Any]) -> None:
        with self._file.damages():
            what, question, self.probes = _typed(document)
        if what != self._what:
            raise self._file.another(f"it bisects {strict.shown(what)}, not {self._what}")
        self._file.require(question, self._question)


def _default_path(what: str, question: Mapping[str, str]) -> Path:
    name = hashlib.sha256(json.dumps(dict(question), sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "bisect" / f"{what}-{name}.json"


def _typed(document: dict[str, Any]) -> tuple[str, dict[str, str], list[Probe]]:
    """(what, question, probes) of a document.

    Raises:
        MalformedError: it is none.
    """
    if strict.as_int(document.get("format"), "the format") != FORMAT:
        raise strict.MalformedError(f"its format is {document['format']}; this version of parity reads {FORMAT}")
    strict.as_object(document, "it", frozenset({"kind", "format", "what", "question", "probes"}))
    question = {
        name: strict.as_text(value, f"question {strict.shown(name)}", MOST_BYTES)
        for name, value in strict.as_mapping(document["question"], "the question").items()
    }
    probes = [_probe(value, f"probe {i}") for i, value in enumerate(strict.as_list(document["probes"], "probes", MOST))]
    return strict.as_text(document["what"], "what is bisected"), question, probes


def _probe(value: Any, what: str) -> Probe:
    fields = strict.as_object(value, what, frozenset({"subject", "outcome", "evidence", "seconds"}))
    if fields["outcome"] not in OUTCOMES:
        outcome = strict.shown(fields["outcome"])
        raise strict.MalformedError(f"{what} has the outcome {outcome}, not one of {', '.join(OUTCOMES)}")
    items = strict.as_list(fields["subject"], f"the subject of {what}", MOST)
    return Probe(
        subject=tuple(strict.as_text(item, f"an item of {what}") for item in items),
        outcome=fields["outcome"],
        evidence=strict.as_text(fields["evidence"], f"the evidence of {what}"),
        seconds=strict.as_number(fields["seconds"], f"the seconds of {what}"),
    )
