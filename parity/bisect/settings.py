"""The fewest of the candidate's differing settings that make a run fail: delta debugging, one run a probe.

A probe is a run whose candidate has some of its own values and the reference's for the rest. Where the candidate's
backend cannot take the reference's value (a kernel that only torch has), its own default stands in; a setting for which
that changes nothing stays as it is in every run. So does the device, which says whose program runs, and what a port
does not read: a run without any effect would be taken for a harmless one.

The search is `ddmin` of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE Transactions
on Software Engineering 28(2), 2002: first halves, then finer parts and what is left without each. It also finds items
that fail only together. Cost: two runs, and at most 2 log2(n) more for one culprit of n settings, n^2 + 3n in the worst
case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

from parity.errors import ParityError, Say, UsageError
from parity.paths.port.settings import PortInfo, typed
from parity.runs.compare import run
from parity.runs.memo import Remembering
from parity.runs.request import Request
from parity.runs.sides import workers
from parity.settings import BY_NAME, SETTINGS, Settings, Value, differences, render

Outcome = Literal["good", "bad", "skipped"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

Judge = Callable[[Settings], tuple[Outcome, str]]
"""Runs with these settings of the candidate: the outcome, and one line that says why. May raise ParityError."""


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


def fewest(
    plan: Plan, judge: Judge, heard: Callable[[Probe], None] = lambda _: None
) -> tuple[tuple[Swap, ...], tuple[Probe, ...]]:
    """The culprits, none if the run also fails without any of the settings; and what was probed.

    Args:
        heard: called with each probe.

    Raises:
        UsageError: the run does not fail with all of them.
    """
    every = tuple(swap.setting for swap in plan.swaps)
    probes: list[Probe] = []

    def fails(names: tuple[str, ...]) -> bool:
        try:
            probe = Probe(names, *judge(plan.with_only(names)))
        except ParityError as error:
            if names == every:  # the user's own settings, not a combination of the search's
                raise
            probe = Probe(names, "skipped", str(error))
        if names == every and probe.outcome != "bad":
            raise UsageError(f"with all differing settings the run does not fail: {probe.evidence}")
        probes.append(probe)
        heard(probe)
        return probe.outcome == "bad"

    fails(every)
    culprits = () if fails(()) else ddmin(every, fails)
    return tuple(swap for swap in plan.swaps if swap.setting in culprits), tuple(probes)


def by_run(request: Request, say: Say) -> Judge:
    """Judges by a run as `parity run` makes it; the reference is measured once."""
    openers = Remembering(request.ports.openers or workers(request))
    outcomes: dict[str, Outcome] = {"pass": "good", "fail": "bad", "inconclusive": "skipped"}

    def judge(candidate: Settings) -> tuple[Outcome, str]:
        result = run(replace(request, candidate=candidate), say, openers=openers)
        return outcomes[result.verdict], f"{result.verdict}: {result.reason}"

    return judge


# --- the candidate's settings with only some of them its own


@dataclass(frozen=True, slots=True)
class Swap:
    """A setting that is tried with two values, as written on the command line.

    Attributes:
        setting: its name. without: the reference's value, or what stands in for it. candidate: the candidate's own.
    """

    setting: str
    without: str
    candidate: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What can be varied between two sides.

    Attributes:
        candidate: the candidate's settings. swaps: what is varied.
        kept: names of differing settings that stay the candidate's own in every run.
        port: whose settings they are, where the candidate is a port; it takes values that no path of parity's does.
    """

    candidate: Settings
    swaps: tuple[Swap, ...]
    kept: tuple[str, ...]
    port: PortInfo | None = None

    def with_only(self, names: tuple[str, ...]) -> Settings:
        """The candidate's settings with its own values for these swaps alone, and what such a value needs with it."""
        plain = {s.setting: s.without for s in self.swaps if s.setting not in names}
        values = typed(self.port, self.candidate.backend, plain)
        return _together(self.candidate.with_({name: values[name] for name in plain}), self.candidate, self.port)


def plan(
    reference: Settings, candidate: Settings, port: PortInfo | None = None, stages: Sequence[str] | None = None
) -> Plan:
    """What to vary between two sides.

    Args:
        port: of the candidate, where it is one. stages: in which it is to have an effect; by default in any.

    Raises:
        UsageError: they differ in nothing that can be varied.
    """
    swaps, kept = [], []
    for difference in differences(reference, candidate):
        name = difference.setting
        without = candidate[name]
        if name != "device" and (port is None or port.knows(name)):
            try:
                without = typed(port, candidate.backend, {name: difference.reference})[name]
            except UsageError:
                without = typed(port, candidate.backend, {})[name]
        if without == candidate[name] or not (stages is None or BY_NAME[name].is_of(stages)):
            kept.append(name)
        else:
            swaps.append(Swap(name, render(without), difference.candidate))
    if not swaps and port is None:
        raise UsageError("the two paths differ in no setting that could be varied; give --candidate K=V")
    if not swaps and port is not None:
        declared = ", ".join(port.settings) or "none (SETTINGS)"
        raise UsageError(f"the paths differ in no setting that the port knows; it declares {declared}")
    return Plan(candidate=candidate, swaps=tuple(swaps), kept=tuple(kept), port=port)


def _together(settings: Settings, candidate: Settings, port: PortInfo | None) -> Settings:
    """The same, where a value does nothing without another setting's: that comes with it.

    A value that can be no fault goes with it instead, so that what is wrong with the other stays the other's.
    """
    values: dict[str, Value] = {}
    for setting in SETTINGS if port is None else ():  # a port's settings are its own
        missing = [name for need in setting.needs if not settings.changed(name := need.partition("=")[0])]
        if not missing or not settings.changed(setting.name):
            continue
        if setting.innocent:
            values[setting.name] = setting.default_for(settings.backend)
        else:
            values |= {name: candidate[name] for name in missing}
    return settings.with_(values)


# --- delta debugging

T = TypeVar("T", bound=Hashable)


def ddmin(items: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """A subset that fails and is 1-minimal: without any single one of its items it does not fail.

    Args:
        items: distinct. fails: presumed for all items together, and presumed not for none; called once for a subset.
    """
    asked, parts = functools.cache(fails), 2
    while len(items) > 1:
        for subset, parts_of_it in _parts(items, parts):
            if asked(subset):
                items, parts = subset, parts_of_it
                break
        else:
            if parts == len(items):
                break
            parts = min(2 * parts, len(items))
    return items


def _parts(items: tuple[T, ...], parts: int) -> Iterator[tuple[tuple[T, ...], int]]:
    """Runs of nearly equal length, then what is left without each; and in how many parts to cut it if it fails."""
    cuts = [(len(items) * i // parts, len(items) * (i + 1) // parts) for i in range(parts)]
    yield from ((items[start:end], 2) for start, end in cuts)
    yield from ((items[:start] + items[end:], max(parts - 1, 2)) for start, end in cuts)
