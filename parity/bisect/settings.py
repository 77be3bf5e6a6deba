"""Which of the settings in which two paths differ make a run fail: the fewest that do, together.

How. Delta debugging over the candidate's differing settings (`parity.bisect.swaps`): a probe is a run whose candidate
has some of its own values and for the rest the reference's. The whole set must fail. Where none at all fails too, no
setting is at fault.

Cost. A run a probe: two, and for one culprit of n settings at most 2 log2(n) more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from parity.bisect.report import Report, by_outcome, listing, plural
from parity.bisect.search import Answer, Found, Subject
from parity.bisect.strategy import Order, Outcome
from parity.bisect.swaps import Plan
from parity.errors import ParityError, UsageError
from parity.settings import Settings

if TYPE_CHECKING:
    from parity.runs.request import Request, Say

Judge = Callable[[Settings], tuple[Outcome, str]]
"""Runs with these settings of the candidate: the outcome, and one line that says why. May raise ParityError."""

NO_CULPRIT = "no setting is at fault: the run fails without any of them"


def by_run(request: Request, say: Say) -> Judge:
    """Judges by a run as `parity run` makes it; the reference is measured once."""
    from parity.paths.worker.openers import Workers
    from parity.runs.compare import run
    from parity.runs.memo import Remembering

    openers = Remembering(request.ports.openers or Workers())
    outcomes: dict[str, Outcome] = {"pass": "good", "fail": "bad", "unjudged": "unresolved"}

    def judge(candidate: Settings) -> tuple[Outcome, str]:
        result = run(replace(request, candidate=candidate), say, openers=openers)
        return outcomes[result.verdict], f"{result.verdict}: {result.reason}"

    return judge


class DifferingSettings(Subject[str]):
    """The settings of a plan, by name; a probe gives some of them the candidate's values."""

    noun, phrase, checked = "setting", "with {}", True

    def __init__(self, plan: Plan, judge: Judge) -> None:
        self._plan, self._judge = plan, judge
        self.order = Order(tuple(swap.setting for swap in plan.swaps))
        self.presumed = {self.order.items: "bad"}

    def words(self, key: tuple[str, ...]) -> str:
        return ", ".join(key) or "none of the settings"

    def probe(self, items: tuple[str, ...]) -> Answer[str]:
        try:
            outcome, evidence = self._judge(self._plan.with_only(items))
        except ParityError as error:
            if items == self.order.items:  # the user's own settings: not a combination that the search made
                raise
            return Answer("unresolved", str(error))
        return Answer(outcome, evidence)

    def refusal(self, items: tuple[str, ...], outcome: Outcome, evidence: str) -> ParityError:
        return UsageError(f"with all differing settings the run does not fail: {evidence}")

    def report(self, found: Found[str]) -> Report:
        """The culprits; settings in the order of `parity models`."""
        culprits = [swap for swap in self._plan.swaps if swap.setting in found.answer]
        facts = listing(found.probes, self.words)
        if self._plan.kept:
            facts.append(("the candidate's own in every run", ", ".join(self._plan.kept)))
        probes = f"({plural(len(found.probes), 'probe')} of {plural(len(self._plan.swaps), 'setting')})"
        changes = "; ".join(f"{swap.setting}: {swap.without} -> {swap.candidate}" for swap in culprits)
        together = " together" if len(culprits) > 1 else ""
        answer = f"the run fails{together} with {changes}" if culprits else NO_CULPRIT
        return Report(
            kind="settings",
            answer={
                "culprits": [asdict(swap) for swap in culprits],
                "searched": [asdict(swap) for swap in self._plan.swaps],
                "kept": self._plan.kept,
            },
            probes=tuple(({"settings": p.subject}, p) for p in found.probes),
            sorted_out=by_outcome(found.probes, lambda p: p.subject),
            facts=(*facts, ("", f"{answer} {probes}")),
        )
