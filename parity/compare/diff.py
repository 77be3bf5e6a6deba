"""The diff of two goldens: no model, no torch, no jax.

Problem. What a GPU and a TPU computed meets on a third machine that has neither, months later perhaps, and may be
larger than its memory.

How. Provenances first (`parity.compare.comparable`): what is not comparable ends it. Then step by
step: both sides' parts are read, checked, put under the reference's names and judged as a live run is. Fail closed:
without floors in the reference only exact equality passes, and where nothing but sites without floors differ the diff
is inconclusive, with the command that measures floors.

Cost. One pass; memory of two parts a side, whose values stay mapped. The two sides are read in two threads while the
step before is judged, since checking their SHA-256 is most of the work. Parts of steps that only one side holds are
not read.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.attention import attention_causes
from parity.compare.automap import Proposal, propose
from parity.compare.births import Births, excuses, is_number
from parity.compare.branches import Branches
from parity.compare.comparable import common_steps, comparable, layouts, settings_differences
from parity.compare.conclude import WIDEST_ROUNDED, Collected, conclude, recorded_stages, widest_of
from parity.compare.detectors import Detectors, config_causes
from parity.compare.frames import DECODED
from parity.compare.independent import in_order, of_weights, settled
from parity.compare.judge import Judge
from parity.compare.pairs import decodes, laid_alike, matching
from parity.compare.places import code_of
from parity.compare.preflight import failed
from parity.compare.reason import Note, Problem, Reason
from parity.compare.relations import judged_by_own
from parity.compare.result import Cause, Check, Failed, Origin, Result, SiteDiff, measured
from parity.compare.sites import how_many, introduced, picked
from parity.compare.updates import Updates
from parity.errors import Say, UsageError
from parity.golden import Golden
from parity.golden.disk.part import named, tabled
from parity.golden.rename import NONE, Rename, Renamer
from parity.records import AFTER, FRAMES, OUTSIDE, PORT, Key, Provenance, StepRecords, caller_of, is_attention
from parity.settings import BITS, NEUTRAL
from parity.settings.chips import chip_of, most_off


class Auto:
    """Asks `diff` to propose the mapping itself.

    Attributes:
        proposal: what was proposed; None until then, and where the goldens are not comparable.
    """

    proposal: Proposal | None = None


def diff(
    reference: str | os.PathLike[str],
    candidate: str | os.PathLike[str],
    *,
    rename: Rename | Auto = NONE,
    steps: int | None = None,
    say: Say = lambda text, done=None, total=None: None,
) -> Result:
    """Compare two goldens.

    Args:
        reference, candidate: paths or URLs. rename: the candidate's module names in the reference's. steps: how many
            steps of the loop are compared; None for all, which an unfinished recording has not.

    Raises:
        UsageError: a golden is missing or damaged, or a rename rule is.
    """
    say("reading the goldens")
    ours, theirs = Golden.open(reference), Golden.open(candidate)
    sides = Sides(ours, matching(ours, theirs), steps)
    sides.require_steps()
    findings = sides.findings(NONE if isinstance(rename, Auto) else rename)
    notes = tuple(map(Note, filter(None, [sides.left_out])))
    if isinstance(rename, Auto):
        rest = [f for f in findings if f.check not in ("weights", "model")]
        if not failed(rest):
            say("matching the modules")
            step = next((s for s in sides.steps if s >= 0), sides.steps[0])
            rename.proposal = propose(*sides.read(step))
            notes += tuple(map(Note, rename.proposal.notes))
            findings = sides.findings(rename.proposal.rename)
        rename = rename.proposal.rename if rename.proposal else NONE
    if failed([f for f in findings if not f.computed]):
        return sides.incomparable(findings, notes)
    result = _judged(sides, findings, notes, rename, say)
    wider, problem, coarse = sides.coarser
    if result.verdict == "fail" and wider > 1.0:
        again = _judged(replace(sides, wider=wider), findings, notes, rename, say)
        why = Reason(kind="inconclusive", problem=problem, detail=coarse)
        result = again if again.verdict == "fail" else _without(result, why)
    return _with_weights(result)


@dataclass(frozen=True)
class Sides:
    """Two opened goldens.

    Attributes:
        first: how many steps of the loop are compared; None for all. wider: how many times as wide floors are.
    """

    reference: Golden
    candidate: Golden
    first: int | None = None
    wider: float = 1.0

    @property
    def steps(self) -> tuple[int, ...]:
        common = common_steps(self.reference.steps, self.candidate.steps)
        return common if self.first is None else tuple(step for step in common if step < self.first)

    def require_steps(self) -> None:
        """Raise UsageError where a side has fewer steps than are asked for, or none is."""
        for golden, held in zip((self.reference, self.candidate), self.loops, strict=True):
            if self.first is not None and not 0 < self.first <= held:
                raise UsageError(f"--steps {self.first}: {golden.name} holds {held} steps of the loop")

    @property
    def loops(self) -> tuple[int, int]:
        """How many steps of the loop each side holds."""
        return len(self.reference.loop), len(self.candidate.loop)

    @property
    def coarser(self) -> tuple[float, Problem, str]:
        """How many times as wide the candidate's roundings may be as those that the floors are of; and whether by its
        dtype, or by its chip, whose elementary functions they do not allow for."""
        a, b = self.reference.provenance, self.candidate.provenance
        ours, theirs = (side.settings.get("dtype", "") for side in (a, b))
        bits, chip = BITS.get(ours, 0), chip_of(b.devices)
        by_chip = most_off(chip) * 2.0 ** (bits - 24) if most_off(chip) > most_off(a.chip) else 0.0
        by_dtype = 2.0 ** (bits - BITS.get(theirs, 24))
        return (by_chip, "chip", chip) if by_chip > by_dtype else (by_dtype, "coarser", theirs)

    @property
    def left_out(self) -> str:
        """Which of the candidate's steps are compared, where it generated more often; else empty."""
        first, count = self.candidate.first, self.candidate.count
        if count is None:
            return ""
        own = f"its steps {first} to {first + count - 1} are compared, the most like the reference's"
        return f"the candidate generated more often (to compile, or again): {own}"

    @property
    def all_there(self) -> bool:
        """Whether what is to be compared was recorded to its end on both sides."""
        ours, theirs = self.loops
        return self.first is not None or (self.reference.complete and self.candidate.complete and ours == theirs)

    @property
    def of_other_sites(self) -> bool:
        """Whether the two were recorded at other sites, so that one may lack what the other has."""
        ours, theirs = self.reference.provenance.sites, self.candidate.provenance.sites
        return bool(ours and theirs) and ours != theirs

    def in_part(self, step: int) -> bool:
        """Whether a side may lack what the other has of a step, since it ended before, or was called once more."""
        ended = any(not g.complete and step in (-1, max(g.steps)) for g in (self.reference, self.candidate))
        return ended or (step < 0 and len(set(self.loops)) > 1) or self.of_other_sites

    def findings(self, rename: Rename) -> tuple[Check, ...]:
        return comparable(self.reference, self.candidate, rename=rename.module if rename else None)

    def read(self, step: int) -> tuple[StepRecords, StepRecords]:
        """Both sides' records of a step."""
        return self.reference.read_step(step), self.candidate.read_step(step)

    def read_all(self) -> Iterator[tuple[StepRecords, StepRecords]]:
        """Both sides' records of every common step, read while the step before is judged; hashing lets the other
        threads run."""
        goldens = (self.reference, self.candidate)
        with ThreadPoolExecutor(2) as pool:
            reading: list[Future[StepRecords]] = []
            for step in (*self.steps, None):
                read = [future.result() for future in reading]  # a side's parts are read one after the other
                reading = [] if step is None else [pool.submit(golden.read_step, step) for golden in goldens]
                if read:
                    yield read.pop(0), read.pop()  # held by nobody but who takes it

    def incomparable(self, findings: Sequence[Check], notes: Sequence[Note]) -> Result:
        a, b = self.reference.provenance, self.candidate.provenance
        detail = "; ".join(f"{f.check}: {f.detail}" for f in findings if f.verdict == "fail")
        why = Reason(kind="inconclusive", problem="not_comparable", detail=detail)
        return Result(
            "inconclusive", None, why, a.model, settings_differences(a, b), tuple(findings), notes=tuple(notes)
        )


