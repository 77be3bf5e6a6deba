"""The precision check: two sides as given, judged three ways, against the float32 truth.

Cost: both sides once; where the candidate works in a coarser dtype than the reference, the reference once more in that
dtype. The truth comes from the logic check, or is made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parity.compare.result import Result
from parity.floors import Floors
from parity.paths.plan import DEFAULT_KINDS, Ends, Plan, changed, state_of
from parity.paths.side import Pair, Side
from parity.records import StepRecords
from parity.runs.descend import unobserved
from parity.runs.follow import behind, holding, placed
from parity.runs.logic import Judged, Truth
from parity.runs.sides import Ready, given_of
from parity.runs.stream import Sink, counted, exhaust, until_end
from parity.settings import BITS, NEUTRAL, Settings


def truth_alone(pair: Ready) -> Truth:
    """The truth where no logic check has made it: the reference in float32, with its floors."""
    request, say = pair.request, pair.say
    say("loading the float32 truth")
    neutral = pair.settings.reference.neutral.as_text()
    spec = changed(pair.sides.reference.spec, settings=neutral, inputs=given_of(pair.facts.reference), run="float32")
    side = pair.sides.reference.patched(spec)
    truth = Truth()
    plan = Plan(sites=pair.plan(), floors=DEFAULT_KINDS, ends=True, forced=request.by_itself)
    for step in counted(until_end(side.observe(plan), truth.ends), "truth and its floors", request.steps, say):
        truth.steps.append(step)
    side.close()
    return truth


def precision(pair: Ready, truth: Truth, sink: Sink) -> Result:
    """Judge a pair as given, three ways."""
    check, request, say = Judged(pair, "precision", sink), pair.request, pair.say
    plan, ends = check.plan, [Ends() for _ in range(3)]
    starts = {step.step: state_of(step, "before") for step in truth.steps}
    start = starts.get if request.isolate == "steps" else None
    extra = _coarse(pair)
    references = [pair.sides.reference, *([] if extra is None else [extra])]
    whole = Plan(sites=plan, ends=True, leave=check.leave)
    begun: StepRecords | None = None
    runs = [
        until_end(side.observe(whole if i == 0 else Plan(sites=plan, ends=True), start=start), ends[i])
        for i, side in enumerate(references)
    ]
    theirs_plan = replace(whole, sites=holding(plan, request))
    candidate = until_end(pair.sides.candidate.observe(theirs_plan, start=start), ends[2])
    for true in truth.steps:
        say("reference in its working dtype", true.step, request.steps)
        given = [next(run) for run in runs]
        check.begin(given[0])
        judged = _three_ways(true, given)
        say(request.candidate_at(true.step), true.step, request.steps)
        check.add(given[0], judged, next(candidate))
        begun = begun or judged
    for run in (*runs, candidate):
        exhaust(run)
    check.settle(references[-1])
    beside = {"float32": truth.ends.own} | ({} if extra is None else {"coarse": ends[1].own})
    if request.by_itself:
        beside = {**truth.ends.beside, **({} if extra is None else ends[1].beside), **beside}
    sink.finish("precision", Pair(ends[0].joined(beside), ends[2]))
    only = tuple(d for d in pair.differing if d.setting in NEUTRAL)
    result = check.conclude(only).resting_on(ends[2].idle)
    if check.following.failed is None and result.verdict == "fail" and result.origin is not None:
        state = check.states[result.origin.key.step]
        result = placed(behind(result, pair, references[-1], state))
    if extra is not None:
        extra.close()
    if begun is not None:
        result = unobserved(result, pair, begun, "precision")
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
