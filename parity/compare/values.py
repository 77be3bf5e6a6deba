"""What values around the model show by themselves: the schedule, the noise, what a step is handed, another order.

Problem. A third of the faults that people report lie in no module: a shift applied twice, noise drawn in bfloat16, a
scheduler that was not reset. The judge names the first value that differs; what was done to it can be read from the two
values themselves (`parity.transforms`).

How. A detector is shown the loop's own values of both sides at one step, held whole, in float64. It speaks only where a
transform explains the candidate's value; the values before it agree, as the judge has found. numpy only.

Cost. A few passes over values of the size of the latents, at the first step that differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from parity.compare.result import Cause, measured
from parity.golden.disk.part import chosen
from parity.records import LOOP, Record, StepRecords
from parity.transforms import CASTS, PATCHES, WITHIN, Done, done, laid_out, norm

SAME = 1e-4
"""Relative difference up to which values of the loop count as equal here; the judge has said whether they are."""
GIVEN = "decode:in.z"
LATENTS = f"{LOOP}:latents.after"
PREDICTED = f"{LOOP}:noise_pred"
TIMESTEP = f"{LOOP}:timestep"
LATENTS_AS = ("hidden_states", "sample", "x", "latents")
"""What models call the argument that holds the latents."""

Values = Mapping[tuple[str, str], np.ndarray]
"""(branch, site) -> a value that is held whole, in float64."""

Kept = Literal["", "both", "cond", "uncond"]
"""Guidance that fits a factor to the values keeps its scale in what it does not resize: in the ratio of both branches
(guidance_rescale), in the weight of cond (CFG-Zero*), or in that of uncond (APG)."""

Way = Literal["dt", "sum"]
"""Of a step: its latents plus dt times its prediction, or any sum of the two."""
WAYS: Set[Way] = frozenset({"dt", "sum"})

Both = tuple[np.ndarray, np.ndarray]
"""The reference's and the candidate's."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One step of both sides.

    Attributes:
        ours, theirs: values of the reference and the candidate. settings: of both sides, configs among them.
        step: of the values. before: what each side's latents had come to in the step before; None where nobody knows.
        kept: in what the reference's guidance keeps its scale; known where an earlier step has other weights.
        given: whether the model is given the same latents. stepped: in which ways all of the reference's steps so far
            may be made: one of a scheduler with a memory may be a sum by chance, one that hardly moves by any dt.
        cast: what the candidate does to latents between two steps, in which it may round them.
    """

    ours: Values
    theirs: Values
    settings: tuple[Mapping[str, str], Mapping[str, str]] = field(default=({}, {}))
    step: int = 0
    before: Both | None = None
    kept: Kept = ""
    given: bool = False
    stepped: Set[Way] = WAYS
    cast: Callable[[np.ndarray], np.ndarray] = np.asarray

    def pair(self, site: str, branch: str = "") -> Both | None:
        """Both sides' value, where both hold it in one shape."""
        a, b = self.ours.get((branch, site)), self.theirs.get((branch, site))
        return None if a is None or b is None or a.shape != b.shape else (a, b)

    def numbers(self, name: str) -> tuple[float, float] | None:
        """Both sides' number of the loop, where both hold one and they are not the same in float32."""
        pair = self.pair(f"{LOOP}:{name}")
        if pair is None or any(x.size != 1 or not np.isfinite(x).all() for x in pair):
            return None
        a, b = (float(x.item()) for x in pair)
        return None if math.isclose(a, b, rel_tol=WITHIN, abs_tol=WITHIN) else (a, b)

    def ways(self, way: Callable[[Values], str]) -> tuple[str, str] | None:
        """In which way each side computes something, where that is known of both and not the same."""
        first, second = way(self.ours), way(self.theirs)
        return (first, second) if first and second and first != second else None


def held(step: StepRecords) -> dict[tuple[str, str], np.ndarray]:
    """A step's values that are held whole."""
    whole = (r for r in chosen(step.records, _may_be_held) if isinstance(r.value, np.ndarray))
    return {(r.key.branch, r.key.site): np.asarray(r.value, np.float64) for r in whole}


