"""`parity run`: both paths side by side, judged step by step, in two rounds.

The structure round gives both sides float32 and the highest matmul precision, every dtype setting neutralised: what is
left to differ is logic. The precision round runs everything as given and judges it three ways, against the float32
truth of the first round (`parity.runs.precision`). Where nothing is there to neutralise the two are the same, and
one is run.

Preflight checks both sides as given before any forward. Nothing is kept but the comparison; with a sink both sides'
records are written while they are made. A failing structure round looks closer by itself: the block in which the
divergence is born is observed module by module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from parity.compare.conclude import Collected, conclude
from parity.compare.judge import Judge, excuses
from parity.compare.preflight import failed
from parity.compare.reason import Reason
from parity.compare.result import Check, Result, Round
from parity.hooks.sites import plan_sites
from parity.paths.floors import make_variants
from parity.paths.inputs import Encoded
from parity.paths.loop import State, state_of
from parity.runs.descend import descend
from parity.runs.doubt import Doubt, doubt_of, settled
from parity.runs.local import LocalPass
from parity.runs.operations import operations_of_origin
from parity.runs.pairing import Pairing, Request, Say, pair
from parity.runs.port_local import require_local
from parity.runs.ports import require_common
from parity.runs.precision import Truth, precision, truth_alone
from parity.runs.sink import REACHED, NoSink, Sink, reached_check, token_grid
from parity.runs.walk import Walk, walk

__all__ = ["NoSink", "Pairing", "Request", "Say", "Sink", "pair", "run"]


Own = Mapping[str, tuple[Encoded, Encoded]]
"""Round -> each side's own embeddings, where the text stage has made them; empty where it is not run."""


def run(request: Request, say: Say, sink: Sink | None = None, own: Own = MappingProxyType({})) -> Result:
    """Run both paths and compare them.

    Raises:
        UsageError: bad input. UnjudgedError: a chosen site never fired, or a setting's code was not reached.
    """
    sink = sink or NoSink()
    pairing = pair(request, say, own.get("precision") or own.get("structure"))
    differing = pairing.differing
    problem = failed(pairing.checks)
    if problem is not None:
        why = Reason(kind="preflight", check=problem.check, detail=problem.detail)
        return Result("fail", "preflight", why, request.model, differing, pairing.checks)
    if request.forcing == "module":
        require_local(pairing.candidate.side)
    plan_sites(["", *pairing.reference.side.modules], request.sites, request.values)  # refuses before anything runs
    exact = dataclasses.replace(request, reference=request.reference.neutral, candidate=request.candidate.neutral)
    checks = pairing.checks
    if exact == request:
        result, _ = _structure(pairing, request, sink, say)
        if request.rounds == "precision":
            result = dataclasses.replace(result, failed="precision" if result.failed else None)
        return _with_rounds(result, checks, request.rounds)
    if request.rounds == "structure":
        del pairing
        result, _ = _structure(pair(exact, say, own.get("structure")), request, sink, say)
        return _with_rounds(dataclasses.replace(result, differing_settings=differing), checks, "structure")
    if request.rounds == "precision":
        truth = truth_alone(pairing, request, say)
        return _with_rounds(precision(pairing, request, truth, sink, say), checks, "precision")
    # Both: the pair as given makes room for the exact one, and is loaded again; weights can be large.
    del pairing
    first, truth = _structure(pair(exact, say, own.get("structure")), request, sink, say)
    first = dataclasses.replace(first, differing_settings=differing)
    if first.verdict != "pass":
        return _with_rounds(first, checks, "structure")
    second = precision(pair(request, say, own.get("precision")), request, truth, sink, say)
    return _with_rounds(second, checks, "precision", first)


def _structure(pairing: Pairing, request: Request, sink: Sink, say: Say) -> tuple[Result, Truth]:
    """Judge a pair two ways, against the reference and its float32 floors; returns what the reference computed too."""
    sink.begin(pairing, "structure")
    plan = plan_sites(["", *pairing.reference.side.modules], request.sites, request.values)
    say("preparing the floors")
    variants = make_variants(pairing.reference.side)
    collected, truth = Collected(), []
    judge = Judge(excuses(pairing.differing), strict_sites=pairing.strict)
    local = LocalPass(pairing, plan, say) if request.forcing == "module" else None
    parted: State | None = None
    doubt: Doubt | None = None
    for reference, candidate in walk(pairing, variants, Walk(plan, request.forcing, 0, request.steps), say):
        sink.step(reference, candidate)
        sites = judge.step(reference, candidate)
        if local is not None:
            sites = local.step(reference.step, state_of(reference, "before"), sites, candidate)
        if parted is None and any(d.verdict == "fail" for d in sites):
            parted = state_of(reference, "before")
        if parted is None and doubt is None and local is None:
            doubt = doubt_of(pairing, reference, candidate, sites)
        collected.add(reference, candidate, sites)
        truth.append(reference)
    if doubt is not None and parted is None:
        local, parted = LocalPass(pairing, plan, say), doubt.state
        collected.sites = settled(doubt, collected.sites, local)
    sink.finish(pairing, {v.name: v.loop.side.backend.host(v.loop.latents) for v in variants})
    checks = (*pairing.checks, reached_check(pairing))
    side = pairing.reference.side
    grid = token_grid(side)
    result = conclude(collected, model=request.model, differing=pairing.differing, preflight=checks, grid=grid)
    result = require_common(result, pairing.candidate.side, side.modules)
    if parted is None or request.sites != "blocks" or result.verdict != "fail":
        return result, tuple(truth)
    closer, inside = descend(result, pairing, variants, parted, say)
    result = dataclasses.replace(closer, closer=inside)
    if local is not None:
        result = local.descend(result)
    if pairing.strict:  # a port's modules are its own
        result = operations_of_origin(result, pairing, parted, say)
    return result, tuple(truth)


def _with_rounds(result: Result, checks: tuple[Check, ...], last: str, first: Result | None = None) -> Result:
    """The result of the last round, with what each round found and the preflight of the sides as given."""
    held = (*checks, *(c for c in result.preflight if c.check == REACHED))
    both = [("structure", first)] if first is not None else []
    names = ["structure", "precision"] if last == "both" else [last]
    both += [(name, result) for name in names]
    rounds = tuple(Round(name, r.verdict, r.why, r.steps, r.origin) for name, r in both)  # type: ignore[arg-type]
    if first is None:
        return dataclasses.replace(result, preflight=held, rounds=rounds)
    why = dataclasses.replace(result.why, precision=True)
    notes = (*first.notes, *result.notes)
    return dataclasses.replace(result, preflight=held, rounds=rounds, why=why, notes=notes)
