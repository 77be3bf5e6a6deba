"""Causes in the glue around the model: schedule, step index, initial noise, guidance, decoder scaling, frames.

Problem. A third of the faults that people report lie in no module: a shift applied twice, a lost guidance scale, noise
drawn in bfloat16, latents that were never divided by the VAE's factor. The judge names the first value that differs;
what was done to it can be read from the two values themselves.

How. The loop's own values are held whole. Each detector tests one hypothesis exactly (a fitted scalar, a rounding, a
linear combination) and speaks only where it explains the candidate's value to `EXACT`; the values before it agree, as
the judge has found. numpy only.

Cost. A few passes over values of the size of the latents, at the first step that differs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from parity.compare.detect.arithmetic import rounded_otherwise
from parity.compare.detect.guidance import guidance
from parity.compare.detect.handed import GIVEN, judged_by_own
from parity.compare.detect.held import EXPLAINED, SAME, Both, Seen, Values, apart, differ, held, named
from parity.compare.detect.noise import noise
from parity.compare.detect.order import reordered
from parity.compare.detect.stages import LATENTS, continued, remembered, stepped
from parity.compare.result import Cause
from parity.records import LOOP, Key, Record, StepRecords
from parity.sketch import Geometry, distance, norm
from parity.transforms import EXACT, bfloat16, done

CLOSER = 0.1
"""Share of the difference of two schedules that may be left where another shift counts as its cause."""

LEAST_DARKER, MOST_DARKER = 0.35, 0.65
"""Levels of the mean by which truncated pictures are darker: about half of one where none is cut to black or white."""
CUT = 0.02
"""The least where many are cut and the frames as floats agree: only their conversion can make the difference."""
SAME_FLOATS = 1e-4
"""Relative distance up to which frames as floats agree: a level is 4e-3."""
ONE_LEVEL = 0.15
"""Four standard deviations of a square that is estimated from sketches."""

_SIGMAS, _TIMES = "schedule:sigmas", "schedule:timesteps"


@dataclass
class Glue:
    """Collects causes step by step.

    Attributes:
        settings: of both sides, configs among them. found: causes, the first first.
        notes: what the sides compute in another order or precision, and what was compared otherwise, in sentences.
    """

    settings: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    found: list[Cause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _before: Both | None = None

    def by_own(self, reference: StepRecords, candidate: StepRecords) -> StepRecords:
        """The reference of what came after the loop, as it is to be judged; see `judged_by_own`."""
        instead = judged_by_own(reference, candidate, self._before)
        if instead is not reference:
            self.notes.append(f"{GIVEN} is compared with what the reference's scaling makes of the candidate's latents")
        return instead

    def add(self, reference: StepRecords, candidate: StepRecords, *, differs: bool = True) -> None:
        """Look at one step of both sides; each kind of cause is named once.

        Args:
            differs: whether anything in it does; of a step that agrees only what the next one needs is kept.
        """
        ours, theirs = held(reference), held(candidate)
        before, self._before = self._before, _pair_of(ours, theirs)
        seen = Seen(ours=ours, theirs=theirs, settings=self.settings, step=reference.step, before=before)
        if reference.step == 0:
            self.notes += rounded_otherwise(seen)
        if not differs:
            return
        told = (cause for detector in _DETECTORS for cause in detector(seen))
        for cause in itertools.chain(told, _frames(reference, candidate)):
            if cause.setting not in {c.setting for c in self.found}:
                self.found.append(cause)


def _pair_of(ours: Values, theirs: Values) -> Both | None:
    """What both sides' latents come to in a step."""
    a, b = ours.get(("", LATENTS)), theirs.get(("", LATENTS))
    return None if a is None or b is None else (a, b)


