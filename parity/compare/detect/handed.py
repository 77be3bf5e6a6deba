"""What the decoder is given against what the reference makes of the same latents.

Problem. In bfloat16 the floor of the last latents is several percent wide, and so is that of what is decoded: a factor
of 1.037 that one side leaves out lies within it.

How. What a pipeline decodes is its last latents, each channel by a scale and an offset. Where that holds on both sides,
to the rounding of their dtypes, the reference's scale and offset of the candidate's own latents are what the candidate
ought to decode: no rounding before comes in. Where one side does more (noise is added, frames are put in), nothing is
said. numpy only.

Cost. A few passes over the latents, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parity.compare.births import L2_LIMIT
from parity.compare.detect.held import Both, apart
from parity.records import Floor, Key, Record, StepRecords
from parity.settings import BITS
from parity.sketch import value_record

GIVEN = "decode:in.z"
ROUNDINGS = 4
"""Roundings, of half a last bit each, from the latents to what is decoded: a cast, a constant, a product, a sum."""
LEAST = 1e-5
"""Relative difference below which two scales are one: float32 constants, and a division or a product by the inverse."""
FEW = 8
"""Elements of a channel below which a scale and an offset explain anything."""


def tolerance(*dtypes: str) -> float:
    """Relative L2 difference that the casts and products between latents and decoder make, in the coarsest of these."""
    bits = min(BITS.get(dtype, 24) for dtype in dtypes)
    return max(LEAST, ROUNDINGS * 2.0 ** -(bits + 1))


def expected(given: Both, latents: Both, most: float) -> np.ndarray | None:
    """What the candidate's decoder is given where its latents are scaled as the reference's are.

    Args:
        given: what each side's decoder is given, [B, channels, ...]. latents: each side's last ones, so laid out or
            with the axes 1 and 2 exchanged. most: see `tolerance`.

    Returns:
        float64, of the candidate's shape; None where one of the sides gives something else.
    """
    ours = next(_scales(given[0], latents[0], most), None)
    theirs = next(_scales(given[1], latents[1], most), None)
    if ours is None or theirs is None:
        return None
    (scale, offset, _), (_, _, laid) = ours, theirs
    return scale * laid + offset if scale.shape[1] == laid.shape[1] else None


def _scales(given: np.ndarray, latents: np.ndarray, most: float) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Scale and offset of each channel, [1, channels, 1...], that make what is given of latents; these, so laid."""
    layouts = [latents, latents.swapaxes(1, 2)] if latents.ndim >= 4 else []
    for x in layouts:
        if x.shape != given.shape or x[:, 0].size < FEW:
            continue
        axes = tuple(i for i in range(x.ndim) if i != 1)
        middle, other = x.mean(axes, keepdims=True), given.mean(axes, keepdims=True)
        square = ((x - middle) ** 2).sum(axes, keepdims=True)
        if not (square > 0).all():
            continue
        scale = ((x - middle) * (given - other)).sum(axes, keepdims=True) / square
        offset = other - scale * middle
        if apart(given, scale * x + offset) <= most:
            yield scale, offset, x


def judged_by_own(reference: StepRecords, candidate: StepRecords, latents: Both | None) -> StepRecords:
    """The reference, with what it would decode of the candidate's latents in place of what it decoded, where the
    candidate's differs from that beyond rounding.

    Args:
        reference, candidate: what came after the loop. latents: each side's last ones.
    """
    ours, theirs = _given(reference), _given(candidate)
    if ours is None or theirs is None or latents is None or reference.step >= 0:
        return reference
    most = tolerance(ours.dtype, theirs.dtype)
    pair = np.asarray(ours.value, np.float64), np.asarray(theirs.value, np.float64)
    own = expected(pair, latents, most)
    if own is None or apart(own, pair[1]) <= most:
        return reference
    floor = reference.floors.get(ours.key)
    if floor is None or np.linalg.norm(pair[1] - pair[0]) > L2_LIMIT * floor.l2:
        return reference  # it shows without this
    instead = value_record(ours.key, own.astype(np.float32), ours.dtype)
    records = [instead if r is ours else r for r in reference.records]
    narrow: dict[Key, Floor] = {**reference.floors, ours.key: Floor(most * float(np.linalg.norm(own)) / L2_LIMIT)}
    return replace(reference, records=records, floors=narrow)


def _given(step: StepRecords) -> Record | None:
    held = (r for r in step.records if r.key.site == GIVEN and r.key.call == 0)
    return next((r for r in held if isinstance(r.value, np.ndarray)), None)
