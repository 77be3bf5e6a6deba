"""Two more relations, fitted on each side as guidance is: the scheduler's step, and what is decoded; and all three
judged on the candidate's own values.

Problem. A guidance scale, a dt or a VAE's factor is no value of a module; in bfloat16 the floor of what it makes is
several percent wide, and a factor of 1.037 lies within it.

How. What the loop computes of its values is linear in them: noise_pred of the branches' predictions, the latents of
noise_pred, what is decoded of the latents. The weights are fitted on each side by itself; where both fits hold, weights
that differ are the cause, whatever the values are. The precision in which a side computed in bfloat16 is read off by
doing it again. numpy only.

Cost. A few passes over values of the size of the latents, at the first step that differs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from parity.compare.guidance import LEAST, Made, by_rounding, fitted, own_guided, several_roundings
from parity.compare.result import Cause, measured
from parity.compare.values import (
    GIVEN,
    LATENTS,
    MATCH,
    PREDICTED,
    SAME,
    START,
    TIMESTEP,
    WAYS,
    Seen,
    Values,
    Way,
    apart,
    number,
)
from parity.floors import L2_LIMIT
from parity.golden.disk.part import chosen
from parity.records import LOOP, Floor, Key, Record, StepRecords
from parity.sketch import value_record
from parity.transforms import (
    EXACT,
    FEW,
    WITHIN,
    bfloat16,
    by_channel,
    done,
    last_frames,
    norm,
    stored_as,
    unpacked,
)

# --- the step: latents.after = latents.before + dt noise_pred, if the scheduler is Euler's

TOOK = 1e-2
"""Relative difference of a used dt from a schedule's that says they are not the same."""


class _Step(NamedTuple):
    """One step of a scheduler.

    Attributes:
        before, flow, after: the latents before, noise_pred, the latents after. dt: the schedule's; NaN where nobody
            knows.
    """

    before: np.ndarray
    flow: np.ndarray
    after: np.ndarray
    dt: float


def _step(values: Values) -> _Step | None:
    """A side's step; None where what it is of is not held, or of other shapes."""
    before, flow, after = (values.get(("", at)) for at in (START, PREDICTED, LATENTS))
    if before is None or flow is None or after is None or not before.shape == flow.shape == after.shape:
        return None
    dt = values.get(("", f"{LOOP}:dt"))
    return _Step(before, flow, after, float(dt.item()) if dt is not None and dt.size == 1 else math.nan)


def _is_finite(step: _Step) -> bool:
    return all(np.isfinite(x).all() for x in step[:3])


def _summed(step: _Step, weights: Iterable[float]) -> Made:
    """What a scheduler makes that adds up its latents and its prediction, with these weights."""
    before, flow = (weight * x for weight, x in zip(weights, step[:2], strict=True))
    return before + flow, by_rounding(before, step.before, step.after) + by_rounding(flow, step.flow)


def ways_of(values: Values) -> Set[Way]:
    """In which ways a side's step may be made of its latents and prediction, as far as anything says."""
    if (step := _step(values)) is None or not _is_finite(step):
        return WAYS
    weights = {"dt": np.array([1.0, step.dt]), "sum": fitted(step.after, step.before, step.flow)[0]}
    made = {way: _summed(step, weights[way]) for way in WAYS}
    return {way for way, (after, most) in made.items() if norm(step.after - after) <= most}


def stepped(seen: Seen) -> Iterator[Cause]:
    """A scheduler that moves the latents by another multiple of the prediction than its own schedule says."""
    if seen.numbers("step_index"):
        return  # which says it
    yield from _rounded_step(seen)
    ours, theirs = _step(seen.ours), _step(seen.theirs)
    if ours is None or theirs is None:
        return
    said, other = theirs.dt, _used(theirs)
    if _used(ours) != ours.dt or math.isnan(other) or math.isnan(said) or other == said:
        return
    text = f"the scheduler stepped by {other:.5g} where its schedule says {said:.5g}"
    fix = "reset its step index before the loop (warm-up calls move it), and check the sign and factor of its update"
    yield measured(text, "scheduler.step", said, other, other, fix=fix, at=LATENTS)