def _may_be_held(r: Record) -> bool:
    return r.key.site.startswith((f"{LOOP}:", "schedule:", "decode:in.")) and r.key.call == 0


MATCH = 0.995
"""Share of the elements that a way of computing has to give exactly; ties may have gone the other way."""


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Relative L2 distance of `b` from `a`."""
    size = norm(a)
    return norm(b - a) / size if size > 0 else (0.0 if not np.any(b) else math.inf)


# --- the detectors

CLOSER = 0.1
"""Share of the difference of two schedules that may be left where another shift counts as its cause."""
_SIGMAS, _TIMES = "schedule:sigmas", "schedule:timesteps"
START = f"{LOOP}:latents.before"


def schedule(seen: Seen) -> Iterator[Cause]:
    """The schedule as it was set: shifted once more, in bfloat16, of another shift."""
    sigmas, times = seen.pair(_SIGMAS), seen.pair(_TIMES)
    if sigmas is not None and apart(*sigmas) > SAME:
        made, of_the_config = done(*sigmas), [*_shift_of_the_config(seen, *sigmas)]
        if of_the_config:
            yield from of_the_config
        elif made is not None and made.words.startswith("shifted"):
            yield measured(f"the schedule's sigmas: {made}", "shift", at=_SIGMAS)
        elif how := _narrowed(made):
            yield measured(f"the schedule's sigmas are {how}", "schedule_dtype", "float32", "bfloat16", at=_SIGMAS)
    if times is not None and apart(*times) > SAME and (how := _narrowed(done(*times))):
        steps = np.diff(times[1])
        repeats, rises = int(np.sum(steps == 0)), int(np.sum(steps > 0))
        text = f"the schedule's timesteps are {how}: {repeats} of {times[1].size} repeat the one before"
        text += f", {rises} exceed{'s' * (rises == 1)} it" if rises and (np.diff(times[0]) < 0).all() else ""
        yield measured(text, "timesteps", "float32", "bfloat16", float(repeats), at=_TIMES)


def rounded_otherwise(seen: Seen) -> Iterator[str]:
    """A sentence where the schedules were made in another order or precision, and are the same."""
    pairs = [p for p in (seen.pair(_SIGMAS), seen.pair(_TIMES)) if p is not None]
    worst = max((apart(a, b) for a, b in pairs), default=0.0)
    if 0.0 < worst <= WITHIN:
        yield f"the schedules differ by rounding alone ({worst:.1e} relative): made in another precision or order"


def _narrowed(made: Done | None) -> str:
    """How the candidate's values were brought to bfloat16; empty where they were not."""
    return made.words if made is not None and not made.inverse and made.words.endswith("bfloat16") else ""


def _shift_of_the_config(seen: Seen, a: np.ndarray, b: np.ndarray) -> Iterator[Cause]:
    """Two schedulers whose configs differ in their shift, and whose sigmas without it are alike.

    Their last ones differ still: the least sigma is itself shifted, and the others are spaced down to it.
    """
    first, second = (number(side, "scheduler.shift") or number(side, "scheduler.flow_shift") for side in seen.settings)
    if first is None or second is None or first == second or first <= 0 or second <= 0:
        return
    plain, other = (x / (s - (s - 1) * x) for x, s in ((a, first), (b, second)))
    if apart(plain, other) <= CLOSER * apart(a, b):
        text = f"the schedule's shift is {second:.4g}, not {first:.4g}"
        yield measured(text, "shift", first, second, second, at=_SIGMAS)


def number(settings: Mapping[str, str], name: str) -> float | None:
    """A number of a config; None where it is none or not known."""
    try:
        return float(settings[name])
    except (KeyError, ValueError):
        return None


ORDER = "scheduler.solver_order"
"""What of a scheduler's config says how many predictions it remembers."""


