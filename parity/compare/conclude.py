"""From judged steps to one verdict.

A run fails if noise_pred or latents leave their floors at any step, whatever explains it, or if a divergence is born
at a site that no declared differing setting explains, even where noise_pred is still within its floor: a wrong
weight barely moves a bfloat16 output, and an end-to-end gate cannot see it. Fail closed: nothing in common, or a
reference that is not finite itself, is `inconclusive`.

What a comparison gathers for its verdict, step by step, are the loop's own values and the judged sites.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from parity.compare.births import KNOWN, LATENTS, call_of, is_argument, is_prediction, is_unlike, unknown
from parity.compare.findings import findings
from parity.compare.judge import Common
from parity.compare.left_out import OTHER_UNIT
from parity.compare.metrics import UNSEEN
from parity.compare.places import block_of
from parity.compare.reason import NAN, UNKNOWN, Distance, Note, Output, Reason
from parity.compare.result import Check, Failed, Origin, Result, SiteDiff, StageDiff, StepDiff, Verdict
from parity.compare.sites import AllSites, beyond, how_many, picked
from parity.compare.values import GIVEN
from parity.floors import L2_LIMIT, LINF_LIMIT
from parity.golden.disk.part import chosen
from parity.records import AFTER, LOOP, OUTSIDE, SCHEDULE, Record, StepRecords, above, any_block
from parity.settings import BITS, BY_NAME, Difference
from parity.settings.chips import NO_CHIP


@dataclass
class Collected:
    """What a comparison has gathered, step by step.

    Attributes:
        steps, sites: of the steps so far, in execution order. unpredicted: steps whose noise_pred the reference alone
            has. unguided: steps in which neither has one. begun: sites around the model at which a divergence started.
    """

    steps: list[StepDiff] = field(default_factory=list)
    sites: AllSites = field(default_factory=AllSites)
    unpredicted: int = 0
    unguided: int = 0
    begun: set[str] = field(default_factory=set)

    def add(self, reference: StepRecords, candidate: StepRecords, sites: Sequence[SiteDiff]) -> None:
        """Take in one judged step; steps without the loop's values (step -1) give sites alone."""
        self.sites.parts.append(sites)
        begins = (d.key for d in picked(sites, "fail") if d.introduced)
        self.begun |= {key.site for key in begins if key.module == LOOP or key.stage == AFTER}
        step = step_diff(reference, candidate, sites)
        if step is not None:
            self.steps.append(step)
        elif any(not r.key.branch for r in chosen(reference.records, is_prediction)):
            self.unpredicted += 1
        elif reference.step >= 0:
            self.unguided += 1


def step_diff(reference: StepRecords, candidate: StepRecords, sites: Sequence[SiteDiff]) -> StepDiff | None:
    """The loop's values of one step; None where a side did not record them."""
    ours, theirs = _scalars(reference.records), _scalars(candidate.records)
    by_port = {(d.key.branch, d.key.port): d.distance for d in picked(sites, which=_is_of_the_loop)}
    predicted = next((d for d in picked(sites, which=is_prediction) if not d.key.branch), None)
    if predicted is None:
        return None

    timestep, sigma, dt = ((ours.get(name, NAN), theirs.get(name, NAN)) for name in ("timestep", "sigma", "dt"))
    of = min(BITS.get(dtype, 0) for dtype in predicted.dtypes)
    return StepDiff(
        reference.step,
        timestep,
        sigma,
        dt,
        predicted.distance,
        by_port.get(("", "latents.after"), UNKNOWN),
        by_port.get(("", "latents.before"), UNKNOWN),
        {branch: d for (branch, port), d in by_port.items() if port == "noise_pred" and branch},
        bits_of_agreement(predicted.distance.rel_l2, of),
        of,
    )