def _schedule(seen: Seen) -> Iterator[Cause]:
    """The schedule as it was set: shifted once more, rounded, with repeats."""
    sigmas, times = seen.pair(_SIGMAS), seen.pair(_TIMES)
    if differ(sigmas):
        assert sigmas is not None
        a, b = sigmas
        inside = (a > 0) & (a < 1) & (b > 0) & (b < 1)
        factors = b[inside] * (1 - a[inside]) / (a[inside] * (1 - b[inside]))
        ends = np.allclose(a[~inside], b[~inside], atol=SAME)  # which a shift leaves as they are
        if factors.size and ends and np.ptp(factors) <= EXACT * abs(factors.mean()):
            factor = float(factors.mean())
            formula, other = (
                "sigma' = s sigma / (1 + (s - 1) sigma)",
                f"its shift is {factor:.4g} times the reference's",
            )
            more = f"the schedule is shifted once more, by {factor:.4g}: {formula}, or {other}"
            text = more if factor > 1 else f"the schedule is another: {other}, {formula}"
            yield named(text, "shift", 1.0, factor, factor, at=_SIGMAS)
        elif how := _narrowed(a, b):
            text = f"the schedule's sigmas are {how} bfloat16"
            yield named(text, "schedule_dtype", "float32", "bfloat16", 0.0, at=_SIGMAS)
        else:
            yield from _shift_of_the_config(a, b, seen.settings)
    if times is not None and differ(times) and (how := _narrowed(*times)):
        steps = np.diff(times[1])
        repeats, rises = int(np.sum(steps == 0)), int(np.sum(steps > 0))
        text = f"the schedule's timesteps are {how} bfloat16: {repeats} of {times[1].size} repeat the one before"
        text += f", {rises} exceed{'s' if rises == 1 else ''} it" if rises and (np.diff(times[0]) < 0).all() else ""
        yield named(text, "timesteps", "float32", "bfloat16", float(repeats), at=_TIMES)


def _narrowed(a: np.ndarray, b: np.ndarray) -> str:
    """Whether `b` is `a` in bfloat16: `rounded to` it, or `computed in` it operation by operation; else empty."""
    if np.array_equal(b, bfloat16(a)):
        return "rounded to"
    made = done(a, b)
    return "computed in" if made is not None and not made.inverse and made.words == "computed in bfloat16" else ""


def _shift_of_the_config(
    a: np.ndarray, b: np.ndarray, settings: tuple[Mapping[str, str], Mapping[str, str]]
) -> Iterator[Cause]:
    """Two schedulers whose configs differ in their shift, and whose sigmas without it are alike.

    Their last ones differ still: the least sigma is itself shifted, and the others are spaced down to it.
    """
    shifts = [_number(side, "scheduler.shift") or _number(side, "scheduler.flow_shift") for side in settings]
    first, second = shifts
    if first is None or second is None or first == second or first <= 0 or second <= 0:
        return
    plain, other = (x / (s - (s - 1) * x) for x, s in ((a, first), (b, second)))
    if apart(plain, other) <= CLOSER * apart(a, b):
        text = f"the schedule's shift is {second:.4g}, not {first:.4g}"
        yield named(text, "shift", first, second, second, at=_SIGMAS)


def _number(settings: Mapping[str, str], name: str) -> float | None:
    try:
        return float(settings[name])
    except (KeyError, ValueError):
        return None


def _place(seen: Seen) -> Iterator[Cause]:
    """Where the scheduler stands."""
    pair = seen.pair(f"{LOOP}:step_index")
    if pair is None or any(x.size != 1 or not np.isfinite(x).all() for x in pair) or np.array_equal(*pair):
        return
    pair = (pair[0].reshape(()), pair[1].reshape(()))
    late = int(pair[1] - pair[0])
    how = f"{abs(late)} step{'s' if abs(late) > 1 else ''} {'late' if late > 0 else 'early'}"
    text = (
        f"the scheduler stands {how}: at index {int(pair[1])}, not {int(pair[0])} (warm-up calls that share its state, "
        "repeated timesteps)"
    )
    at = f"{LOOP}:step_index"
    yield named(text, "scheduler.step_index", float(pair[0]), float(pair[1]), float(late), at=at)


def _decoded(seen: Seen) -> Iterator[Cause]:
    """What the decoder is given."""
    a, b = seen.ours.get(("", GIVEN)), seen.theirs.get(("", GIVEN))
    if a is None or b is None:
        return
    if a.shape != b.shape:
        axes = [i for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=False)) if x != y]
        if a.ndim == b.ndim == 5 and len(axes) == 1 and b.shape[axes[0]] == 1:
            text = (
                f"the VAE decodes frame by frame on the candidate, {a.shape[axes[0]]} frames at once on the reference"
            )
            yield named(text, "vae.frames", float(a.shape[axes[0]]), 1.0, 1.0, at=GIVEN)
        elif a.ndim == b.ndim == 5 and axes == [2]:
            text = f"the VAE is given {b.shape[2]} latent frames, {a.shape[2]} frames on the reference"
            yield named(text, "vae.frames", float(a.shape[2]), float(b.shape[2]), float(b.shape[2]), at=GIVEN)
        return
    if not differ((a, b)):
        return
    factor = float(np.vdot(a, b) / np.vdot(a, a))
    if np.linalg.norm(b - factor * a) > EXACT * np.linalg.norm(b):
        if _by_channel(a, b):
            text = (
                "what the VAE decodes is the reference's by another scale and offset in each channel: latents_mean and "
                "latents_std are left out, or applied twice"
            )
            yield named(text, "vae.scaling_factor", "", "", factor, at=GIVEN)
        return
    if abs(factor - 1) <= EXACT:
        return
    text = f"what the VAE decodes is {factor:.4g} times the reference's"
    for name, scale in _factors(seen.settings):
        if abs(factor / scale - 1) <= EXACT:
            text += f": the latents are not divided by {name} {scale:.4g}"
        elif abs(factor * scale - 1) <= EXACT:
            text += f": the latents are divided by {name} {scale:.4g} twice"
    yield named(text, "vae.scaling_factor", 1.0, factor, factor, at=GIVEN)


