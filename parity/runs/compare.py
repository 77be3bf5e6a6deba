"""The one comparison: two sides, judged step by step in two checks, and looked at closer where they fail.

The logic check gives both sides float32 and the highest matmul precision, every dtype setting neutralised: what is
left to differ is logic. The precision check runs everything as given and judges it three ways, against the float32
truth of the first check: a site's floor is the largest of the float32 floor and of how far the reference itself, as
given, is from the truth; where the candidate works in a coarser dtype than the reference, the reference is run once
more in that dtype and its distance counts too. Where nothing is there to neutralise the two checks are the same, and
one is run.

A stage outside the loop, compared by itself, has the same checks, floors, closer looks and verdict (`compare_stage`);
the reason names the stage and its worst output in the place of steps. Several results become one (`merged`): those of a
run's stages, or of the encoders of its text stage.

Nothing is kept but the comparison; a sink takes both sides' records while they are made. Imports neither torch nor jax.
Cost: each side's run, and the reference's beside it that measure its floors; the truth's records of all steps are held
where there are two checks (8 KB a site and step).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from parity.compare.independent import in_order, of_weights, settled
from parity.compare.preflight import WEIGHTS, causes_of, failed
from parity.compare.reason import Note, Output, Reason
from parity.compare.result import Check, Checked, CheckName, Result
from parity.errors import InconclusiveError, Say
from parity.paths.plan import Ends, Openers, Pair, Role, Start
from parity.records import LOOP
from parity.runs.checks import REACHED, logic, precision, truth_alone
from parity.runs.follow import unobserved
from parity.runs.request import Request
from parity.runs.sides import Ready, Sink, ready, workers
from parity.settings import BITS, differences
from parity.transforms import CASTS

Encodings = Mapping[str, Pair[Start]]
"""Check -> each side's own embeddings, where the text stage has made them."""


def run(request: Request, say: Say, sink: Sink | None = None, openers: Openers | None = None) -> Result:
    """Run both paths and compare them.

    Args:
        openers: who loads the sides; by default each in a process of its own, for this comparison alone.

    Raises:
        UsageError: bad input, or a side failed. InconclusiveError: a chosen site never fired, or a setting was ignored.
    """
    with contextlib.ExitStack() as stack:
        openers = openers or request.ports.openers or stack.enter_context(workers(request))
        if request.stages == ("transformer",):
            return compare(request, openers, say, sink or Sink())
        from parity.runs.chain import run_chain

        return run_chain(request, openers, say, sink or Sink())


def compare(request: Request, openers: Openers, say: Say, sink: Sink, own: Encodings = MappingProxyType({})) -> Result:
    """See `run`."""
    exact = request.of("logic")
    with ready(request, openers, say, own.get("precision") or own.get("logic")) as given:
        problem = failed([c for c in given.checks if c.check != WEIGHTS] if given.port else given.checks)
        if problem is not None:
            why, causes = _of_check(problem), tuple(causes_of(problem, given.differing))
            return Result("fail", "preflight", why, request.model, given.differing, given.checks, causes=causes)
        given.plan()  # refuses before anything runs
        if exact == request:
            result, truth = logic(given, sink)
            result = unobserved(result, given, truth.steps[0])
            if result.verdict == "fail" and _is_narrow(given):
                given = replace(given, checks=tuple(map(_of_rounded_weights, given.checks)))
            if request.checks == "precision":
                result = replace(result, failed="precision" if result.failed else None)
            both: tuple[CheckName, ...] = ("logic", "precision")
            return _decided(given, {name: result for name in both if request.checks in ("both", name)})
        if request.checks == "precision":
            return _decided(given, {"precision": precision(given, truth_alone(given), sink)})
    # The pair as given makes room for the exact one, and is loaded again: weights can be large.
    with ready(exact, openers, say, own.get("logic")) as pair:
        rounded = _rounded(pair, request)
        if rounded is None:
            first, truth = logic(pair, sink)
            if request.checks == "logic":
                first = unobserved(first, pair, truth.steps[0])
    if rounded is not None:
        if request.checks == "logic":
            raise InconclusiveError(NARROW.format(rounded))
        return compare(replace(request, checks="precision"), openers, say, sink, own).noted(NARROW.format(rounded))
    if request.checks == "logic" or first.verdict != "pass":
        return _decided(given, {"logic": first})
    with ready(request, openers, say, own.get("precision")) as pair:
        second = precision(pair, truth, sink)
    return _decided(given, {"logic": first, "precision": second})


def _decided(given: Ready, found: Mapping[CheckName, Result]) -> Result:
    """The result of the last check, with what each came to, the preflight of the sides as given, and the causes in
    order. A port's weights fail only where a site does, as it may permute or transpose what it names as the reference
    does.

    Args:
        found: by check, in their order.
    """
    first, last = next(iter(found.values())), [*found.values()][-1]
    preflight = (*given.checks, *(c for c in last.preflight if c.check == REACHED))
    judged = tuple(Checked(name, r.verdict, r.why, r.steps, r.origin) for name, r in found.items())
    shown = tuple(sorted({*first.shown, *last.shown}))
    result = replace(last, differing_settings=given.differing, preflight=preflight, checks=judged, shown=shown)
    result = settled(result) if given.port else result
    if first is not last:  # two checks ran, and not one that is both
        notes = tuple(dict.fromkeys((*first.notes, *last.notes)))
        result = replace(result, why=replace(last.why, precision=True), notes=notes)
    other = failed(result.preflight)
    if other is None:
        return in_order(replace(result, causes=(*result.causes, *of_weights(result))))
    if result.verdict != "pass" or other.computed:
        return in_order(replace(result, verdict="fail", failed="preflight", why=_of_check(other)))
    laid_out = replace(other, verdict="explained", detail=f"{other.detail}: all sites agree")
    return replace(result, preflight=tuple(laid_out if c is other else c for c in result.preflight))


