"""The precision check: two sides as given, judged three ways, against the float32 truth.

Cost: both sides once; where the candidate works in a coarser dtype than the reference, the reference once more in that
dtype. The truth comes from the logic check, or is made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parity.compare.births import excuses
from parity.compare.collected import Collected
from parity.compare.conclude import conclude
from parity.compare.judge import Judge
from parity.compare.result import Failed, Result, SiteDiff
from parity.compare.sites import Sites
from parity.floors import Floors
from parity.paths.plan import DEFAULT_KINDS, Ends, Plan, State, changed, state_of
from parity.paths.side import Pair, Side
from parity.records import StepRecords
from parity.runs.closer.follow import Following, behind, holding, placed, without_held
from parity.runs.closer.unobserved import unobserved
from parity.runs.logic import Truth, grid_of, reached
from parity.runs.request import Request, Say
from parity.runs.sides import Ready, given_of
from parity.runs.stream import Sink, counted, exhaust, until_end
from parity.settings import BITS, NEUTRAL, Settings


def truth_alone(pair: Ready, request: Request, say: Say) -> Truth:
    """The truth where no logic check has made it: the reference in float32, with its floors."""
    say("loading the float32 truth")
    neutral = pair.settings.reference.neutral.as_text()
    spec = changed(pair.sides.reference.spec, settings=neutral, inputs=given_of(pair.facts.reference), run="float32")
    side = pair.sides.reference.patched(spec)
    truth = Truth()
    plan = Plan(sites=pair.plan(request), floors=DEFAULT_KINDS, ends=True, forced=request.by_itself)
    for step in counted(until_end(side.observe(plan), truth.ends), "truth and its floors", request.steps, say):
        truth.steps.append(step)
    side.close()
    return truth


def precision(pair: Ready, request: Request, truth: Truth, sink: Sink, say: Say, coarse: Side | None = None) -> Result:
    """Judge a pair as given, three ways.

    Args:
        coarse: the reference in the candidate's working dtype, where that is the coarser one and loaded already.
    """
    leave = sink.begin(pair.facts, "precision")
    plan = pair.plan(request)
    judge = Judge(excuses(pair.differing), port=pair.port)
    collected, ends = Collected(), [Ends() for _ in range(3)]
    starts = {step.step: state_of(step, "before") for step in truth.steps}
    start = starts.get if request.isolate == "steps" else None
    extra = coarse or _coarse(pair)
    references = [pair.sides.reference, *([] if extra is None else [extra])]
    whole = Plan(sites=plan, ends=True, leave=leave)
    begun: StepRecords | None = None
    runs = [
        until_end(side.observe(whole if i == 0 else Plan(sites=plan, ends=True), start=start), ends[i])
        for i, side in enumerate(references)
    ]
    theirs_plan = replace(whole, sites=holding(plan, request))
    candidate = until_end(pair.sides.candidate.observe(theirs_plan, start=start), ends[2])
    following = Following(pair)
    states: dict[int, State] = {}
    for true in truth.steps:
        say("reference in its working dtype", true.step, request.steps)
        given = [next(run) for run in runs]
        judged = _three_ways(true, given)
        say(request.candidate_at(true.step), true.step, request.steps)
        theirs, outputs = without_held(next(candidate))
        states[true.step] = state_of(given[0], "before")
        sink.step(StepRecords(true.step, given[0].records, judged.floors), theirs)
        sites: Sequence[SiteDiff] = judge.step(judged, theirs)
        following.add(given[0], outputs, sites)
        collected.add(judged, theirs, sites)
        begun = begun or judged
    for run in (*runs, candidate):
        exhaust(run)
    collected.sites = Sites.of(following.settle(references[-1], collected.sites, say))
    beside = {"float32": truth.ends.own} | ({} if extra is None else {"coarse": ends[1].own})
    if request.by_itself:
        beside = {**truth.ends.beside, **({} if extra is None else ends[1].beside), **beside}
    sink.finish("precision", Pair(ends[0].joined(beside), ends[2]))
    only = tuple(d for d in pair.differing if d.setting in NEUTRAL)
    checks = (*pair.checks, reached(pair))
    failing: Failed = "precision"
    result = conclude(
        collected,
        model=request.model,
        differing=only,
        preflight=checks,
        failing=failing,
        grid=grid_of(pair),
        seen=judge.seen if pair.port else None,
    )
    result = result.noted(following.lost) if following.lost else result
    result = result.resting_on(ends[2].idle)
    if following.failed is None and result.verdict == "fail" and result.origin is not None:
        state = states[result.origin.key.step]
        result = placed(behind(result, pair, references[-1], state, request, say))
    if extra is not None and coarse is None:
        extra.close()
    if begun is not None:
        result = unobserved(result, pair, begun, request, say, failing)
    return replace(result, differing_settings=pair.differing)


def _three_ways(true: StepRecords, references: Sequence[StepRecords]) -> StepRecords:
    """The truth's numbers with the floors of this check, under the dtypes that the reference has as given."""
    floors = Floors(true.records, true.floors)
    for other in references:
        floors.add(other.records)
    dtypes = {r.key: r.dtype for r in references[0].records}
    return StepRecords(
        true.step, tuple(replace(r, dtype=dtypes.get(r.key, r.dtype)) for r in true.records), floors.done()
    )


def _coarse(pair: Ready) -> Side | None:
    """The reference in the candidate's working dtype, where that is the coarser one."""
    ours, theirs = pair.settings.reference, pair.settings.candidate
    if theirs.working_bits >= ours.working_bits:
        return None
    settings = coarse_settings(ours, theirs).as_text()
    # The candidate's own embeddings would hide what its encoders did; the reference has some in that dtype too.
    spec = changed(pair.sides.reference.spec, settings=settings, inputs=given_of(pair.facts.candidate), run="coarse")
    return pair.sides.reference.patched(spec)


def coarse_settings(reference: Settings, candidate: Settings) -> Settings:
    """The reference's settings with the candidate's working dtype; one encoder in bfloat16 makes it that throughout."""
    same = reference.with_({name: candidate[name] for name in ("dtype", "matmul_precision")})
    if same.working_bits <= candidate.working_bits:
        return same
    coarse = next(name for name, bits in BITS.items() if bits == candidate.working_bits)
    return same.with_({"dtype": coarse})