def _with_weights(result: Result) -> Result:
    """A comparison of other weights, which fails whatever these inputs exercise of them."""
    other = failed(result.preflight)
    if other is None:
        return result
    why = Reason(kind="preflight", check=other.check, detail=other.detail)
    return replace(result, verdict="fail", failed="preflight", why=why)


def _judged(sides: Sides, findings: Sequence[Check], notes: Sequence[Note], rename: Rename, say: Say) -> Result:
    a, b = sides.reference.provenance, sides.candidate.provenance
    differing = settings_differences(a, b)
    # Implementations that are mapped onto each other, or a user's own, are built otherwise: one may have more.
    port = b.backend == PORT
    renamer = Renamer(rename)
    mapped, lies = renamer.mapped if rename else None, layouts(a, b, rename.module if rename else None)
    detectors, branches = Detectors((a.settings, b.settings), (a.modules, b.modules)), Branches.of(a, b)
    judge = Judge(Births(excuses(differing)), port=port, mapped=mapped, laid_out=lies, branches=branches)
    collected = judge_streams(_steps(sides, renamer, branches, say, strict=not (rename or port)), judge, detectors)
    held = (f.detail for f in findings if f.check == "steps held" and f.verdict == "explained")
    if sides.of_other_sites:
        notes = [*notes, Note(f"recorded at other sites ({a.sites} against {b.sites}): what both hold was compared")]
    own = (*renamer.unused(), *held, *detectors.notes, *filter(None, [branches.note, _unrecorded_parts(a, b)]))
    told = [*notes, *map(Note, own)]
    result = conclude(
        collected,
        model=a.model,
        differing=differing,
        preflight=tuple(findings),
        notes=told,
        failing=_round(a, b),
        widest=widest_of(a.chip, _round(a, b)),
        seen=judge.seen if rename or port else None,
    )
    result = settled(result) if rename or port else result
    alike = b.modules.keys() & a.modules.keys() - {""}
    strict = port and a.sites != "none" and b.modules and not (alike and alike.isdisjoint(judge.seen.modules))
    if strict and not judge.seen.compared and result.verdict == "pass":
        unlike = next((d for d in result.sites if d.verdict == "not compared" and d.note), None)
        return result.unjudged("no_module", "" if unlike is None else f"{unlike.key.site} is the first ({unlike.note})")
    result = result if judge.seen.floors else without_floors(result)
    if result.verdict == "pass" and not sides.all_there:
        return result.unjudged("not_comparable", next(f.detail for f in findings if f.check == "steps held"))
    result = replace(result.resting_on((*a.idle, *b.idle)), stages=recorded_stages(result)).noted(
        *_hidden_by_rounding(result, a, guidance=detectors.scale_read is False), *_unseen_frames(sides, result.sites)
    )
    if result.verdict != "fail" or result.origin is None:
        return result
    shown = (
        *_attention(sides, renamer, result),
        *detectors.told,
        *_of_another_length(sides, result.origin),
        *_unrecorded(result, a, judge.seen.modules),
        *[Note(BEHIND)] * any(d.birth == "propagated" for d in picked(result.sites, "fail")),
    )
    first = result.origin.key
    known = {code_of(cause.at or first.site) for cause in shown if isinstance(cause, Cause)}
    begins = (first, *(d.key for d in introduced(result)))
    return in_order(result.told((*shown, *of_weights(result), *config_causes(differing, begins, known))))


