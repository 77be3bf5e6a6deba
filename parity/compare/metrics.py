"""How far two records are apart: relative L2 from sketches (exact where values are held), cosine, extremes, bins.

numpy only, in float64. Distances between sketches are estimates (`parity.golden.sketch`: 2 % typically); where both
sides hold the value they are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from parity.compare.result import NAN, Distance
from parity.compare.values import compare_values
from parity.golden.records import Floor, Record
from parity.golden.sketch import Geometry, bin_norms, norm


@dataclass(frozen=True, slots=True)
class Measure:
    """What was measured between two tensor records.

    Attributes:
        l2: ||candidate - reference||; NaN where either holds a NaN or an infinity that the other does not.
        scale: ||reference||. cosine: of the two. max_abs: NaN unless both values are held.
        bins: ||difference|| of each row bin.
    """

    l2: float
    scale: float
    cosine: float
    max_abs: float
    bins: np.ndarray


def measure(reference: Record, candidate: Record) -> Measure | None:
    """Measure two tensor records; None where they cannot be compared (shapes or frames differ, sketches missing)."""
    a, b = reference.moments, candidate.moments
    if a is None or b is None or reference.frame != candidate.frame or reference.rows != candidate.rows:
        return None
    # A part of a joint sequence, or rows taken in a frame, line up although the whole tensors' lengths differ.
    if reference.rows == "" and not reference.key.is_part and reference.shape != candidate.shape:
        return None
    if isinstance(reference.value, np.ndarray) and isinstance(candidate.value, np.ndarray):
        return _from_values(reference.value, candidate.value)
    if reference.sketch is None or candidate.sketch is None:
        return None
    return _from_sketches(reference, candidate)


def _from_values(a: np.ndarray, b: np.ndarray) -> Measure | None:
    if a.shape != b.shape:
        return None
    found = compare_values(a, b)
    return Measure(found.l2, found.scale, _cosine(found.dot, found.scale, found.other), found.largest, np.zeros(0))


def _from_sketches(reference: Record, candidate: Record) -> Measure:
    assert reference.sketch is not None
    assert candidate.sketch is not None
    assert reference.moments is not None
    g = Geometry(*reference.frame)
    x, y = reference.sketch.astype(np.float64), candidate.sketch.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = y - x
        l2, scale, other = norm(apart, g), reference.moments.l2, norm(y, g)
        # |x - y|^2 = |x|^2 + |y|^2 - 2 xy, all three from the same counters
        own = norm(x, g)
        cosine = _cosine((own**2 + other**2 - l2**2) / 2, own, other)
        bins = bin_norms(apart, g)
    return Measure(l2, scale, cosine, NAN, bins)


def _cosine(dot: float, a: float, b: float) -> float:
    return dot / (a * b) if a > 0 and b > 0 else NAN


def distance(found: Measure, floor: Floor | None) -> Distance:
    """The measured distance relative to the reference's norm, with its floor."""
    scale = found.scale if found.scale > 0 else 1.0
    if floor is None:
        return Distance(found.l2 / scale, NAN, NAN)
    return Distance(found.l2 / scale, floor.l2 / scale, ratio(found.l2, floor.l2))


def ratio(value: float, floor: float) -> float:
    """value / floor; 0 where both are 0, inf where only the floor is, NaN where either is NaN."""
    if math.isnan(value) or math.isnan(floor):
        return NAN
    if floor == 0.0:
        return 0.0 if value == 0.0 else math.inf
    return value / floor


def bin_ratios(found: Measure, floor: Floor | None) -> tuple[float, ...]:
    """The ratio of each row bin; empty where there are no bins on either side."""
    if floor is None or floor.bins is None or len(floor.bins) != len(found.bins):
        return ()
    return tuple(ratio(float(v), float(f)) for v, f in zip(found.bins, floor.bins, strict=True))
