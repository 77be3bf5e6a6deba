"""`parity run`: both paths side by side, judged step by step.

Prepares two sides from explicit inputs, checks them before any forward, then walks both loops together. Nothing is
kept but the comparison; with a sink both sides' records are written while they are made. A failing run looks closer
by itself: the block in which the divergence is born is observed module by module.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from parity.compare.conclude import Collected, conclude
from parity.compare.excuses import excuses
from parity.compare.judge import Judge, beyond
from parity.compare.result import Check, Result
from parity.diagnose.descend import descend
from parity.diagnose.pairing import Pairing, Request, Say, pair
from parity.diagnose.preflight import failed
from parity.diagnose.walk import Walk, walk
from parity.golden.records import StepRecords
from parity.hooks.sites import plan_sites
from parity.paths.floors import make_variants
from parity.paths.loop import State, state_of
from parity.reached import Reached

__all__ = ["NoSink", "Pairing", "Request", "Say", "Sink", "pair", "run"]


class Sink(Protocol):
    """Takes the records of a run as they are made."""

    def begin(self, pairing: Pairing) -> None: ...

    def step(self, reference: StepRecords, candidate: StepRecords) -> None: ...

    def finish(self, pairing: Pairing) -> None: ...


class NoSink:
    """Keeps nothing."""

    def begin(self, pairing: Pairing) -> None: ...

    def step(self, reference: StepRecords, candidate: StepRecords) -> None: ...

    def finish(self, pairing: Pairing) -> None: ...


def run(request: Request, say: Say, sink: Sink | None = None) -> Result:
    """Run both paths and compare them.

    Raises:
        UsageError: bad input. UnjudgedError: a chosen site never fired, or a setting's code was not reached.
    """
    sink = sink or NoSink()
    pairing = pair(request, say)
    problem = failed(pairing.checks)
    if problem is not None:
        reason = f"preflight: {problem.check}: {problem.detail}"
        found = {"model": request.model, "differing_settings": pairing.differing, "preflight": pairing.checks}
        return Result("fail", "preflight", reason, **found)  # type: ignore[arg-type]
    sink.begin(pairing)
    plan = plan_sites(["", *pairing.reference.side.modules], request.sites, request.values)
    say("preparing the floors")
    variants = make_variants(pairing.reference.side)
    collected = Collected()
    judge = Judge(excuses(d.setting for d in pairing.differing))
    parted: State | None = None
    for reference, candidate in walk(pairing, variants, Walk(plan, request.forcing, 0, request.steps), say):
        sink.step(reference, candidate)
        sites = judge.step(reference, candidate)
        if parted is None and any(beyond(d) and d.verdict == "fail" for d in sites):
            parted = state_of(reference, "before")
        collected.add(reference, candidate, sites)
    sink.finish(pairing)
    checks = (*pairing.checks, _reached_check(pairing))
    result = conclude(collected, model=request.model, differing=pairing.differing, preflight=checks)
    if parted is None or request.sites != "blocks" or result.verdict != "fail":
        return result
    closer, inside = descend(result, pairing, variants, parted, say)
    return dataclasses.replace(closer, closer=inside)


def _reached_check(pairing: Pairing) -> Check:
    """One line that says which settings proved that their code ran."""

    def names(reached: Reached) -> str:
        return ", ".join(reached.expected) or "none given"

    sides = (pairing.reference.side, pairing.candidate.side)
    detail = "; ".join(f"{s.role}: {names(s.reached)}" for s in sides)
    return Check("settings reached", "pass", f"code replaced by settings ran ({detail})")