def _rounded_step(seen: Seen) -> Iterator[Cause]:
    """A step that rounds the latents to bfloat16, which it is given or makes, where the reference's does not."""
    pair, dtypes = seen.pair(LATENTS), [settings.get("dtype") for settings in seen.settings]
    if pair is None or stored_as(pair[0]) == "bfloat16" or dtypes[0] != dtypes[1]:
        return
    step, text = _step(seen.theirs), ""
    if stored_as(pair[1]) == "bfloat16":  # as zeros are
        near = apart((_own_step(seen) or pair)[0], pair[1]) <= several_roundings(pair[1])
        text = "the latents that a step makes are rounded to bfloat16" * near
    elif step is not None:
        far, rounded = (apart(x, step.after - step.dt * step.flow) for x in (step.before, bfloat16(step.before)))
        text = "a step starts from latents that it rounds to bfloat16" * (rounded < LEAST < far)
    if text:
        yield measured(text, "loop.latents", "float32", "bfloat16", at=LATENTS)


def _own_step(seen: Seen) -> Made | None:
    """What the reference's step makes of the candidate's latents and prediction, as far as its rounding shows: by the
    candidate's own dt, where the reference steps by its dt and by nothing else; or where it is a sum of these with some
    weights, as DDIM's is and the first of a multistep scheduler, and both stand at one place in one schedule."""
    ours, theirs = _step(seen.ours), _step(seen.theirs)
    if ours is None or theirs is None or "sum" not in seen.stepped:
        return None
    weights, left = np.array([1.0, theirs.dt]), norm(ours.after - _summed(ours, (1.0, ours.dt))[0])
    if "dt" not in seen.stepped or math.isnan(left) or math.isnan(theirs.dt):
        alike = seen.pair(TIMESTEP) and not any(seen.numbers(name) for name in ("timestep", "sigma", "dt"))
        if not (alike and all(np.isfinite(x).all() for x in (*ours[:3], *theirs[:2]))):
            return None
        weights, left = fitted(ours.after, ours.before, ours.flow)
    made, rounded = _summed(theirs, weights)
    return made, rounded + 2 * left


def _own_latents(seen: Seen) -> Made | None:
    """The candidate's latents as its step before left them, where the reference hands them on as they are."""
    before = seen.ours.get(("", START))
    if seen.before is None or before is None or not np.array_equal(before, seen.before[0]):
        return None
    alike = len({settings.get("dtype") for settings in seen.settings}) == 1  # a coarser side may cast what it hands on
    held = before if alike else seen.theirs.get(("", START), before)
    return seen.before[1], by_rounding(seen.before[1], held)


def _used(step: _Step) -> float:
    """The multiple of the prediction that a side stepped by: its dt, if that may be it; NaN where it is none."""
    before, flow, after, dt = step
    moved, size = after - before, norm(flow)
    used = float(np.vdot(flow, moved)) / size**2 if size else math.nan
    left, rounded = norm(moved - used * flow), by_rounding(after, before, after) + by_rounding(moved, flow)
    if not left <= max(TOOK * norm(moved), rounded):
        return math.nan
    return dt if abs(used - dt) <= TOOK * abs(dt) + left / size else used


# --- what is decoded: each channel of the last latents, by a scale and an offset


