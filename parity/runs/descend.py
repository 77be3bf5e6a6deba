"""Looking closer: where a divergence is born inside a block, only that block is observed, module by module.

The step of the origin is run again on both sides from the reference's latents, so that a full-size model is searched
with the reductions of one block at a time. Cost: one step of the reference with its floors, and one compilation and
step of the candidate.
"""

from __future__ import annotations

import dataclasses

from parity.compare.conclude import divergence
from parity.compare.judge import Judge, excuses
from parity.compare.result import Origin, Result, SiteDiff
from parity.golden.records import LOOP, Key
from parity.hooks.sites import SitePlan, block_of
from parity.paths.floors import Variant
from parity.paths.loop import State
from parity.runs.pairing import Pairing, Say
from parity.runs.walk import Walk, stand_before, walk


def suspect_of(result: Result) -> str | None:
    """The module to look into: the block (or child of the top module) in which the origin lies; None for no module."""
    if result.failed != "structure" or result.origin is None or result.origin.key.module in ("", LOOP):
        return None
    module = result.origin.key.module
    return block_of(module) or module.split(".")[0]


def children_plan(suspect: str, modules: tuple[str, ...]) -> SitePlan | None:
    """A plan of the suspect and all below it; None where there is nothing below."""
    inside = [m for m in modules if m == suspect or m.startswith(suspect + ".")]
    return SitePlan("all", (), frozenset(inside)) if len(inside) > 1 else None


def descend(
    result: Result, pairing: Pairing, variants: list[Variant], state: State, say: Say
) -> tuple[Result, tuple[SiteDiff, ...]]:
    """Refine the origin of a failing result; returns it with the sites seen inside the suspect.

    Args:
        state: of the reference, before the step of the origin.
    """
    suspect = suspect_of(result)
    plan = children_plan(suspect, tuple(pairing.reference.side.modules)) if suspect is not None else None
    if suspect is None or plan is None or result.origin is None:
        return result, ()
    step = result.origin.key.step
    say(f"looking closer at {suspect}")
    closer = dataclasses.replace(
        pairing,
        reference=stand_before(pairing.reference, step, state),
        candidate=stand_before(pairing.candidate, step, state),
    )
    runs = [dataclasses.replace(v, loop=stand_before(v.loop, step, state, v.around)) for v in variants]
    judge = Judge(excuses(pairing.differing), strict_sites=pairing.strict)
    ((reference, candidate),) = walk(closer, runs, Walk(plan, "step", step, step + 1), say)
    sites = tuple(d for d in judge.step(reference, candidate) if d.key.module != LOOP)
    origin = _first_birth(sites, result.origin.key)
    if origin is None:
        return result, sites
    at = next(d for d in sites if d.key == origin.key)
    why = divergence(at, origin.birth, outputs_match=result.why.outputs_match)
    return dataclasses.replace(result, origin=origin, why=why), sites


def _first_birth(sites: tuple[SiteDiff, ...], known: Key) -> Origin | None:
    """The first birth in the branch of the known origin; an input that differs belongs to the code before it."""
    for d in sites:
        if d.verdict == "fail" and d.birth in ("module", "input") and d.key.branch == known.branch:
            return Origin(d.key, d.birth)
    return None