def _by_channel(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether each channel [B, C, ...] of the candidate's is a scale and an offset of the reference's."""
    if a.ndim < 4 or a[0, 0].size < 8:
        return False
    x, y = (np.moveaxis(z, 1, 0).reshape(z.shape[1], -1) for z in (a, b))
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    square = (x * x).sum(axis=1)
    if not (square > 0).all():
        return False
    left = y - x * ((x * y).sum(axis=1) / square)[:, None]
    small = np.linalg.norm(left) <= EXACT * np.linalg.norm(y)
    return bool(small and np.linalg.norm(left) <= EXPLAINED * np.linalg.norm(b - a))  # a is near b by itself


def _factors(settings: tuple[Mapping[str, str], Mapping[str, str]]) -> Iterator[tuple[str, float]]:
    for name in ("scaling_factor", "scaling_factor_image"):
        for side in settings:
            text = side.get(f"vae.{name}")
            if text is not None:
                try:
                    yield name, float(text)
                except ValueError:
                    continue
                break


def _frames(reference: StepRecords, candidate: StepRecords) -> Iterator[Cause]:
    """Frames as they leave the generation: by truncation to uint8 half of the pixels, but for those that are cut to
    black or white, are one level darker than by rounding, and no other differs."""
    theirs = {r.key: r for r in candidate.records}
    for ours in reference.records:
        other = theirs.get(ours.key)
        if other is None or not _eight_bits(ours) or not _eight_bits(other):
            continue
        assert ours.moments is not None
        assert other.moments is not None
        darker = ours.moments.mean - other.moments.mean
        least = _least_darker(reference, theirs)
        if least <= abs(darker) <= MOST_DARKER and _one_level(ours, other, darker * ours.moments.count):
            how, ours_, theirs_ = (
                ("darker", "rounded", "truncated") if darker > 0 else ("brighter", "truncated", "rounded")
            )
            text = f"the frames are {abs(darker):.2g} levels {how}: {theirs_} to uint8 instead of {ours_}"
            yield named(text, "frames", ours_, theirs_, darker, at=ours.key.site)


def _least_darker(reference: StepRecords, theirs: Mapping[Key, Record]) -> float:
    """The least by which truncated pictures are darker: infinite where what the decoder gave differs already."""
    out = [(r, theirs.get(r.key)) for r in reference.records if r.key.site == "decode:out"]
    found = [
        distance(a.sketch, b.sketch, Geometry(*a.frame)) / (norm(a.sketch, Geometry(*a.frame)) or 1.0)
        for a, b in out
        if b is not None and a.sketch is not None and b.sketch is not None and a.frame == b.frame
    ]
    if not found:
        return LEAST_DARKER
    return CUT if max(found) <= SAME_FLOATS else math.inf


def _one_level(ours: Record, other: Record, sum_: float) -> bool:
    """Whether all that differs does so by one level in one direction: the sum of the differences is that of their
    squares, as far as sketches tell."""
    if ours.sketch is None or other.sketch is None or ours.frame != other.frame:
        return False
    squares = distance(ours.sketch, other.sketch, Geometry(*ours.frame)) ** 2
    return abs(abs(sum_) - squares) <= ONE_LEVEL * squares


def _eight_bits(record: Record) -> bool:
    return record.dtype == "uint8" and record.moments is not None


Detector = Callable[[Seen], Iterator[Cause]]
_DETECTORS: tuple[Detector, ...] = (
    _schedule,
    _place,
    remembered,
    noise,
    continued,
    reordered,
    guidance,
    stepped,
    _decoded,
)