def _of_check(problem: Check) -> Reason:
    return Reason(kind="preflight", check=problem.check, detail=problem.detail)


NARROW = (
    "judged by the precision check alone: the {0}'s weights are rounded to 16 bits even where it is asked for float32; "
    "load the {0} in float32 (a file's port: in case.settings['dtype']) to have it checked in float32 too"
)


def _rounded(exact: Ready, request: Request) -> Role | None:
    """The side of a port's pair that works in 16 bits and, asked for float32, has weights rounded to them: by half of
    all more than a side of a wider dtype, as zeros and ones are too; or the candidate, if most of its weights are in 16
    bits."""
    ours, theirs = exact.facts.reference, exact.facts.candidate
    bits = [BITS[side.text("dtype")] for side in (request.reference, request.candidate)]
    if not exact.port:
        return None
    if bits[0] < bits[1] and theirs.weights and ours.narrow > theirs.narrow + 0.5:
        return "reference"
    if request.candidate.working_bits == BITS["float32"]:
        return None
    sizes = {name: math.prod(shape) for name, (shape, _) in theirs.weights.items()}
    narrow = sum(size for name, size in sizes.items() if BITS.get(theirs.dtypes.get(name, ""), 24) < BITS["float32"])
    rounded = _is_narrow(exact) or (bits[1] < bits[0] and theirs.narrow > ours.narrow + 0.5)
    return "candidate" if rounded or 2 * narrow > sum(sizes.values()) else None


def _is_narrow(pair: Ready) -> bool:
    """Whether a port's weights are rounded to 16 bits, and the reference's are not."""
    return pair.port and pair.facts.candidate.narrow > 0.5 > pair.facts.reference.narrow


def _of_rounded_weights(check: Check) -> Check:
    """A preflight check of a pair that differs: weights that are nearly equal, since one side's are rounded, fail."""
    if not check.near:
        return check
    dtype = check.near if check.near in CASTS else "bfloat16"
    how = f"parameters of the port's are rounded to 16 bits: load them in float32, or compare with `-c dtype={dtype}`"
    return replace(check, verdict="fail", computed=True, detail=f"{len(check.at)} {how}")


def compare_stage(
    request: Request, openers: Openers, say: Say, own: Mapping[str, Pair[Start]]
) -> tuple[Result, dict[str, Pair[Ends]]]:
    """Compare one stage; returns its result and what the sides of each check came to.

    Args:
        request: of one stage, with its own sites and settings. own: check -> each side's explicit inputs.

    Raises:
        UsageError: bad input. InconclusiveError: a chosen site never fired, or a setting's code was not reached.
    """
    kept = Sink()
    name = f"{request.stage} {request.part}".rstrip()

    def told(text: str, done: int | None = None, total: int | None = None) -> None:
        say(f"{name}: {text}")

    result = compare(request, openers, told, kept, own)
    why = _why(result, request)
    notes = tuple(n for n in result.notes if not n.setting)
    return replace(result, preflight=(), differing_settings=(), checks=(), notes=notes, why=why), kept.ends


def _why(result: Result, request: Request) -> Reason:
    """The reason of a stage: its outputs stand where the loop's would."""
    outputs = [d for d in result.sites if d.key.module == LOOP and not d.key.is_apart]
    worst = max(outputs, key=lambda d: d.distance.rel_l2, default=None)
    output = None if worst is None else Output(worst.key.port, worst.distance)
    return replace(
        result.why, stage=request.stage, encoder=request.part, output=output, outputs_match=False, precision=False
    )


def merged(found: Mapping[str, Result], request: Request) -> Result:
    """One result of several by name, in their order: the first that fails decides, then the first inconclusive."""
    results = [*found.values()]
    base = found.get("transformer", results[0])
    decides = min(results, key=lambda r: ("fail", "inconclusive", "pass").index(r.verdict))
    why = decides.why
    if decides.verdict == "pass":
        why, decides = Reason(kind="agrees", together=tuple(r.why for r in results)), base
    others = {name: r for name, r in found.items() if r is not decides and r.verdict == "fail"}
    notes = [note for r in results for note in r.notes]
    notes += [Note(f"{name} fails too: {r.reason}") for name, r in others.items()]
    return replace(
        base,
        verdict=decides.verdict,
        failed=decides.failed,
        why=why,
        origin=decides.origin,
        closer=decides.closer,
        differing_settings=differences(request.reference, request.candidate),
        preflight=tuple(check for r in results for check in r.preflight),
        sites=tuple(site for r in results for site in r.sites),
        stages=tuple(stage for r in results for stage in r.stages),
        frames=tuple(frame for r in results for frame in r.frames),
        notes=tuple(notes),
    )