def decoded(seen: Seen) -> Iterator[Cause]:
    """What the decoder is given: other frames, or latents by another scale and offset."""
    a, b = seen.ours.get(("", GIVEN)), seen.theirs.get(("", GIVEN))
    if a is None or b is None:
        return
    if a.shape != b.shape:
        axes = [i for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=False)) if x != y]
        if a.ndim == b.ndim == 5 and len(axes) == 1 and (axes == [2] or b.shape[axes[0]] == 1):
            few, many = b.shape[axes[0]], a.shape[axes[0]]
            text = f"the VAE is given {few} latent frames, {many} frames on the reference"
            one = f"the VAE decodes frame by frame on the candidate, {many} frames at once on the reference"
            yield measured(one if few == 1 else text, "vae.frames", float(many), float(few), float(few), at=GIVEN)
        return
    a, most = _own_decoded(seen) or (a, SAME * norm(a))
    if {settings.get("dtype") for settings in seen.settings} == {"float32"}:
        most = min(most, SAME * norm(a))  # also of a candidate that rounds them
    if a.ndim == 5 and np.array_equal(a[:, :, 0], b[:, :, 0]):  # an image's, which was put back
        a, b = a[:, :, 1:], b[:, :, 1:]
    ours, theirs = _scaled(seen)
    if ours is not None and theirs is not None and ours[3] != theirs[3]:
        made_of, put = ("candidate", "reference") if ours[3] else ("reference", "candidate")
        text = f"the first frame that is decoded is of the latents on the {made_of}, an image put back on the {put}"
        yield measured(text, "vae.first_frame", at=GIVEN)
    made = done(a, b) if norm(b - a) > most else None
    if made is not None and not made.inverse and made.words.startswith("with another scale"):
        found = by_channel(a, b)
        assert found is not None  # or nothing would have been done to each
        how = _which(found, _by_moments(a.shape[1], seen))
        yield measured(f"what the VAE decodes: {made}{how}", "vae.scaling_factor", at=GIVEN)
    elif made is not None:
        factor, how = float(np.vdot(a, b) / np.vdot(a, a)), _which(fitted(b, a, np.ones_like(a))[0], _by_factors(seen))
        yield measured(f"what the VAE decodes: {made}{how}", "vae.scaling_factor", 1.0, factor, factor, at=GIVEN)


def _own_decoded(seen: Seen) -> Made | None:
    """What the reference's scaling makes of the candidate's latents, where it decodes its own by some: as the last step
    left them, or cast as between the steps."""
    pair, (ours, theirs) = seen.pair(GIVEN), _scaled(seen)
    if seen.before is None or pair is None or ours is None:
        return None
    most, layout = several_roundings(*pair), ours[2] if theirs is None else theirs[2]
    found = []
    for latents in (seen.before[1], seen.cast(seen.before[1])):
        laid = [*_laid(pair[1], latents)]
        if layout >= len(laid):
            return None
        own, scaled = pair[1].copy(), ours[0] * laid[layout] + ours[1]
        scaled = scaled[:, :, ours[3] :]
        last_frames(own, scaled)[:] = scaled
        found.append(own)
    own = min(found, key=lambda own: norm(own - pair[1]))
    return own, most * norm(own)


_Ways = Iterator[tuple[str, tuple[Any, Any]]]
"""What may have been done, and the scale and offset that come of it."""


def _which(found: Iterable[Any], ways: _Ways) -> str:
    """Which of several ways has the scale and offset that were found, of all latents or of each channel, behind a
    colon; empty for none."""
    for what, way in ways:
        if all(np.allclose(np.ravel(x), y, rtol=EXACT, atol=EXACT) for x, y in zip(found, way, strict=True)):
            return f": {what}"
    return ""


def _by_factors(seen: Seen) -> _Ways:
    """What may be done otherwise with the factors of the VAE's config: what is decoded is latents / factor + shift."""
    settings = {name: value for side in reversed(seen.settings) for name, value in side.items()}
    shift = number(settings, "vae.shift_factor") or 0.0
    for name in ("scaling_factor", "scaling_factor_image"):
        if scale := number(settings, f"vae.{name}"):
            ways = {
                f"the latents are not divided by {name} {scale:.4g}": (scale, shift - scale * shift),
                f"the latents are divided by {name} {scale:.4g} twice": (1 / scale, shift - shift / scale),
                f"the latents are multiplied by {name} {scale:.4g}": (scale**2, shift - scale**2 * shift),
                f"shift_factor {shift:.4g} is left out": (1.0, -shift),
                f"shift_factor {shift:.4g} is added before the division": (1.0, shift / scale - shift),
                f"{name} {scale:.4g} and shift_factor {shift:.4g} are left out": (scale, -scale * shift),
            }
            yield from ((what, way) for what, way in ways.items() if way != (1.0, 0.0))


