"""The fewest of the candidate's differing settings that make a run fail: delta debugging, one run a probe.

A probe is a run whose candidate has some of its own values and the reference's for the rest (`parity.bisect.swaps`).
Cost: two runs, and at most 2 log2(n) more for one culprit of n settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from parity.bisect.ddmin import ddmin
from parity.bisect.swaps import Plan, Swap
from parity.errors import ParityError, UsageError
from parity.files import read_bytes, replacing
from parity.settings import Settings

if TYPE_CHECKING:
    from parity.runs.request import Request, Say

Outcome = Literal["good", "bad", "skipped"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

Judge = Callable[[Settings], tuple[Outcome, str]]
"""Runs with these settings of the candidate: the outcome, and one line that says why. May raise ParityError."""

MOST_BYTES = 64 * 2**20
"""Of a state file."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A judged run.

    Attributes:
        settings: those with the candidate's own value. outcome: skipped if the run cannot be judged.
        evidence: one line that says why.
    """

    settings: tuple[str, ...]
    outcome: Outcome
    evidence: str

    @property
    def words(self) -> str:
        """The settings, for a sentence."""
        return ", ".join(self.settings) or "none of the settings"


@dataclass
class State:
    """The finished probes of a search, in a file if one is named, so that the same command resumes.

    Attributes:
        path: None to keep them in memory only. question: all that an outcome depends on, but for code and weights.
    """

    path: Path | None
    question: Mapping[str, str]
    probes: list[Probe] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path | None, question: Mapping[str, str]) -> State:
        """The state in a file, begun if there is none.

        Raises:
            UsageError: it is no state file, or one of a different search. OSError: it cannot be read or written.
        """
        state = cls(path, question)
        if path is not None and path.exists():
            try:
                document = json.loads(read_bytes(path, MOST_BYTES))
                asked, state.probes = dict(document["question"]), [_probe(entry) for entry in document["probes"]]
            except (ValueError, KeyError, TypeError):
                raise UsageError(
                    f"{path} is not a state file, or is damaged. Delete it or pass another --state"
                ) from None
            for name in sorted({*asked, *question}):
                there, here = asked.get(name), question.get(name)
                if there != here:
                    raise UsageError(
                        f"{path} is from a different search ({name}: {there!r} in the file, {here!r} now). "
                        "Delete it or pass another --state"
                    )
        state._write()
        return state

    def of(self, names: tuple[str, ...]) -> Probe | None:
        """The finished probe of these settings."""
        return next((probe for probe in self.probes if probe.settings == names), None)

    def add(self, probe: Probe) -> None:
        """Keep a finished probe."""
        self.probes.append(probe)
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            document = {"question": dict(self.question), "probes": [asdict(probe) for probe in self.probes]}
            with replacing(self.path) as temporary:
                temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _probe(entry: Mapping[str, Any]) -> Probe:
    probe = Probe(tuple(map(str, entry["settings"])), entry["outcome"], str(entry["evidence"]))
    if probe.outcome not in OUTCOMES:
        raise ValueError(probe.outcome)
    return probe


def fewest(plan: Plan, judge: Judge, state: State, heard: Callable[[Probe], None] = lambda _: None) -> tuple[Swap, ...]:
    """The culprits; none if the run also fails without any of the settings.

    Args:
        state: answers what was probed before. heard: called with each new probe.

    Raises:
        UsageError: the run does not fail with all of them.
    """
    every = tuple(swap.setting for swap in plan.swaps)

    def fails(names: tuple[str, ...]) -> bool:
        probe = state.of(names)
        if probe is None:
            try:
                probe = Probe(names, *judge(plan.with_only(names)))
            except ParityError as error:
                if names == every:  # the user's own settings, not a combination of the search's
                    raise
                probe = Probe(names, "skipped", str(error))
            if names == every and probe.outcome != "bad":
                raise UsageError(f"with all differing settings the run does not fail: {probe.evidence}")
            state.add(probe)
            heard(probe)
        return probe.outcome == "bad"

    fails(every)
    culprits = () if fails(()) else ddmin(every, fails)
    return tuple(swap for swap in plan.swaps if swap.setting in culprits)


def by_run(request: Request, say: Say) -> Judge:
    """Judges by a run as `parity run` makes it; the reference is measured once."""
    from parity.paths.worker.openers import Workers
    from parity.runs.compare import run
    from parity.runs.memo import Remembering

    openers = Remembering(request.ports.openers or Workers())
    outcomes: dict[str, Outcome] = {"pass": "good", "fail": "bad", "inconclusive": "skipped"}

    def judge(candidate: Settings) -> tuple[Outcome, str]:
        result = run(replace(request, candidate=candidate), say, openers=openers)
        return outcomes[result.verdict], f"{result.verdict}: {result.reason}"

    return judge


def question_of(request: Request) -> dict[str, str]:
    """What a run is asked for, in words; files by their content.

    Raises:
        UsageError: the file of embeddings cannot be read.
    """
    inputs = "the model's own prompt" if request.prompt is None else f"prompt {request.prompt}"
    if request.stage1 is not None:
        try:
            with request.stage1.open("rb") as opened:
                inputs = f"stage1 {hashlib.file_digest(opened, 'sha256').hexdigest()[:16]}"
        except OSError as error:
            raise UsageError(f"--inputs: cannot read '{request.stage1}': {error.strerror}") from None
    ports = [port for port in (request.ports.reference, request.ports.candidate) if port is not None]
    return {
        "model": request.model,
        "steps": str(request.steps),
        "seed": str(request.seed),
        "inputs": inputs,
        "reference": _in_words(request.reference),
        "candidate": _in_words(request.candidate),
        "checks": request.checks,
        "isolate": request.isolate,
        "ports": "; ".join(f"{port.option} {port.text.rpartition(':')[2]} {port.digest}" for port in ports),
    }


def _in_words(chosen: Settings) -> str:
    return " ".join(f"{name}={value}" for name, value in chosen.as_text().items() if chosen.changed(name))