def counters(seen: Seen) -> Iterator[Cause]:
    """Where the scheduler stands, and how many predictions of earlier steps a multistep one enters a step with."""
    if place := seen.numbers("step_index"):
        late = int(place[1] - place[0])
        how = f"{abs(late)} step{'s' if abs(late) > 1 else ''} {'late' if late > 0 else 'early'}"
        why = "warm-up calls that share its state, repeated timesteps"
        text = f"the scheduler stands {how}: at index {place[1]:.0f}, not {place[0]:.0f} ({why})"
        by = "step_index" if seen.numbers("timestep") is None else "timestep"  # by which a scheduler finds its place
        yield measured(text, "scheduler.step_index", *place, late, at=f"{LOOP}:{by}")
    # A scheduler of another order remembers another number.
    if (history := seen.numbers("history")) and len({settings.get(ORDER, "") for settings in seen.settings}) == 1:
        ours, theirs = history
        text = (
            f"the scheduler enters step {seen.step} with {theirs:.0f} predictions of earlier steps, with {ours:.0f} on "
            "the reference: its state was not reset, or was lost, between stages"
        )
        yield measured(text, "scheduler.history", ours, theirs, theirs, at=f"{LOOP}:history")


def start(seen: Seen) -> Iterator[Cause]:
    """What a step starts from: the initial noise, or what the step before has handed on."""
    pair = seen.pair(START)
    if pair is None or not apart(*pair) > SAME:
        return
    if ("", _TIMES) in seen.ours:
        yield from _noise(seen, *pair)
    if seen.before is not None and all(x.shape == y.shape for x, y in zip(seen.before, pair, strict=True)):
        yield from _continued(seen, seen.before, pair)


def _noise(seen: Seen, a: np.ndarray, b: np.ndarray) -> Iterator[Cause]:
    if (sigmas := seen.pair(_SIGMAS)) is not None:
        first, second = (float(x.max()) for x in sigmas)
        scaled = (second / first, math.hypot(second, 1.0) / math.hypot(first, 1.0)) if first > 0 else ()
        if any(apart(scale * a, b) <= SAME for scale in scaled):
            return  # it begins as large as the schedule says, which differs
    made = done(a, b)
    if made is not None and made.words == "rounded to bfloat16":
        # It is drawn in the dtype that the side works in, where that is declared.
        sides = ("bfloat16", "float32") if made.inverse else ("float32", "bfloat16")
        declared = tuple(settings.get("dtype", "") for settings in seen.settings) == sides
        text = f"the initial noise is rounded to bfloat16{' on the reference alone' * made.inverse}"
        if seen.given:
            text = "the scheduler is given the latents rounded to bfloat16, the model is not"
        yield measured(text + ", which it works in" * declared, "dtype" if declared else "noise", *sides, at=START)
    elif made is not None:
        yield measured(f"the initial noise: {made}", "noise", at=START)
    elif seen.step > 0:
        return  # what a later loop begins from is not noise alone
    elif structure := _structure(a, b):
        yield measured(f"the initial noise has another structure: {structure}", "noise", at=START)
    elif abs(float(np.vdot(a, b))) < 0.2 * float(np.vdot(a, a)):
        text = "the initial noise is another: another seed, generator, device or order of draws"
        yield measured(text, "noise", at=START)


CERTAIN = 5.0
"""Standard errors by which two correlations differ that no draw makes differ."""
PERIODS = (1, 2, 4)
"""Sizes of blocks in which noise may be correlated; 1 is noise whose neighbours are, wherever they lie."""


def _structure(a: np.ndarray, b: np.ndarray) -> str:
    """In words, how neighbours within blocks of the last two axes are correlated, where that differs; else empty."""
    for period in PERIODS:
        (ours, count), (theirs, _) = _correlation(a, period), _correlation(b, period)
        if count and abs(ours - theirs) > CERTAIN * math.sqrt(2.0 / count):
            size = f"{period} x {period}"
            where = f"neighbours in blocks of {size}" if period > 1 else "neighbours"
            return f"{where} are correlated by {theirs:.2g}, by {ours:.2g} on the reference (a patch_size, or a filter)"
    return ""


