"""A compiled port that passed, once more with nothing observed.

Problem. What is observed of a compiled call is an output of its program, and a compiler makes another program of that:
one that it makes wrongly may be right with every module's output kept. On a CPU, XLA compiles a tiny CogVideoX-1.5
through torchax so that noise_pred is 6 % off, and with its blocks observed 4e-6.

How. The first step runs again from the reference's state with no site. What the loop takes from it is judged by the
floors of the same step. It is done in the check of the pair as given, the last one: that program is the user's.
Parity's own candidate is not run again: its program is not.

Cost: one compilation of the candidate and one step, of a port that passed.
"""

from __future__ import annotations

from dataclasses import replace

from parity.compare.births import excuses
from parity.compare.collected import Collected
from parity.compare.conclude import conclude
from parity.compare.judge import Judge
from parity.compare.result import Failed, Result
from parity.paths.plan import Plan, state_of
from parity.records import LOOP, StepRecords
from parity.runs.request import Request, Say
from parity.runs.sides import Ready

NOTE = (
    "with its modules observed the port agrees; compiled with nothing observed it is another program, and that one "
    "differs: --candidate jit=false runs the port as its code says"
)


def unobserved(
    result: Result, pair: Ready, truth: StepRecords, request: Request, say: Say, failing: Failed = "logic"
) -> Result:
    """A passing result, failed where the port's program gives something else when nothing is observed.

    Args:
        truth: the reference's first step, with the floors of the check that `failing` names.
    """
    if result.verdict != "pass" or request.sites == "none" or not pair.port or not pair.facts.candidate.compiled:
        return result
    say("the port's program with nothing observed", truth.step, truth.step + 1)
    start = state_of(truth, "before")
    steps = list(pair.sides.candidate.observe(Plan(), start=start, steps=(truth.step, truth.step + 1)))
    ours, theirs = _of_loop(truth), _of_loop(steps[0])
    judge, collected = Judge(excuses(pair.differing), port=True), Collected()
    collected.add(ours, theirs, judge.step(ours, theirs))
    found = conclude(
        collected, model=result.model, differing=result.differing_settings, preflight=result.preflight, failing=failing
    )
    if found.verdict != "fail":
        return result
    notes = (*result.notes, *found.notes)
    return replace(found, sites=(*result.sites, *found.sites), notes=notes).noted(NOTE)


def _of_loop(step: StepRecords) -> StepRecords:
    records = tuple(r for r in step.records if r.key.module == LOOP)
    return replace(step, records=records, floors={r.key: step.floors[r.key] for r in records if r.key in step.floors})