BEHIND = (
    "of recordings, what differs behind the first divergence is not judged by itself: fix it and record again, or use "
    "parity run --port, which judges each module by what it is given"
)
"""Said of two recordings that differ behind their first divergence too."""


def _unrecorded_parts(a: Provenance, b: Provenance) -> str:
    """A sentence on what both pipelines decode with beside their VAE, as sound; empty without."""
    names = {name.partition(".")[0] for name in a.settings.keys() & b.settings.keys()} - {"vae"}
    parts = sorted(name for name in names if "vae" in name or "vocoder" in name)
    return f"not recorded, and so not compared: the outputs of {' and '.join(parts)}" if parts else ""


def _unseen_frames(sides: Sides, sites: Sequence[SiteDiff]) -> Iterator[str]:
    """A sentence where the candidate makes frames of what it decodes by code of its own, and none was compared."""
    behind = itertools.dropwhile(lambda d: d.key.site != DECODED, picked(sites, step=OUTSIDE))
    named_frames = (d for d in behind if d.key.module != "decode" and all(d.dtypes) and d.verdict != "not compared")
    if OUTSIDE in sides.steps and not any(named_frames):
        made = [{r.key.site for r in named(side.records)} & {FRAMES} for side in sides.read(OUTSIDE)]
        if made[0] and not made[1]:
            text = "the reference's frames were not compared: the candidate's are made without its pipeline's processor"
            yield f'{text}; name them on both sides, parity.tap("video", frames)'