def _by_moments(channels: int, seen: Seen) -> _Ways:
    """The same with the mean and deviation of the VAE's config, by which the channels of latents are scaled."""
    for settings in seen.settings:
        mean, std = (_numbers(settings.get(f"vae.latents_{name}", "")) for name in ("mean", "std"))
        if mean.size == std.size == channels and std.all():
            yield "latents_mean and latents_std are left out", (1 / std, -mean / std)
            yield "latents_mean and latents_std are applied twice", (std, mean)
            yield "latents_mean is left out", (np.ones_like(std), -mean)
            yield "latents_std is left out", (1 / std, mean - mean / std)
            yield "latents_std divides where it multiplies", (1 / std**2, mean - mean / std**2)
            yield "latents_mean is added before the product with latents_std", (np.ones_like(std), mean * std - mean)
            yield "latents_mean and latents_std are exchanged", (mean / std, std - mean**2 / std)


def _numbers(text: str) -> np.ndarray:
    """Those of a list in a config, as text."""
    try:
        return np.asarray(json.loads(text), np.float64)
    except (ValueError, TypeError):
        return np.zeros(0)


_Scaled = tuple[np.ndarray, np.ndarray, int, int]


def _scaled(seen: Seen) -> list[_Scaled | None]:
    """How each side scales the latents that it decodes; None where it does otherwise."""
    pair = seen.pair(GIVEN)
    if seen.before is None or pair is None:
        return [None, None]
    most = several_roundings(*pair)
    return [next(_scales(x, of, most), None) for x, of in zip(pair, seen.before, strict=True)]


def _scales(given: np.ndarray, latents: np.ndarray, most: float) -> Iterator[_Scaled]:
    """Scale and offset of each channel, [1, channels, 1...], that make what is given of latents, which of the ways to
    lay them out it is that fits, and how many frames come before those of which this holds: an image's is put back."""
    for i, x in enumerate(_laid(given, latents)):
        for first in (0, 1) if x.ndim == 5 and x.shape[2] > 1 else (0,):
            own = x[:, :, first:] if first else x
            z = last_frames(given, own)
            fitted = by_channel(own, z)
            if fitted is not None and apart(z, fitted[0] * own + fitted[1]) <= most:
                yield *fitted, i, first


def _laid(given: np.ndarray, latents: np.ndarray) -> Iterator[np.ndarray]:
    """Latents as they may lie in what is decoded: as they are, frames first, channels last, or as tokens of patches."""
    laid = [latents, latents.swapaxes(1, 2), np.moveaxis(latents, -1, 1)]
    laid = laid if latents.ndim >= 4 else [*unpacked(latents, given.shape)] if latents.ndim == 3 else []
    if latents.ndim == given.ndim + 1:  # frames that are decoded as pictures
        laid = [x.reshape(-1, *x.shape[2:])[: len(given)] for x in laid]
    laid = [last_frames(x, given) for x in laid]  # without those of an image that the model was shown
    yield from (x for x in laid if x.shape == last_frames(given, x).shape and x[:, 0].size >= FEW)


# --- judged on the candidate's own values

OWN: Mapping[str, tuple[Callable[[Seen], Made | None], str]] = {
    PREDICTED: (
        own_guided,
        "noise_pred is compared with what the reference's guidance makes of the candidate's branches",
    ),
    START: (_own_latents, "the latents are compared with those that the candidate's step before made"),
    LATENTS: (_own_step, "the latents are compared with what a step makes of the candidate's own prediction"),
    GIVEN: (_own_decoded, f"{GIVEN} is compared with what the reference's scaling makes of the candidate's latents"),
}
"""Value of the loop -> what makes it of the candidate's own values as the reference does, and a note that it did."""


