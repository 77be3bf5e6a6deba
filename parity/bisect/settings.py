"""The fewest of the candidate's differing settings that make a run fail: delta debugging, one run a probe.

A probe is a run whose candidate has some of its own values and the reference's for the rest (`parity.bisect.swaps`).
Cost: two runs, and at most 2 log2(n) more for one culprit of n settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from parity.bisect.ddmin import ddmin
from parity.bisect.swaps import Plan, Swap
from parity.errors import ParityError, UsageError
from parity.settings import Settings

if TYPE_CHECKING:
    from parity.runs.request import Request, Say

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
    probes: dict[tuple[str, ...], Probe] = {}

    def fails(names: tuple[str, ...]) -> bool:
        if names not in probes:
            try:
                probe = Probe(names, *judge(plan.with_only(names)))
            except ParityError as error:
                if names == every:  # the user's own settings, not a combination of the search's
                    raise
                probe = Probe(names, "skipped", str(error))
            if names == every and probe.outcome != "bad":
                raise UsageError(f"with all differing settings the run does not fail: {probe.evidence}")
            probes[names] = probe
            heard(probe)
        return probes[names].outcome == "bad"

    fails(every)
    culprits = () if fails(()) else ddmin(every, fails)
    return tuple(swap for swap in plan.swaps if swap.setting in culprits), tuple(probes.values())


def by_run(request: Request, say: Say) -> Judge:
    """Judges by a run as `parity run` makes it; the reference is measured once."""
    from parity.runs.compare import run
    from parity.runs.memo import Remembering
    from parity.runs.sides import workers

    openers = Remembering(request.ports.openers or workers(request))
    outcomes: dict[str, Outcome] = {"pass": "good", "fail": "bad", "inconclusive": "skipped"}

    def judge(candidate: Settings) -> tuple[Outcome, str]:
        result = run(replace(request, candidate=candidate), say, openers=openers)
        return outcomes[result.verdict], f"{result.verdict}: {result.reason}"

    return judge