def bits_of_agreement(rel_l2: float, of: int) -> float:
    """Leading bits in which two values agree: -log2 of their relative L2, at most those that the dtype has."""
    return float(np.clip(-np.log2(max(rel_l2, 2.0**-of)), 0.0, of)) + 0.0  # which -0.0 is not


def _is_number(r: Record) -> bool:
    return r.key.module == LOOP and r.shape == ()


def _is_of_the_loop(d: SiteDiff) -> bool:
    return d.key.module == LOOP


def _is_output(d: SiteDiff) -> bool:
    """Whether it is the loop's own, or what is decoded of what it came to."""
    return _is_of_the_loop(d) or (d.key.module == "decode" and not d.key.is_input)


def _is_decoded(d: SiteDiff) -> bool:
    return d.key.module == "decode" and not d.key.is_apart


def _scalars(records: Sequence[Record]) -> dict[str, float]:
    """The loop's own numbers; a golden from elsewhere may hold anything under these names."""
    held = ((r.key.port, np.asarray(r.value)) for r in chosen(records, _is_number))
    return {port: float(value.item()) for port, value in held if value.size == 1 and value.dtype.kind in "biuf"}


# --- the verdict

BEFORE = "text"
"""The stage before the loop, recorded at step -1 as the one after it is."""


WIDEST = 1e-3
"""Relative float32 floor at noise_pred above which an error of a few percent would pass. Innocent ports of a
Flux2 are at 3e-7 to 9e-7, and its floor, wide as it is, at 8e-5."""
WIDEST_ON_A_CHIP = 1e-2
"""The same where the floors allow for a TPU's elementary functions: a bfloat16 network's own floor is as wide."""

WIDEST_ROUNDED = 0.1
"""The same of recordings in a 16-bit dtype, behind which no check in float32 stands: rounding that moves a tenth of the
prediction hides an attention without half of its keys (Flux in bfloat16, whose guidance of 3.5 becomes 3504: 0.42)."""


def widest_of(chip: str, failing: Failed = "logic") -> float:
    """The widest floor to judge by, of floors that allow for this chip, in a check that stands by itself."""
    if failing == "precision":
        return WIDEST_ROUNDED
    return WIDEST if chip == NO_CHIP else WIDEST_ON_A_CHIP


def conclude(
    collected: Collected,
    *,
    model: str,
    differing: Sequence[Difference],
    preflight: Sequence[Check],
    notes: Sequence[Note] = (),
    failing: Failed = "logic",
    grid: tuple[int, int, int] | None = None,
    widest: float = WIDEST,
    seen: Common | None = None,
) -> Result:
    """The verdict over all steps.

    Args:
        failing: which check these steps belong to. grid: of the image tokens, for the findings.
        widest: floor at the first noise_pred above which nothing is judged; infinite in a check that another has gone
            before.
        seen: what both sides had in common, to be said where the candidate is built otherwise.
    """
    sites, steps = _without_unread_latents(collected.sites), tuple(collected.steps)
    unseen = {f"what is decoded {UNSEEN}" for d in picked(sites, which=_is_output) if d.note == UNSEEN}
    notes = (*([] if seen is None else _coverage(seen, sites)), *map(Note, unseen), *notes)
    nothing = Result(
        verdict="inconclusive",
        failed=None,
        why=Reason(kind="inconclusive", problem="no_tensor", detail="sides"),
        model=model,
        differing_settings=tuple(differing),
        preflight=tuple(preflight),
        steps=steps,
        sites=sites,
        notes=notes,
        shown=() if seen is None else tuple(sorted(seen.shown)),
    )
    if not any(_compared(d) for d in sites):
        return nothing
    apart = picked(sites, "ignored", "not compared", which=_is_of_the_loop)
    keys = {d.key for d in apart if d.key.branch or d.note in (UNREAD_LATENTS, OTHER_UNIT)}
    loop = [d for d in picked(sites, which=_is_of_the_loop) if d.key not in keys]
    broken = next((d for d in (*loop, *picked(sites, which=_is_decoded)) if d.nonfinite[0]), None)
    # What was judged before the reference broke stands.
    outputs = [d for d in loop if (broken is None or _before(d, broken)) and beyond(d) and not unknown(d)]
    introduced = (d for d in picked(sites, "fail") if d.introduced)
    births = any(broken is None or _before(d, broken) for d in introduced)
    if not outputs and not births:
        if why := _undecided(collected, broken, widest):
            return replace(nothing, why=why)
        why = Reason(kind="agrees", sites=how_many(sites, "pass", "harmless"), steps=len(steps), output=_worst(steps))
        last = [Note(LAST_STEP)] if collected.unpredicted else [Note(NO_STEP)] if collected.unguided else []
        beside = (*_harmless(differing), *_grown(sites), *_blurred(steps), *notes, *last)
        return replace(nothing, verdict="pass", why=why, notes=beside)
    sites = _behind_arguments(sites) if outputs else sites
    at = _first(sites, outputs)
    missing = () if seen is None else seen.missing.get(call_of(at.key), ())
    why = _divergence(at, sites, missing, outputs_match=bool(steps) and not outputs)
    origin = Origin(at.key, why.birth)
    notes = (*notes, *findings(sites, origin, [d.setting for d in differing], grid))
    return replace(nothing, verdict="fail", failed=failing, why=why, origin=origin, sites=sites, notes=notes)


