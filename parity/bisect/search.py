"""One search for every subject and strategy: ask, judge, keep, go on; what was judged once is not judged again.

How. The strategy says what to try, the state file answers what was judged before, the subject judges the rest. Each
outcome is on disk before the next probe begins, and strategies are deterministic, so that a killed search resumes with
the probe it was killed in.

    with State.open(path, "settings", question) as state:
        found = search(subject, strategy("ddmin"), state)

Cost. The subject's probes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol

from parity.bisect.report import plural, word
from parity.bisect.state import Probe, State
from parity.bisect.strategy import Order, Outcome, Question, Strategy, T
from parity.errors import ParityError


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What a probe came to.

    Attributes:
        outcome: good, bad or unresolved. evidence: one line that says why.
        control: what has to be judged before this counts, where the question itself may be at fault; empty for nothing.
    """

    outcome: Outcome
    evidence: str
    control: tuple[T, ...] = ()


class Subject(Protocol[T]):
    """What is searched, and how some of it is judged. To be inherited from: what has a body here is a default.

    Attributes:
        noun: of one item. phrase: what was tried, in a sentence around `words`.
        order: the items. presumed: outcomes without which there is nothing to search, by items.
        checked: whether those are tried first, all of them.
    """

    noun: str
    phrase: str
    order: Order[T]
    presumed: Mapping[tuple[T, ...], Outcome]
    checked: bool

    def key(self, items: tuple[T, ...]) -> tuple[str, ...]:
        """What the state file calls these items."""
        return tuple(map(str, items))

    def words(self, key: tuple[str, ...]) -> str:
        """What was tried, for a list."""

    def probe(self, items: tuple[T, ...]) -> Answer[T]:
        """Judge these items.

        Raises:
            ParityError: the search must stop here; nothing is recorded.
        """

    def refusal(self, items: tuple[T, ...], outcome: Outcome, evidence: str) -> ParityError:
        """The error of a search whose presumed outcome of these items is not so."""

    def progress(self, left: int) -> str:
        """How far the search is, with so many items left."""
        return f"{plural(left, self.noun)} left"

    def details(self, probe: Probe) -> list[str]:
        """Lines to be shown below the one of a probe."""
        del probe
        return []


class Listener(Protocol):
    """Hears how a search comes along."""

    def trying(self, text: str) -> None:
        """A probe begins."""

    def judged(self, text: str, details: list[str]) -> None:
        """A probe is judged and recorded."""


class Silent:
    """Hears nothing."""

    def trying(self, text: str) -> None:
        del text

    def judged(self, text: str, details: list[str]) -> None:
        del text, details


silent = Silent()


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """The end of a search.

    Attributes:
        answer: of the strategy. probes: all of them, in order.
    """

    answer: tuple[T, ...]
    probes: tuple[Probe, ...]


def search(subject: Subject[T], strategy: Strategy, state: State, listen: Listener = silent) -> Found[T]:
    """Search a subject by a strategy.

    Args:
        state: open; answers what was probed before.

    Raises:
        ParityError: a presumed outcome is not so, or the subject stops the search.
    """
    probing = _Probing(subject, state, listen)
    if subject.checked:
        for items in subject.presumed:
            probing.outcome(Question(items, len(subject.order.items)))
            probing.tell(len(subject.order.items))
    asking = strategy(subject.order)
    try:
        question = next(asking)
        while True:
            outcome = probing.outcome(question)
            question = asking.send(outcome)
            probing.tell(question.left)
    except StopIteration as end:
        answer: tuple[T, ...] = end.value
    probing.tell(len(answer))
    return Found(answer, tuple(state.probes))


class _Probing(Generic[T]):
    """Asks a subject, each question once."""

    def __init__(self, subject: Subject[T], state: State, listen: Listener) -> None:
        self.subject, self.state, self.listen, self.printed = subject, state, listen, len(state.probes)

    def outcome(self, question: Question[T]) -> Outcome:
        """The outcome of some items, recorded unless it refutes what is presumed."""
        items = question.items
        presumed = self.subject.presumed.get(items)
        probe = self.state.probe(self.subject.key(items))
        if probe is None:
            probe = self._judged(question)
            if presumed in (None, probe.outcome):
                self.state.add(probe)
        if presumed not in (None, probe.outcome):
            raise self.subject.refusal(items, probe.outcome, probe.evidence)
        return probe.outcome

    def _judged(self, question: Question[T]) -> Probe:
        key = self.subject.key(question.items)
        self.listen.trying(self.subject.phrase.format(self.subject.words(key)))
        begun = time.monotonic()
        answer = self.subject.probe(question.items)
        seconds = round(time.monotonic() - begun, 3)
        if answer.control and answer.control != question.items:
            self.outcome(Question(answer.control, question.left))
        return Probe(subject=key, outcome=answer.outcome, evidence=answer.evidence, seconds=seconds)

    def tell(self, left: int) -> None:
        """Say what was judged since the last call."""
        for probe in self.state.probes[self.printed :]:
            tried = self.subject.phrase.format(self.subject.words(probe.subject))
            text = f"{tried}: {word(probe.outcome)} ({probe.evidence}); {self.subject.progress(left)}"
            self.listen.judged(text, self.subject.details(probe))
        self.printed = len(self.state.probes)
