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

from parity.compare.result import NAN, Cause, Witness
from parity.golden.records import LOOP, Record, StepRecords

EXACT = 2e-3
"""Relative residual up to which a hypothesis explains a value: bfloat16 rounds to 4e-3 at most, 2e-3 on average."""
SAME = 1e-4
"""Relative difference up to which values of the loop count as equal here; the judge has said whether they are."""

CLOSER = 0.1
"""Share of the difference of two schedules that may be left where another shift is said to make it."""

STEPS16 = 6
"""Roundings to bfloat16, half an ulp or 2^-8 each, in a schedule computed in it: a ramp (2) and a shift (4)."""

Values = Mapping[tuple[str, str], np.ndarray]
"""(branch, site) -> a value that is held whole, in float64."""


@dataclass
class Glue:
    """Collects causes step by step.

    Attributes:
        settings: of both sides, configs among them. found: causes, the first first.
    """

    settings: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    found: list[Cause] = field(default_factory=list)

    def add(self, reference: StepRecords, candidate: StepRecords) -> None:
        """Look at one step of both sides; each kind of cause is named once."""
        ours, theirs = _held(reference), _held(candidate)
        seen = (cause for detector in _DETECTORS for cause in detector(ours, theirs, self.settings))
        for cause in itertools.chain(seen, _frames(reference, candidate)):
            if cause.setting not in {c.setting for c in self.found}:
                self.found.append(cause)


def _held(step: StepRecords) -> dict[tuple[str, str], np.ndarray]:
    wanted = (f"{LOOP}:", "schedule:", "decode:in.")
    return {
        (r.key.branch, r.key.site): np.asarray(r.value, np.float64)
        for r in step.records
        if isinstance(r.value, np.ndarray) and r.key.site.startswith(wanted) and r.key.call == 0
    }


def _pair(ours: Values, theirs: Values, site: str, branch: str = "") -> tuple[np.ndarray, np.ndarray] | None:
    """Both sides' value, where both hold it in one shape."""
    a, b = ours.get((branch, site)), theirs.get((branch, site))
    return None if a is None or b is None or a.shape != b.shape else (a, b)


def _differ(pair: tuple[np.ndarray, np.ndarray] | None) -> bool:
    return pair is not None and _apart(*pair) > SAME


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    size = float(np.linalg.norm(a))
    return float(np.linalg.norm(b - a)) / size if size > 0 else (0.0 if not np.any(b) else math.inf)


def _cause(text: str, setting: str, reference: float | str, candidate: float | str, value: float) -> Cause:
    def shown(x: float | str) -> str:
        return x if isinstance(x, str) else f"{x:.4g}"

    return Cause(text, setting, shown(reference), shown(candidate), NAN, (Witness("gauge", value, text),))


def _schedule(ours: Values, theirs: Values, settings: tuple[Mapping[str, str], Mapping[str, str]]) -> Iterator[Cause]:
    """The schedule as it was set: shifted once more, rounded, with repeats."""
    sigmas, times = _pair(ours, theirs, "schedule:sigmas"), _pair(ours, theirs, "schedule:timesteps")
    if _differ(sigmas):
        assert sigmas is not None
        a, b = sigmas
        inside = (a > 0) & (a < 1) & (b > 0) & (b < 1)
        factors = b[inside] * (1 - a[inside]) / (a[inside] * (1 - b[inside]))
        if factors.size and np.ptp(factors) <= EXACT * abs(factors.mean()):
            factor = float(factors.mean())
            text = f"the schedule is shifted once more, by {factor:.4g}: sigma' = s sigma / (1 + (s - 1) sigma)"
            yield _cause(text, "shift", 1.0, factor, factor)
        elif how := _narrowed(a, b):
            yield _cause(f"the schedule's sigmas are {how} bfloat16", "schedule_dtype", "float32", "bfloat16", 0.0)
        else:
            yield from _shift_of_the_config(a, b, settings)
    if times is not None and _differ(times) and (how := _narrowed(*times)):
        steps = np.diff(times[1])
        repeats, rises = int(np.sum(steps == 0)), int(np.sum(steps > 0))
        text = f"the schedule's timesteps are {how} bfloat16: {repeats} of {times[1].size} repeat the one before"
        text += f", {rises} exceed{'s' if rises == 1 else ''} it" if rises and (np.diff(times[0]) < 0).all() else ""
        yield _cause(text, "timesteps", "float32", "bfloat16", float(repeats))