UNREAD_LATENTS = "in rows that nothing reads: all that the model is given and what is decoded agrees"
"""The note of latents that one loop puts back after each step, and another where they are read."""


UNREAD_SHARE = 0.05
"""Share of the difference of latents that may be left in what reads them: floors of 16 bits are too wide to say."""


def _without_unread_latents(sites: Sequence[SiteDiff]) -> Sequence[SiteDiff]:
    """The sites, latents not compared where nothing else differs and what is decoded was compared."""
    failed = [*picked(sites, "fail")]
    if not failed or any(d.key.site not in LATENTS for d in failed):
        return sites
    read = [d for d in sites if is_argument(d) or d.key.site == GIVEN]
    most = UNREAD_SHARE * min(d.distance.rel_l2 for d in failed)
    decoded = any(d.key.site == GIVEN and d.verdict == "pass" and all(d.dtypes) for d in read)
    if not decoded or any(not d.distance.rel_l2 <= most for d in read):
        return sites
    last = max(d.key.step for d in sites)
    if all(d.key.step == last for d in failed):
        return sites  # the last latents are what the loop gives: a decode may be of others, as of a preview
    return [
        replace(d, verdict="not compared", birth=None, note=UNREAD_LATENTS) if d.verdict == "fail" else d for d in sites
    ]


LAST_STEP = (
    "the candidate's loop was recorded without its scheduler, or keeps its latents in another shape: what it makes of "
    "the predictions was compared as the next step is given it, of the last step not at all"
)


NO_STEP = (
    "no scheduler was recorded: what guidance and the scheduler make of the predictions was compared as the next step "
    "is given it, of the last step not at all; give parity.record the scheduler that the loop steps with"
)


def _seen_in_next_step(sites: Sequence[SiteDiff]) -> bool:
    """Whether what guidance and the scheduler made was compared as what the model is given in the next step."""
    given = [d for d in sites if is_argument(d) and d.key.step > 0 and not d.key.is_apart]
    return bool(given) and all(d.verdict in ("pass", "harmless") for d in given)