_ITSELF: Mapping[str, tuple[str, str]] = {
    PREDICTED: ("guidance", "guidance"),
    START: ("loop.latents", "what hands the latents on to the next step"),
    LATENTS: ("scheduler.step", "the scheduler's step"),
    GIVEN: ("vae.scaling_factor", "the scaling of what is decoded"),
}
_RELATED = {"dtype", "guidance_dtype", "latents_dtype", "schedule_dtype"}
"""Settings that change what these relations make, or how it is rounded."""


def by_themselves(seen: Seen, known: Container[str]) -> Iterator[Cause]:
    """Values of the loop that differ from the reference's not only by what is before them: they are not what the
    reference makes of the candidate's own values either.

    Args:
        known: sites at which a divergence starts, or that have a cause.
    """
    ours, theirs = ({name: side.get(name) for name in _RELATED} for side in seen.settings)
    for site, (setting, words) in _ITSELF.items() if ours == theirs else ():
        pair = None if site in known else seen.pair(site)
        made = None if pair is None else OWN[site][0](seen)
        if pair is None or made is None or made[0].shape != pair[1].shape:
            continue
        most = max(made[1], SAME * norm(made[0]))
        far, carried = (norm(x - made[0]) for x in reversed(pair))
        if far > most and carried > most:
            text = f"{words} differs by itself, by {far / norm(made[0]):.2g} relative"
            yield measured(text, setting, value=far, detail=f"{text}, on the candidate's own values", at=site)


def judged_by_own(reference: StepRecords, seen: Seen) -> tuple[StepRecords, list[str]]:
    """The reference as it would follow the candidate from its own values, and notes on where.

    A floor is as wide as rounding becomes in the whole loop; of these values none comes in. Where the candidate's is
    beyond what a relation and its rounding make, the reference has that in place of its own, if no floor shows it.
    """
    notes: list[str] = []
    replaced: dict[Key, Record] = {}
    floors: dict[Key, Floor] = {}
    for record in chosen(reference.records, _is_made):
        site, theirs = record.key.site, seen.theirs.get(("", record.key.site))
        known = reference.floors.get(record.key)
        if theirs is None or known is None:
            continue
        value, (made_of, note) = np.asarray(record.value, np.float64), OWN[site]
        if value.shape != theirs.shape or not 0 < norm(theirs - value) <= L2_LIMIT * known.l2:
            continue  # equal, or what its own floor shows
        made = made_of(seen)
        if made is not None and norm(theirs - made[0]) > made[1]:
            replaced[record.key] = value_record(record.key, made[0].astype(np.float32), record.dtype)
            floors[record.key] = Floor(made[1] / L2_LIMIT)
            notes.append(note)
    if not notes:
        return reference, notes
    records = [replaced.get(record.key, record) for record in reference.records]
    return replace(reference, records=records, floors={**reference.floors, **floors}), notes


def _is_made(r: Record) -> bool:
    return r.key.site in OWN and (r.key.branch, r.key.call) == ("", 0)


# --- the same step in another precision: right, no floor is broken, and bits differ


def rounded_otherwise(seen: Seen) -> Iterator[str]:
    """A sentence where the sides round the scheduler's product otherwise."""
    if ways := seen.ways(_stepped_in):
        product = f"the scheduler's product of dt and the prediction is {ways[1]} on the candidate, {ways[0]} on the "
        yield f"{product}reference: a 0-d tensor takes the other's dtype"


def _stepped_in(values: Values) -> str:
    """How a side's step rounded its product: `rounded to bfloat16` or `in float32`; empty where neither can be told."""
    step = _step(values)
    # Latents that are kept in 16 bits show nothing of it.
    if step is None or stored_as(step.flow) != "bfloat16" or stored_as(step.after) == "bfloat16":
        return ""
    before, flow, after, dt = step
    ways = {"in float32": dt * flow, "rounded to bfloat16": bfloat16(dt * flow)}
    size = np.abs(before) + np.abs(dt * flow)
    near = {name: float(np.mean(np.abs(before + p - after) <= WITHIN * size)) for name, p in ways.items()}
    best = max(near, key=lambda name: near[name])
    return best if near[best] >= MATCH and min(near.values()) < MATCH else ""