def _of_another_length(sides: Sides, origin: Origin) -> Iterator[Cause]:
    """A loop that ended sooner, or later, where the divergence starts behind it."""
    ours, theirs = sides.loops
    if origin.key.stage == AFTER and ours != theirs:
        made = f"{theirs} on the candidate, {ours} on the reference"
        text = f"the loops made different numbers of steps ({made}), so different latents are decoded"
        yield measured(text, "steps", float(ours), float(theirs), float(theirs - ours), at=origin.key.site)


def _unrecorded(result: Result, reference: Provenance, recorded: Collection[str]) -> Iterator[Note]:
    """That nothing was recorded inside the module whose own code, or what it gives to its attention, first differs."""
    assert result.origin is not None
    key = result.origin.key
    own = (caller_of(key.module) if is_attention(key.module) else "") if key.is_input else key.module
    module = own if result.origin.birth != "propagated" else ""
    inside = {name for name in reference.modules if name.startswith(f"{module}.")}
    if module and inside and inside.isdisjoint(recorded):
        yield Note(
            f"inside {module} nothing was recorded: --sites all (in a script `sites='all'`) on both sides names the "
            "module that differs"
        )


def _attention(sides: Sides, renamer: Renamer, result: Result) -> Iterator[Cause | Note]:
    """What an attention call shows, where the divergence starts in one whose values both goldens hold, or may start in
    one whose rows are others on both sides."""
    assert result.origin is not None
    origin = result.origin.key
    here = is_attention(origin.module) and origin.port.startswith("out")
    unpaired = [name for name in result.why.not_compared if is_attention(name)]
    if not here and not unpaired:
        return
    module = origin.module if here else unpaired[-1]
    reference, candidate = sides.read(origin.step)
    found = attention_causes(reference.records, renamer.step(candidate).records, module)
    needed = f"to see what was done to the mask of this attention, record both with the values of {module}"
    yield from [Note(needed)] if found is None else found


def judge_streams(steps: Iterable[tuple[StepRecords, StepRecords]], judge: Judge, detectors: Detectors) -> Collected:
    """Judge two streams of records step by step.

    Args:
        detectors: looks for causes around the model, from the first step that differs on.
        steps: the reference's, with floors, and the candidate's; of two streams `zip(a, b, strict=True)`.
    """
    collected = Collected()
    for reference, candidate in steps:
        seen = detectors.seen(reference, candidate)
        own, notes = judged_by_own(reference, seen)
        detectors.notes += (note for note in notes if note not in detectors.notes)
        judged = judge.step(own, candidate)
        collected.add(own, candidate, judged)
        differs = how_many(judged, "fail") > 0
        detectors.add(reference, candidate, seen, differs=differs, begun=collected.begun)
        del reference, own, candidate, seen  # before the next is waited for: both sides' next are read already
    return collected