def _undecided(collected: Collected, broken: SiteDiff | None, widest: float) -> Reason | None:
    """Why nothing can be judged of sites that all agree; None where it can.

    Of the floors the first step's prediction counts: later steps' hold what the loop has grown to.

    Args:
        broken: the first of the loop's values that is not finite on the reference. widest: see `conclude`.
    """
    sites, steps = collected.sites, collected.steps
    if broken is not None:
        return Reason(kind="inconclusive", problem="not_finite", first=broken.key)
    if steps and steps[0].noise_pred.floor > widest:
        wide = (d.key for d in sites if d.key.step == steps[0].step and d.distance.floor > widest)
        limit = f"{widest:.0e}".replace("e-0", "e-")
        far = steps[0].noise_pred
        return Reason(kind="inconclusive", problem="wide_floor", first=next(wide, None), distance=far, detail=limit)
    if without := [d.key for d in picked(sites, "inconclusive")]:
        return Reason(kind="inconclusive", problem="some_floors", first=without[0], sites=len(without))
    if collected.unpredicted and not _seen_in_next_step(sites):
        return Reason(kind="inconclusive", problem="no_prediction", steps=collected.unpredicted)
    return None


def _before(d: SiteDiff, broken: SiteDiff) -> bool:
    """Whether a site was seen in an earlier step; the stage after the loop is recorded at step -1."""
    if d.key.stage == AFTER or broken.key.stage == AFTER:
        return d.key.stage != AFTER
    return d.key.step < broken.key.step


def _compared(d: SiteDiff) -> bool:
    """Whether tensors with elements met at this site, finite or not, and could be judged."""
    return d.verdict not in ("ignored", "not compared") and all(d.dtypes) and all(map(math.prod, d.shapes))


def _first(sites: Sequence[SiteDiff], outputs: Sequence[SiteDiff]) -> SiteDiff:
    """The first birth, one that no setting explains before one that a setting does, else where growth crossed."""
    introduced = [d for d in picked(sites, "fail", "harmless") if d.introduced]
    unexplained = (d for d in introduced if d.verdict == "fail")
    first = next(itertools.chain(unexplained, introduced, (d for d in sites if d.birth), outputs))  # else none failed
    if first.introduced and first.key.module == SCHEDULE:
        return _beside_the_schedule(sites, first)
    return first


def _behind_arguments(sites: Sequence[SiteDiff]) -> Sequence[SiteDiff]:
    """Sites of a comparison whose outputs differ: where an argument of the model has another shape, as a prompt of
    another length has, the divergence begins with it and not in the calls whose inputs it leaves without a match."""
    unlike = {(d.key.step, d.key.branch) for d in picked(sites, "not compared") if is_unlike(d)}
    if not unlike:
        return sites
    calls = {(d.key.step, call_of(d.key)) for d in sites if d.verdict == "not compared" and d.key.is_input}
    births = (d.key for d in sites if d.introduced and d.verdict == "fail" and (d.key.step, d.key.branch) in unlike)
    behind = {key for key in births if (key.step, call_of(key)) in calls}
    led = {(key.step, key.branch) for key in behind}

    def placed(d: SiteDiff) -> SiteDiff:
        if is_unlike(d) and (d.key.step, d.key.branch) in led:
            return replace(d, verdict="fail", birth="input")
        return replace(d, birth="propagated") if d.key in behind else d

    return [placed(d) for d in sites]


def _beside_the_schedule(sites: Sequence[SiteDiff], schedule: SiteDiff) -> SiteDiff:
    """Where the transformer's own divergence is born in a step whose timestep agrees, else the schedule.

    The schedule is recorded whole in its first step, whose transformer reads nothing of it but that step's timestep:
    what is born there is not the schedule's doing, and comes before the scheduler reads more of it.
    """
    wrong = [d for d in sites if d.key.step == schedule.key.step and d.verdict == "fail"]
    if any(d.key.site == f"{LOOP}:timestep" for d in wrong):
        return schedule
    own = (d for d in wrong if d.key.module not in (SCHEDULE, LOOP) and d.birth == "module")
    return next(own, schedule)


def _worst(steps: Sequence[StepDiff]) -> Output | None:
    worst = max(steps, key=lambda s: s.noise_pred.rel_l2, default=None)
    return None if worst is None else Output("noise_pred", worst.noise_pred)