def _correlation(x: np.ndarray, period: int) -> tuple[float, int]:
    """Correlation of neighbours that lie in one block, along the last two axes, and how many pairs it is of."""
    if x.ndim < 4:
        return 0.0, 0
    pairs = []
    for axis in (-2, -1):
        lines = np.moveaxis(x - x.mean(), axis, -1)
        inside = [i for i in range(lines.shape[-1] - 1) if period == 1 or (i + 1) % period]
        pairs.append([lines[..., [i + beside for i in inside]].ravel() for beside in (0, 1)])
    p, q = np.concatenate(pairs, axis=1)
    return _cosine(p, q), (p.size if p.any() else 0)  # NaN where the noise is not finite


def _continued(seen: Seen, before: Both, now: Both) -> Iterator[Cause]:
    """Latents that are carried over on one side, and begun anew, changed or rounded between two steps on the other."""
    first, second = (carried(x, y) for x, y in zip(before, now, strict=True))
    dtypes = [settings.get("dtype") for settings in seen.settings]
    if first == "float32" != second and second and dtypes[0] == dtypes[1] is not None:
        text = f"the latents are rounded to {second} between two steps"
        yield measured(text, "loop.latents", first, second, apart(before[1], now[1]), at=START)
    ours, theirs = bool(first), bool(second)
    if ours == theirs:
        return
    one, other = ("the candidate", "the reference") if theirs else ("the reference", "the candidate")
    text = (
        f"at step {seen.step} {one} goes on from the latents of the step before, {other} does not: latents of a stage "
        "or chunk that are drawn, scaled or injected between steps on one side alone (a name that two loops share)"
    )
    sides = ("", "carried over") if theirs else ("carried over", "")
    value = apart(before[0], now[0]) if theirs else apart(before[1], now[1])
    yield measured(text, "loop.latents", *sides, value, at=START)


def carried(before: np.ndarray, now: np.ndarray) -> str:
    """The dtype to which latents of the step before are cast, as a side may that works in it; empty for others."""
    casts = {"float32": before} | {dtype: cast(before) for dtype, cast in CASTS.items()}
    near = (d for d, x in casts.items() if np.array_equal(x, now, equal_nan=True) or apart(x, now) <= SAME)
    return next(near, "")


NEAR, NEARER = 0.5, 0.3
"""Least cosine in the right order, and by how much it is above that of the values as they are."""
FEW = 256
"""Elements below which some order is near by chance."""


def rounded(seen: Seen) -> Iterator[Cause]:
    """The guided prediction, or the only one, in bfloat16."""
    pair = seen.pair(PREDICTED)
    if pair is not None and (how := _narrowed(done(*pair))):
        text = f"the guided prediction is {how}"
        yield measured(text, "guidance_dtype", "float32", "bfloat16", at=PREDICTED)


def order(seen: Seen) -> Iterator[Cause]:
    """A branch's prediction, or the only one, that is the reference's in another order, whatever its text is: other
    text leaves two predictions less than all in common, so that cosines decide. A whole axis may lie otherwise in the
    latents that are given, a patch's values may not.
    """
    for branch in ("cond", "uncond", ""):
        pair = seen.pair(PREDICTED, branch)
        if pair is None or pair[0].size < FEW or pair[0].ndim != 5 or not all(np.isfinite(x).all() for x in pair):
            continue
        ours, theirs = (x[:1] for x in pair)  # the order of several videos is nobody's layout
        orders = ((words, x) for words, x in laid_out(ours) if seen.given or words.startswith(PATCHES))
        near = {words: _cosine(x, theirs) for words, x in orders}
        best = max(near, key=lambda words: near[words], default="")
        if best and near[best] >= NEAR and near[best] >= _cosine(ours, theirs) + NEARER:
            text = f"the prediction holds the reference's values in another order: {best}"
            fix = "undo it where the output is unpatchified"
            yield measured(text, "order", "", best, near[best], fix=fix, at=":out")
            return


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    size = norm(a) * norm(b)
    return float(np.vdot(a, b)) / size if size else 0.0