def _narrowed(a: np.ndarray, b: np.ndarray) -> str:
    """Whether `b` is `a` in bfloat16: `rounded to` it, or `computed in` it operation by operation; else empty."""
    if np.array_equal(b, bfloat16(a)):
        return "rounded to"
    narrow = np.array_equal(b, bfloat16(b)) and not np.array_equal(a, bfloat16(a))
    return "computed in" if narrow and (np.abs(b - a) <= STEPS16 * 2.0**-8 * np.abs(a)).all() else ""


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
    if _apart(plain, other) <= CLOSER * _apart(a, b):
        yield _cause(f"the schedule's shift is {second:.4g}, not {first:.4g}", "shift", first, second, second)


def _number(settings: Mapping[str, str], name: str) -> float | None:
    try:
        return float(settings[name])
    except (KeyError, ValueError):
        return None


def _place(ours: Values, theirs: Values, settings: object) -> Iterator[Cause]:
    """Where the scheduler stands."""
    pair = _pair(ours, theirs, f"{LOOP}:step_index")
    if pair is None or any(x.size != 1 or not np.isfinite(x).all() for x in pair) or np.array_equal(*pair):
        return
    pair = (pair[0].reshape(()), pair[1].reshape(()))
    late = int(pair[1] - pair[0])
    how = f"{abs(late)} step{'s' if abs(late) > 1 else ''} {'late' if late > 0 else 'early'}"
    text = (
        f"the scheduler stands {how}: at index {int(pair[1])}, not {int(pair[0])} (warm-up calls that share its state, "
        "repeated timesteps)"
    )
    yield _cause(text, "scheduler.step_index", float(pair[0]), float(pair[1]), float(late))


def _noise(ours: Values, theirs: Values, settings: object) -> Iterator[Cause]:
    """What the loop starts from; later steps start from what the first made."""
    if ("", "schedule:timesteps") not in ours:
        return
    pair = _pair(ours, theirs, f"{LOOP}:latents.before")
    if not _differ(pair):
        return
    assert pair is not None
    a, b = pair
    factor = float(np.vdot(a, b) / np.vdot(a, a))
    if _apart(bfloat16(a), b) <= SAME:
        yield _cause("the initial noise is rounded to bfloat16", "noise", "float32", "bfloat16", _apart(a, b))
    elif np.linalg.norm(b - factor * a) <= EXACT * np.linalg.norm(b):
        yield _cause(f"the initial noise is {factor:.4g} times the reference's", "noise", 1.0, factor, factor)
    elif abs(factor) < 0.2:
        text = "the initial noise is another: another seed, generator, device or order of draws"
        yield _cause(text, "noise", "", "", factor)


def _guidance(ours: Values, theirs: Values, settings: object) -> Iterator[Cause]:
    """How the branches' predictions were combined, fitted on both sides."""
    first, second = _combined(ours), _combined(theirs)
    swapped = _crossed(ours, theirs)
    if swapped is not None:
        text = "the branches are swapped: the candidate's cond is the reference's uncond (negative and positive prompt)"
        yield _cause(text, "guidance", "cond, uncond", "uncond, cond", swapped)
        return
    if first is not None and _unguided(ours, theirs):
        text = f"the guidance scale of {first[0]:.4g} is lost: the candidate runs one branch alone, cond"
        yield _cause(text, "guidance", first[0], 1.0, 1.0)
        return
    if first is None or second is None or not _branches_agree(ours, theirs):
        return
    (scale, size), (other, other_size) = first, second
    if abs(other - (1 - scale)) <= EXACT * max(1.0, abs(scale)) and abs(scale - 0.5) > EXACT:
        text = f"guidance is applied to the branches the wrong way round: scale {other:.4g} for {scale:.4g}"
        yield _cause(text, "guidance", scale, other, other)
    elif abs(other - scale) > EXACT * max(1.0, abs(scale)):
        lost = " (none is applied)" if abs(other - 1) <= EXACT else ""
        yield _cause(f"the guidance scale is {other:.4g}, not {scale:.4g}{lost}", "guidance", scale, other, other)
    elif abs(other_size - size) > EXACT:
        text = (
            f"the guided prediction is rescaled by {size:.4g} on the reference, by {other_size:.4g} on the candidate: "
            "guidance_rescale"
        )
        yield _cause(text, "guidance_rescale", size, other_size, other_size)


def _unguided(ours: Values, theirs: Values) -> bool:
    """Whether the candidate has no uncond branch, and predicts what the reference's cond does."""
    site = f"{LOOP}:noise_pred"
    cond, alone = ours.get(("cond", site)), theirs.get(("", site))
    if ("uncond", site) in theirs or cond is None or alone is None or cond.shape != alone.shape:
        return False
    return _apart(cond, alone) <= EXACT