def _harmless(differing: Sequence[Difference]) -> Iterator[Note]:
    for d in differing:
        differs = f"{d.setting} differs ({d.reference} against {d.candidate})"
        known = BY_NAME.get(d.setting)  # none of a script's config
        text = f"harmless: {differs} and what counts agrees within its floor"
        if d.setting.startswith("vae.") and (known is None or not known.is_of(["transformer"])):
            text = f"{differs}: noise_pred and latents do not depend on it, what is decoded does"
        yield Note(text, d.setting)


def _blurred(steps: Sequence[StepDiff]) -> Iterator[Note]:
    """Later steps whose prediction rounding alone moves far: the first one's floor was looked at."""
    first = next((s for s in steps[1:] if s.noise_pred.floor > WIDEST_ROUNDED), None)
    if first is not None:
        floor = f"{max(s.noise_pred.floor for s in steps[1:]):.1e}"
        text = f"from step {first.step} on rounding alone moves noise_pred by up to {floor}"
        yield Note(f"{text}: a smaller fault is not seen there")


def _grown(sites: Sequence[SiteDiff]) -> Iterator[Note]:
    if grown := how_many(sites, "fail"):
        yield Note(f"{grown} sites are beyond their floors by growth alone; nothing was introduced at any of them")


def _coverage(seen: Common, sites: Sequence[SiteDiff]) -> Iterator[Note]:
    """How much of the reference was compared."""
    left = [*picked(sites, "not compared")]
    if not seen.modules and not left:
        return
    text = f"{len(seen.compared)} of the reference's {len(seen.modules)} modules were compared"
    if any(seen.alone):
        text += f"; without a counterpart: {seen.alone[0]} tensors of the reference, {seen.alone[1]} of the candidate"
    first = next((d for d in left if d.note), None)
    if first is not None:
        text += f"; not compared, since they do not line up: {len(left)} tensors, first {first.key.site} ({first.note})"
    yield Note(text)
    yield from _never_named(seen, sites)


def _never_named(seen: Common, sites: Sequence[SiteDiff]) -> Iterator[Note]:
    """In a step that differs, notes on blocks that the candidate never names although it names most of their list."""
    first = next(picked(sites, "fail"), None)
    if first is None:
        return
    both = (d.key.module for d in picked(sites, step=first.key.step) if all(d.dtypes))
    every, named = (set(map(block_of, some)) - {""} for some in (seen.modules, both))
    for kind in sorted(set(map(any_block, every - named))):
        missing, others = ([b for b in sorted(some) if any_block(b) == kind] for some in (every - named, named))
        if len(others) > len(missing):
            yield Note(
                f"the candidate names {len(others)} of {kind}, and not {', '.join(missing)}: check that it calls all"
            )


def _unpaired(before: Sequence[SiteDiff], first: SiteDiff) -> Mapping[str, str]:
    """What could not be compared before the first that differs, with how it does not line up on both sides: inputs of
    its own call and of modules around it, and modules since the last site seen to agree."""
    inputs: dict[str, str] = {}
    around = above(first.key.module)
    modules: dict[str, str] = {}
    for d in before:
        if d.key.branch != first.key.branch or d.key.is_apart:
            continue
        if d.verdict == "pass":
            modules.clear()
        elif d.verdict != "not compared" or d.note in KNOWN:
            continue
        elif d.key.is_input and call_of(d.key) == call_of(first.key):
            inputs.setdefault(f"its input {d.key.port.removeprefix('in.')}", d.note)
        elif d.key.is_input and d.key.module and d.key.module in around:
            inputs.setdefault(f"{d.key.module}'s input {d.key.port.removeprefix('in.')}", d.note)
        elif d.key.module:
            modules.setdefault(d.key.module, d.note)
    return inputs | modules