def _steps(
    sides: Sides, renamer: Renamer, branches: Branches, say: Say, *, strict: bool
) -> Iterator[tuple[StepRecords, StepRecords]]:
    """Both sides' records in execution order: what step -1 holds of the stage after the loop comes last."""
    last: list[tuple[StepRecords, StepRecords]] = []
    updates = Updates((sides.reference.provenance.modules, sides.candidate.provenance.modules))
    say("comparing", 0, len(sides.steps))
    done = itertools.count()  # `enumerate` would hold a step until the next is there
    for reference, candidate in sides.read_all():
        say("comparing", next(done), len(sides.steps))
        reference, candidate = laid_alike(reference, branches.step(reference, renamer.step(candidate)))
        reference = _widened(reference, sides.wider) if sides.wider > 1.0 else reference
        if strict and sides.in_part(reference.step):
            both = {r.key for r in reference.records} & {r.key for r in candidate.records}
            reference, candidate = reference.where(both.__contains__), candidate.where(both.__contains__)
        if reference.step < 0:
            after = reference.where(_after)
            last = [laid_alike(after, decodes(after, candidate.where(_after)))]
            reference, candidate = (side.where(lambda key: not _after(key)) for side in (reference, candidate))
        yield updates.step(reference, candidate) if reference.step >= 0 else (reference, candidate)
        del reference, candidate
    for pair in last:
        yield updates.step(*pair)


def _widened(reference: StepRecords, factor: float) -> StepRecords:
    """The step with floors for a coarser dtype: of what is computed in it, and no wider than a dtype may move a whole
    model, since floors do not grow with a dtype where they are blown up."""
    records, floors = tabled(reference)
    layout = records.layout
    at = {r.key: int(i) for r, i in zip(layout.records, layout.moments, strict=True)}
    norms = np.append(records.numbers[:, 3], np.inf)[[at[key] for key in floors.layout.floors]]
    factors = np.array([1.0 if is_number(key) else factor for key in floors.layout.floors])
    return StepRecords(reference.step, records, floors.times(factors, WIDEST_ROUNDED * norms))


def _after(key: Key) -> bool:
    return key.stage == AFTER


def _round(a: Provenance, b: Provenance) -> Failed:
    """Which check these settings are of: with every setting neutral that only rounds, only wrong logic is left."""
    exact = all(side.settings.get(name, least) == least for side in (a, b) for name, least in NEUTRAL.items())
    return "logic" if exact else "precision"


def _hidden_by_rounding(result: Result, reference: Provenance, *, guidance: bool) -> Iterator[str]:
    """What a pass of recordings in 16 bits does not show.

    Args:
        guidance: whether the reference guides in a way of which no scale can be read off.
    """
    dtype = reference.settings.get("dtype", "")
    floors = [step.noise_pred.floor for step in result.steps if step.noise_pred.floor > 0]
    if result.verdict == "pass" and floors and BITS.get(dtype, 24) < BITS["float32"]:
        yield f"{dtype} alone moves noise_pred by up to {max(floors):.1e}: recordings in float32 show smaller faults"
        if guidance:
            yield f"guidance was not judged by itself, and {dtype} hides a scale that is some percent off"


def without_floors(result: Result) -> Result:
    """The verdict where the reference holds no floors at all: exact equality passes, anything else is unknown."""
    if result.verdict == "inconclusive" and result.why.problem != "some_floors":
        return result
    apart = (d for d in result.sites if d.distance.rel_l2 != 0.0 and d.verdict != "ignored")
    first = next(apart, None) or next((d for d in result.sites if d.verdict == "fail"), None)
    if first is None:
        return result
    why = Reason(kind="inconclusive", problem="no_floors", first=first.key, note=first.note, distance=first.distance)
    return _without(result, why)


def _without(result: Result, why: Reason) -> Result:
    """A result that nobody can judge, since there are no floors for it."""
    sites = [replace(d, verdict="inconclusive", birth=None) if d.verdict == "fail" else d for d in result.sites]
    return replace(result, verdict="inconclusive", failed=None, why=why, sites=sites, origin=None)
