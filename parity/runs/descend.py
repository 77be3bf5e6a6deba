"""Closer looks at what was judged: into the block in which a divergence starts, and at a port that passed.

In the block both sides are observed module by module. Cost: one step of the reference with its floors, and of the
candidate, which is compiled for it.

A compiled port that passed is run once more with nothing observed (`unobserved`). What is observed of a compiled call
is an output of its program, and a compiler makes another program of that: one that it makes wrongly may be right with
every module's output kept. On a CPU, XLA compiles a tiny CogVideoX-1.5 through torchax so that noise_pred is 6 % off,
and with its blocks observed 4e-6. So the first step runs again from the reference's state with no site, and what the
loop takes from it is judged by the floors of the same step. It is done in the check of the pair as given, the last one:
that program is the user's. Parity's own candidate is not run again: its program is not. Cost: one compilation of the
candidate and one step, of a port that passed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from parity.compare.births import excuses
from parity.compare.conclude import Collected, conclude, divergence
from parity.compare.judge import Judge
from parity.compare.result import Failed, Origin, Result
from parity.hooks.sites import SitePlan, block_of
from parity.paths.plan import DEFAULT_KINDS, Plan, State, state_of
from parity.records import LOOP, StepRecords
from parity.runs.sides import Ready, Sink


def descend(result: Result, pair: Ready, state: State, sink: Sink, unseen: Collection[str]) -> Result:
    """Observe the block of a failing result's origin module by module, and place the origin there.

    Args:
        state: of the reference, before the step of the origin. sink: takes what is observed.
        unseen: modules that a port named and that were not compared so far: the origin may lie in them as well.
    """
    block = block_of_origin(result, pair.facts.reference.trunk)
    plan = _inside(block, unseen, result, pair.modules)
    if plan is None or result.origin is None:
        return result
    step = result.origin.key.step
    pair.say(f"verdict: {result.verdict} ({result.failed}), in {block or 'the model'} at step {step}; looking closer")
    steps = (step, step + 1)
    first = pair.sides.reference.observe(Plan(sites=plan, floors=DEFAULT_KINDS, forced=True), start=state, steps=steps)
    second = pair.sides.candidate.observe(Plan(sites=plan), start=state, steps=steps)
    ours, theirs = next(first), next(second)
    sink.closer(ours, theirs)
    judge = Judge(excuses(pair.differing), port=pair.port)
    sites = tuple(d for d in judge.step(ours, theirs) if d.key.module != LOOP)
    born = ("module", "input")
    branch = result.origin.key.branch
    at = next((d for d in sites if d.verdict == "fail" and d.birth in born and d.key.branch == branch), None)
    result = replace(result, closer=sites)
    if at is None:
        return result
    birth = at.birth or "module"
    why = divergence(at, birth, outputs_match=result.why.outputs_match, sites=sites)
    return replace(result, origin=Origin(at.key, birth), why=why)


def block_of_origin(result: Result, trunk: str) -> str | None:
    """The block (or child of the module that holds the blocks) in which the origin lies; None for no module.

    Args:
        trunk: the child of the top module that holds its blocks; empty where the top module does.
    """
    if result.failed != "logic" or result.origin is None or result.origin.key.module in ("", LOOP):
        return None
    before = f"{trunk}." if trunk else ""
    inside = result.origin.key.module.removeprefix(before)
    if before and inside == result.origin.key.module:
        return None  # the stage's own ports
    return before + (block_of(inside) or inside.split(".")[0])


def _inside(block: str | None, unseen: Collection[str], result: Result, modules: Sequence[str]) -> SitePlan | None:
    """What a descent observes: all of the block; without one, what a port named inside blocks that it did not name.
    None for nothing new, or nothing below the block."""
    if block is not None:
        inside = [m for m in modules if m == block or m.startswith(block + ".")]
        return SitePlan("all", (), frozenset(inside)) if len(inside) > 1 else None
    origin = result.origin
    if not unseen or result.failed != "logic" or origin is None or origin.key.module == LOOP:
        return None
    return SitePlan("all", (), frozenset({origin.key.module, *unseen}))


NOTE = (
    "with its modules observed the port agrees; compiled with nothing observed it is another program, and that one "
    "differs: --candidate jit=false runs the port as its code says"
)


def unobserved(result: Result, pair: Ready, truth: StepRecords, failing: Failed = "logic") -> Result:
    """A passing result, failed where the port's program gives something else when nothing is observed.

    Args:
        truth: the reference's first step, with the floors of the check that `failing` names.
    """
    compiled = pair.port and pair.facts.candidate.compiled
    if result.verdict != "pass" or pair.request.sites == "none" or not compiled:
        return result
    pair.say("the port's program with nothing observed", truth.step, truth.step + 1)
    start = state_of(truth, "before")
    steps = list(pair.sides.candidate.observe(Plan(), start=start, steps=(truth.step, truth.step + 1)))
    ours, theirs = (step.where(lambda key: key.module == LOOP) for step in (truth, steps[0]))
    judge, collected = Judge(excuses(pair.differing), port=True), Collected()
    collected.add(ours, theirs, judge.step(ours, theirs))
    found = conclude(
        collected, model=result.model, differing=result.differing_settings, preflight=result.preflight, failing=failing
    )
    if found.verdict != "fail":
        return result
    notes = (*result.notes, *found.notes)
    return replace(found, sites=(*result.sites, *found.sites), notes=notes).noted(NOTE)