def begun(result: Result, at: SiteDiff, sites: Sequence[SiteDiff]) -> Result:
    """A failing result whose first divergence is this site.

    Args:
        sites: those that were judged, by which it is known what comes before it.
    """
    why = _divergence(at, sites, (), outputs_match=result.why.outputs_match)
    return replace(result, origin=Origin(at.key, why.birth), why=why)


def _divergence(at: SiteDiff, sites: Sequence[SiteDiff], missing: Sequence[str], *, outputs_match: bool) -> Reason:
    """The reason of a comparison that a site decides.

    Args:
        missing: inputs of its call that the candidate does not hand out. outputs_match: whether noise_pred and latents
            match all the same.
    """
    alone = math.isnan(at.distance.rel_l2) and not math.isnan(at.local.rel_l2)
    local = alone or not math.isnan(at.local.ratio)
    within_norm = not local and at.distance.ratio <= L2_LIMIT
    before = list(itertools.takewhile(lambda d: d.key != at.key, picked(sites, step=at.key.step)))
    agreeing = [d for d in before if d.verdict == "pass"]
    inputs = [d for d in agreeing if d.key.is_input and call_of(d.key) == call_of(at.key)]
    # The last that were seen to agree: the inputs of its call, else what came before it.
    after = inputs or [d for d in agreeing if d.key.branch in (at.key.branch, "")][-1:]
    unpaired = _unpaired(before, at)
    if inputs and not at.key.is_input:
        unpaired = {**unpaired, **{f"its input {port}": "the candidate does not hand it out" for port in missing}}
    element = at.linf_ratio if within_norm and at.linf_ratio > LINF_LIMIT else NAN
    return Reason(
        kind="first_divergence",
        first=at.key,
        birth=at.birth or "propagated",
        after=tuple(d.key for d in after),
        not_compared=tuple(unpaired),
        unlike=next(iter(unpaired.values()), ""),
        called=tuple(dict.fromkeys(d.called for d in ([at] if at.key.is_input else inputs) if d.called)),
        distance=at.local if local else at.distance,
        element=element,
        part=at.peak if within_norm and math.isnan(element) else NAN,
        note=at.note,
        fed="candidate" if local else "own",
        outputs_match=outputs_match,
    )


def stage_diff(judged: Result, name: str, in_chain: Distance = UNKNOWN) -> StageDiff:
    """The line of a stage, for its worst output."""
    outputs = (d for d in picked(judged.sites, which=_is_output) if d.key.stage == name and not d.key.is_apart)
    worst = max(outputs, key=lambda d: d.distance.ratio, default=None)
    by_itself = UNKNOWN if worst is None else worst.distance
    output = "" if worst is None else worst.key.port
    return StageDiff(name, output, by_itself, in_chain, judged.verdict, judged.why)


def recorded_stages(result: Result) -> tuple[StageDiff, ...]:
    """The lines of a diff of two goldens: each side's encoders were given the same tokens, and its decoder the latents
    of its own loop."""
    found = []
    for name in (BEFORE, AFTER):
        sites = [d for d in picked(result.sites, step=OUTSIDE) if d.key.stage == name]
        if not sites:
            continue
        carried = [d for d in sites if d.verdict == "fail"]
        failed = any(d.introduced or (d.key.module == LOOP and beyond(d)) for d in carried)
        why = Reason(kind="output" if failed else "agrees", stage=name, sites=len(sites))
        if carried and not failed:
            text = f"{name}: {len(carried)} of {len(sites)} sites differ by what they are given, nothing begins there"
            why = Reason(kind="agrees", stage=name, detail=text)
        line = stage_diff(result, name)
        by_itself, in_chain = (UNKNOWN, line.by_itself) if name == AFTER else (line.by_itself, UNKNOWN)
        verdict: Verdict = "inconclusive" if result.verdict == "inconclusive" else "fail" if failed else "pass"
        found.append(StageDiff(name, line.output, by_itself, in_chain, verdict, why))
    return tuple(found)
