"""The precision round: everything as given, judged three ways against the float32 truth.

The truth is the reference in float32 with every dtype setting neutralised, its floors measured around it. A site's
floor is the largest of that float32 floor and of how far the reference itself, as given, is from the truth; so a
candidate no further from the truth than the reference passes. Where the candidate declares a coarser working dtype
than the reference (a bfloat16 port against a float32 original, one encoder in bfloat16), the reference is run once more
in that dtype and its distance counts too: the price of the dtype is then told apart from a fault, which costs more.
A single quantity kept in bfloat16 (latents, rotary tables) is judged at the floor of the networks' own dtype.

Cost: one run of each side as given, one more of the reference where the working dtypes differ; the truth's records of
all steps are held (8 KB a site and step).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from parity.compare.conclude import Collected, conclude
from parity.compare.judge import Judge, excuses
from parity.compare.result import Result
from parity.golden.records import Floor, Key, StepRecords
from parity.hooks.sites import SitePlan, plan_sites
from parity.paths.floors import level, make_variants, widen, with_floors
from parity.paths.loaded import Loaded
from parity.paths.loop import LATENTS, Forced, Loop, denoise, prepare, state_of
from parity.paths.reference import load_reference
from parity.runs.local import LocalPass
from parity.runs.pairing import Pairing, Request, Say
from parity.runs.sink import Sink, reached_check, token_grid
from parity.settings import BITS, NEUTRAL, Settings

Truth = tuple[StepRecords, ...]
"""The float32 reference's records of all steps, with their float32 floors."""


def truth_alone(pairing: Pairing, request: Request, say: Say) -> Truth:
    """The truth where no structure round has made it: the reference in float32, with its floors."""
    say("loading the float32 truth")
    given = pairing.reference.side
    side = load_reference(given.family, given.case, given.settings.neutral, given.inputs.of("float32"))
    plan = plan_sites(["", *side.modules], request.sites, request.values)
    found = []
    for step in with_floors(denoise(prepare(side), plan), make_variants(side), plan, None):
        say("truth and its floors", step.step, request.steps)
        found.append(step)
    return tuple(found)


def precision(
    pairing: Pairing,
    request: Request,
    truth: Truth,
    sink: Sink,
    say: Say,
    references: Sequence[Iterable[StepRecords]] | None = None,
) -> Result:
    """Judge a pair as given, three ways.

    Args:
        references: the records of the reference as given and, where it is the coarser one, in the candidate's working
            dtype, where they are known already; None runs both here.

    Raises:
        UnjudgedError: a chosen site never fired, or a setting's code was not reached.
    """
    sink.begin(pairing, "precision")
    plan = plan_sites(["", *pairing.reference.side.modules], request.sites, request.values)
    judge = Judge(excuses(pairing.differing), strict_sites=pairing.strict)
    collected = Collected()
    local = LocalPass(pairing, plan, say) if request.forcing == "module" else None
    coarse: list[StepRecords] = []
    for ours, candidate, judged in _walk(pairing, plan, truth, request, say, references):
        reference, *coarse = ours
        sink.step(StepRecords(reference.step, reference.records, judged.floors), candidate)
        sites = judge.step(judged, candidate)
        if local is not None:
            sites = local.step(judged.step, state_of(reference, "before"), sites, candidate)
        collected.add(judged, candidate, sites)
    beside = {"float32": state_of(truth[-1], "after")[LATENTS]}
    beside.update(("coarse", state_of(step, "after")[LATENTS]) for step in coarse)
    sink.finish(pairing, beside)
    only = tuple(d for d in pairing.differing if d.setting in NEUTRAL)
    checks = (*pairing.checks, reached_check(pairing))
    side = pairing.reference.side
    result = conclude(
        collected,
        model=request.model,
        differing=only,
        preflight=checks,
        failing="precision",
        grid=token_grid(side),
    )
    if local is not None and result.verdict == "fail":
        result = local.descend(result)
    return dataclasses.replace(result, differing_settings=pairing.differing)


def _walk(
    pairing: Pairing,
    plan: SitePlan,
    truth: Truth,
    request: Request,
    say: Say,
    known: Sequence[Iterable[StepRecords]] | None,
) -> Iterator[tuple[list[StepRecords], StepRecords, StepRecords]]:
    """(references, candidate, truth with the floors of this round) of each step."""
    starts = {step.step: state_of(step, "before") for step in truth}
    forced: Forced | None = starts.get if request.forcing == "step" else None
    if known is None:
        known = [denoise(loop, plan, forced) for loop in (pairing.reference, *_coarse(pairing))]
    runs = [iter(steps) for steps in known]
    candidate = denoise(pairing.candidate, plan, forced)
    for true in truth:
        say("reference in its working dtype", true.step, request.steps)
        references = [next(run) for run in runs]
        floors = dict(true.floors)
        for other in references:
            widen(floors, true.records, other.records)
        level(floors, true.records)
        say("candidate" + (" (tracing and compiling)" if true.step == 0 else ""), true.step, request.steps)
        theirs = next(candidate)
        if true.step == 0:
            for side in (pairing.reference.side, pairing.candidate.side):
                side.reached.require()
        yield references, theirs, _declared(true, references[0], floors)


def _declared(true: StepRecords, given: StepRecords, floors: dict[Key, Floor]) -> StepRecords:
    """The truth's numbers under the dtypes that the reference has as given, so that dtypes compare as declared."""
    dtypes = {r.key: r.dtype for r in given.records}
    records = tuple(dataclasses.replace(r, dtype=dtypes.get(r.key, r.dtype)) for r in true.records)
    return StepRecords(true.step, records, floors)


def _coarse(pairing: Pairing) -> list[Loop]:
    """The reference in the candidate's working dtype, where that is the coarser one."""
    ours, theirs = pairing.reference.side, pairing.candidate.side
    if not needs_coarse(ours.settings, theirs.settings):
        return []
    settings = coarse_settings(ours.settings, theirs.settings)
    # The candidate's own embeddings would hide what its encoders did; the reference has some in that dtype too.
    inputs = theirs.inputs if ours.inputs.encoded is None else ours.inputs.of("coarse")
    side: Loaded = load_reference(ours.family, ours.case, settings, inputs)
    return [prepare(side)]


def needs_coarse(reference: Settings, candidate: Settings) -> bool:
    """Whether the candidate's working dtype is the coarser one, so that the reference is run in it too."""
    return candidate.working_bits < reference.working_bits


def coarse_settings(reference: Settings, candidate: Settings) -> Settings:
    """The reference's settings with the candidate's working dtype; one encoder in bfloat16 makes it that throughout."""
    same = reference.replace(dtype=candidate["dtype"], matmul_precision=candidate["matmul_precision"])
    if same.working_bits <= candidate.working_bits:
        return same
    coarse = next(name for name, bits in BITS.items() if bits == candidate.working_bits)
    return same.replace(dtype=coarse)
