"""Which of the settings in which two paths differ make a run fail: the fewest that do, together.

How. Delta debugging (`parity.bisect.ddmin`) over the candidate's differing settings: a probe is a run whose candidate
has some of its own values and for the rest the reference's. Where the candidate's backend cannot take the reference's
value (a kernel that only torch has), its own default stands in; a setting for which that changes nothing is kept as it
is in every run, and named. First the whole set must fail, then the empty one must not: where it does, no setting is at
fault.

Cost. A run a probe: two, and for one culprit of n settings at most 2 log2(n) more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from parity.bisect.ddmin import Outcome, ddmin
from parity.bisect.state import Probe, State
from parity.errors import ParityError, UsageError
from parity.settings import Settings, differences, parse, render

Judge = Callable[[Settings], tuple[Outcome, str]]
"""Runs with these settings of the candidate: the outcome, and one line that says why. May raise ParityError."""


@dataclass(frozen=True, slots=True)
class Swap:
    """A setting that is tried with two values, as written on the command line.

    Attributes:
        setting: its name. without: the reference's value, or what stands in for it. candidate: the candidate's own.
    """

    setting: str
    without: str
    candidate: str


@dataclass(frozen=True)
class Plan:
    """What is searched.

    Attributes:
        candidate: the candidate's settings as given. swaps: what is varied.
        kept: names of differing settings that stay the candidate's own in every run.
    """

    candidate: Settings
    swaps: tuple[Swap, ...]
    kept: tuple[str, ...]

    def with_only(self, names: tuple[str, ...]) -> Settings:
        """The candidate's settings with its own values for these swaps alone."""
        plain = {s.setting: s.without for s in self.swaps if s.setting not in names}
        typed = parse(self.candidate.backend, [f"{name}={value}" for name, value in plain.items()])
        return Settings(self.candidate.backend, {**self.candidate.values, **{name: typed[name] for name in plain}})


class Told(Protocol):
    """Hears how the search comes along."""

    def probing(self, names: tuple[str, ...]) -> None: ...

    def judged(self, probe: Probe, left: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Found:
    """The answer.

    Attributes:
        culprits: the run fails with them alone, and does not where any one of them is left out; empty where it fails
            without any. probes: all of them, in order; a subject is the names that had the candidate's values.
    """

    culprits: tuple[Swap, ...]
    probes: tuple[Probe, ...]


def plan(reference: Settings, candidate: Settings) -> Plan:
    """What to vary between two sides.

    Raises:
        UsageError: they differ in nothing that can be varied.
    """
    swaps, kept = [], []
    for found in differences(reference, candidate):
        name = found.setting
        try:
            without = parse(candidate.backend, [f"{name}={found.reference}"])[name]
        except UsageError:
            without = parse(candidate.backend)[name]
        if without == candidate[name]:
            kept.append(name)
        else:
            swaps.append(Swap(name, render(without), found.candidate))
    if not swaps:
        raise UsageError("the two paths differ in no setting that could be varied; give --candidate K=V")
    return Plan(candidate, tuple(swaps), tuple(kept))


def bisect_settings(searched: Plan, judge: Judge, state: State, told: Told) -> Found:
    """Find the fewest settings that make the run fail.

    Args:
        state: open; answers what was probed before.

    Raises:
        UsageError: the run with all of them does not fail, or cannot be run.
        UnjudgedError: it cannot be judged.
    """
    names = tuple(swap.setting for swap in searched.swaps)
    held = names

    def ask(subset: tuple[str, ...]) -> Outcome:
        known = state.outcome(*subset)
        if known is not None:
            return known
        told.probing(subset)
        begun = time.monotonic()
        try:
            outcome, evidence = judge(searched.with_only(subset))
        except ParityError as error:
            if subset == names:  # as the user gave them: their mistake, not that of a combination of ours
                raise
            outcome, evidence = "unresolved", str(error)
        probe = Probe(subset, outcome, evidence, round(time.monotonic() - begun, 3))
        state.add(probe)
        told.judged(state.probes[-1], len(held))
        return outcome

    def narrowed(now: tuple[str, ...]) -> None:
        nonlocal held
        held = now

    if ask(names) != "bad":
        raise UsageError(f"with all differing settings the run does not fail: {_evidence(state, names)}")
    culprits = () if ask(()) == "bad" else ddmin(names, ask, narrowed)
    return Found(tuple(s for s in searched.swaps if s.setting in culprits), tuple(state.probes))


def _evidence(state: State, names: tuple[str, ...]) -> str:
    return next(p.evidence for p in state.probes if p.subject == names)
