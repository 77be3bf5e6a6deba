"""The descent into the block in which a divergence starts: both sides observed module by module.

Cost: one step of the reference with its floors, and of the candidate, which is compiled for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from parity.compare.births import excuses
from parity.compare.conclude import divergence
from parity.compare.judge import Judge
from parity.compare.result import Origin, Result
from parity.hooks.sites import SitePlan, block_of
from parity.paths.plan import DEFAULT_KINDS, Plan, State
from parity.records import LOOP
from parity.runs.request import Say
from parity.runs.sides import Ready
from parity.runs.stream import Sink


def descend(
    result: Result, pair: Ready, state: State, say: Say, sink: Sink, unseen: Collection[str] = frozenset()
) -> Result:
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
    say(f"verdict: {result.verdict} ({result.failed}), in {block or 'the model'} at step {step}; looking closer")
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


def block_of_origin(result: Result, trunk: str = "") -> str | None:
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
    None for nothing new."""
    if block is not None:
        return children_plan(block, modules)
    origin = result.origin
    if not unseen or result.failed != "logic" or origin is None or origin.key.module == LOOP:
        return None
    return SitePlan("all", (), frozenset({origin.key.module, *unseen}))


def children_plan(block: str, modules: Sequence[str]) -> SitePlan | None:
    """A plan of a module and all below it; None where there is nothing below."""
    inside = [m for m in modules if m == block or m.startswith(block + ".")]
    return SitePlan("all", (), frozenset(inside)) if len(inside) > 1 else None
