"""A finished search as labelled facts and as JSON: one form of each for every subject.

The facts list what was judged, sorted by outcome, and end with the answer, where it is still on the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from parity.bisect.state import Probe
from parity.bisect.strategy import OUTCOMES, Outcome

FORMAT = 1
"""Version of the JSON documents; raised when a key changes its meaning or goes."""
CANNOT_BE_TOLD = 125

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]
Fact = tuple[str, str]
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is printed of a search.

    Attributes:
        kind: of what was searched.
        answer: the keys of the JSON document that come first. probes: what each probe tried, by JSON name.
        sorted_out: what was tried by outcome, as JSON. facts: (label, text) for a person. exit_code: of the command.
    """

    kind: str
    answer: Mapping[str, Json]
    probes: tuple[tuple[Mapping[str, Json], Probe], ...]
    sorted_out: Mapping[str, Json]
    facts: tuple[Fact, ...]
    exit_code: int = 0

    def document(self, state: Path) -> dict[str, Json]:
        """What `--json` prints.

        Args:
            state: the state file.
        """
        probes: list[Json] = [
            {**tried, "outcome": word(probe.outcome), "evidence": probe.evidence, "seconds": probe.seconds}
            for tried, probe in self.probes
        ]
        head: dict[str, Json] = {"format": FORMAT, "bisected": self.kind, **self.answer}
        return {**head, "probes": probes, **self.sorted_out, "state": str(state)}


def by_outcome(probes: Iterable[Probe], value: Callable[[Probe], V]) -> dict[str, list[V]]:
    """A value of each probe, in lists named `good`, `bad` and `skipped`."""
    named: dict[str, list[V]] = {word(outcome): [] for outcome in OUTCOMES}
    for probe in probes:
        named[word(probe.outcome)].append(value(probe))
    return named


def listing(probes: Iterable[Probe], words: Callable[[tuple[str, ...]], str]) -> list[Fact]:
    """What was tried, a fact each, sorted by outcome."""
    sorted_out = by_outcome(probes, lambda probe: words(probe.subject))
    return [(name, tried) for name, group in sorted_out.items() for tried in group]


def word(outcome: Outcome) -> str:
    """As git calls it."""
    return "skipped" if outcome == "unresolved" else outcome


def plural(count: int, noun: str) -> str:
    """`1 probe`, `2 probes`."""
    return f"{count} {noun}{'s' * (count != 1)}"