def _combined(values: Values) -> tuple[float, float] | None:
    """(guidance scale, common factor) with which a side combined its branches; None where that is no combination."""
    parts = [values.get((branch, f"{LOOP}:noise_pred")) for branch in ("uncond", "cond", "")]
    if any(x is None for x in parts):
        return None
    uncond, cond, guided = (np.ravel(x) for x in parts if x is not None)
    if not uncond.size == cond.size == guided.size or not all(np.isfinite(x).all() for x in (uncond, cond, guided)):
        return None
    columns = np.stack([uncond, cond], axis=1)
    weights, *_ = np.linalg.lstsq(columns, guided, rcond=None)
    if np.linalg.norm(columns @ weights - guided) > EXACT * np.linalg.norm(guided) or abs(weights.sum()) < SAME:
        return None
    return float(weights[1] / weights.sum()), float(weights.sum())


def _branches_agree(ours: Values, theirs: Values) -> bool:
    pairs = [_pair(ours, theirs, f"{LOOP}:noise_pred", branch) for branch in ("cond", "uncond")]
    return all(pair is not None and _apart(*pair) <= EXACT for pair in pairs)


def _crossed(ours: Values, theirs: Values) -> float | None:
    """How far each side's branches are from the other's other branch, where they are those; None where not."""
    site = f"{LOOP}:noise_pred"
    crossed = [(ours.get((a, site)), theirs.get((b, site))) for a, b in (("cond", "uncond"), ("uncond", "cond"))]
    if _branches_agree(ours, theirs) or any(a is None or b is None or a.shape != b.shape for a, b in crossed):
        return None
    apart = max(_apart(a, b) for a, b in crossed if a is not None and b is not None)
    return apart if apart <= EXACT else None


def _decoded(ours: Values, theirs: Values, settings: tuple[Mapping[str, str], Mapping[str, str]]) -> Iterator[Cause]:
    """What the decoder is given."""
    a, b = ours.get(("", "decode:in.z")), theirs.get(("", "decode:in.z"))
    if a is None or b is None:
        return
    if a.shape != b.shape:
        axes = [i for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=False)) if x != y]
        if a.ndim == b.ndim == 5 and len(axes) == 1 and b.shape[axes[0]] == 1:
            text = (
                f"the VAE decodes frame by frame on the candidate, {a.shape[axes[0]]} frames at once on the reference"
            )
            yield _cause(text, "vae.frames", float(a.shape[axes[0]]), 1.0, 1.0)
        return
    if not _differ((a, b)):
        return
    factor = float(np.vdot(a, b) / np.vdot(a, a))
    if np.linalg.norm(b - factor * a) > EXACT * np.linalg.norm(b):
        if _by_channel(a, b):
            text = (
                "what the VAE decodes is the reference's by another scale and offset in each channel: latents_mean and "
                "latents_std are left out, or applied twice"
            )
            yield _cause(text, "vae.scaling_factor", "", "", factor)
        return
    if abs(factor - 1) <= EXACT:
        return
    text = f"what the VAE decodes is {factor:.4g} times the reference's"
    for name, scale in _factors(settings):
        if abs(factor / scale - 1) <= EXACT:
            text += f": the latents are not divided by {name} {scale:.4g}"
        elif abs(factor * scale - 1) <= EXACT:
            text += f": the latents are divided by {name} {scale:.4g} twice"
    yield _cause(text, "vae.scaling_factor", 1.0, factor, factor)


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
    return bool(np.linalg.norm(left) <= EXACT * np.linalg.norm(y))


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
    """Frames as they leave the generation: uint8 by truncation is half a level darker than by rounding."""
    theirs = {r.key: r for r in candidate.records}
    for ours in reference.records:
        other = theirs.get(ours.key)
        if other is None or not _eight_bits(ours) or not _eight_bits(other):
            continue
        assert ours.moments is not None
        assert other.moments is not None
        darker = ours.moments.mean - other.moments.mean
        if 0.35 <= darker <= 0.65:
            text = f"the frames are {darker:.2g} levels darker: truncated to uint8 instead of rounded"
            yield _cause(text, "frames", "rounded", "truncated", darker)


def _eight_bits(record: Record) -> bool:
    return record.dtype == "uint8" and record.moments is not None


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Values rounded to bfloat16, to nearest and ties to even, as float64."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


Detector = Callable[[Values, Values, tuple[Mapping[str, str], Mapping[str, str]]], Iterator[Cause]]
_DETECTORS: tuple[Detector, ...] = (_schedule, _place, _noise, _guidance, _decoded)
