"""How far two records are apart: relative L2 from sketches (exact where values are held), cosine, extremes, bins.

numpy only, in float64. Distances between sketches are estimates (`parity.sketch`: 2 % typically); where both
sides hold the value they are exact. A golden's values are mapped files larger than memory, so they are walked in blocks
that stay in the processor's cache. Infinities that both hold, and NaNs that both hold, count as no difference.

Cost. One read of both values, some three times the time of numpy's `norm(y - x) / norm(x)` in memory.
"""

from __future__ import annotations

import math

import numpy as np

from parity.compare.result import NAN, Distance
from parity.records import AFTER, LOOP, Floor, Key, Record
from parity.sketch import TOTAL, Geometry, bin_norms

BLOCK = 1 << 13
"""Elements: small enough that BLAS does not wake its threads (from 10,000 on), which costs more than it gains."""


def compare_values(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float]:
    """Compare two arrays of one shape; memory maps are read block by block.

    Returns:
        ||y - x||, ||x||, their cosine, and the largest |y - x|.
    """
    x, y = x.reshape(-1), y.reshape(-1)
    total, largest = np.zeros(4), 0.0
    with np.errstate(all="ignore"):
        for start in range(0, x.size, BLOCK):
            a, b = (z[start : start + BLOCK].astype(np.float64) for z in (x, y))
            apart = b - a
            if not np.isfinite(apart.sum()):
                apart[(np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == b))] = 0.0
            total += apart @ apart, a @ a, b @ b, a @ b
            largest = float(np.maximum(largest, np.abs(apart).max()))  # which keeps a NaN
        l2, scale, other = (float(root) for root in np.sqrt(total[:3]))
    return l2, scale, _cosine(float(total[3]), scale, other), largest


NORM_ROUNDING = 1e-5
"""What rounding can move a norm by, relative: two devices add up to 1e9 squares in float32, each in its own order."""


def norm_ratio(reference: Record, candidate: Record, floor: Floor | None) -> float:
    """The difference of two norms to the floor: the distance of the tensors is no less. NaN where it is not known,
    0 where rounding can be all of it."""
    a, b = reference.moments, candidate.moments
    if a is None or b is None or floor is None:
        return NAN
    least = abs(b.l2 - a.l2)
    return 0.0 if least <= NORM_ROUNDING * a.l2 else ratio(least, floor.l2)


def comparable_shapes(reference: Record, candidate: Record) -> bool:
    """Whether two tensors line up element by element.

    A part of a joint sequence, or rows taken in a frame, do although the whole tensors' lengths differ. Inside a model
    an axis of one more or less (a batch of one that one side leaves out) moves no element; in another place it may be
    another batch. What the loop and the stages behind it hand on has one shape: others read it.
    """
    key = reference.key
    if reference.frame != candidate.frame or reference.rows != candidate.rows:
        return False
    if reference.rows or key.is_part:
        return True
    if is_contract(key):
        return reference.shape == candidate.shape and not other_pictures(reference, candidate)
    return one_shape(reference.shape, candidate.shape)


def is_contract(key: Key) -> bool:
    """Whether shapes and rows must line up here, whoever made the model."""
    return key.module == LOOP or key.stage == AFTER


def other_pictures(reference: Record, candidate: Record) -> bool:
    """Whether frames are floats of 0 to 1 on one side and levels of 8 bits on the other: another `output_type`."""
    levels = [record.dtype == "uint8" for record in (reference, candidate)]
    return reference.key.site == FRAMES and levels[0] != levels[1]


FRAMES = "decode:frames"
"""What a script's processor makes of what was decoded."""


def one_shape(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes are one, but for axes of one that only one of them has."""
    return a == b or (len(a) != len(b) and [n for n in a if n != 1] == [n for n in b if n != 1])


def between(
    x: np.ndarray, y: np.ndarray, view: Geometry, alike: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Compare many sketches at once.

    Args:
        x, y: float64 [pairs, size], the reference's and the candidate's. view: of their tensors.
        alike: bool [pairs], whether both sides hold as many NaNs and as many infinities: counters that are nonfinite
            alike then count as equal, as of an additive mask that holds -inf on both sides.

    Returns:
        Float64 [pairs]: ||y - x||, NaN where either holds a NaN or an infinity that the other does not; ||x||; their
        cosine. And of each row bin, [pairs, bins], ||y - x||.
    """
    with np.errstate(all="ignore"):
        apart = y - x
        if not np.isfinite(apart.sum()):
            same = (np.isnan(x) & np.isnan(y)) | (np.isinf(x) & (x == y))
            apart[same & alike[:, None]] = 0.0
        whole = slice(None) if view.exact else slice(TOTAL)
        l2, own, other = (np.sqrt(np.einsum("ij,ij->i", v[:, whole], v[:, whole])) for v in (apart, x, y))
        # |x - y|^2 = |x|^2 + |y|^2 - 2 xy, all three from the same counters
        cosine = np.where((own > 0) & (other > 0), (own**2 + other**2 - l2**2) / 2 / (own * other), NAN)
        return l2, own, cosine, bin_norms(apart, view)


def _cosine(dot: float, a: float, b: float) -> float:
    return dot / (a * b) if a > 0 and b > 0 else NAN


def distance(l2: float, scale: float, floor: Floor | None) -> Distance:
    """A measured distance relative to the reference's norm, with its floor."""
    scale, limit = scale if scale > 0 else 1.0, NAN if floor is None else floor.l2
    return Distance(l2 / scale, limit / scale, ratio(l2, limit))


def ratio(value: float, floor: float) -> float:
    """value / floor; 0 where both are 0, inf where only the floor is, NaN where either is NaN or the floor infinite."""
    return float(ratios(np.array(value), np.array(floor)))


def ratios(values: np.ndarray, floors: np.ndarray) -> np.ndarray:
    """`ratio` of many."""
    with np.errstate(all="ignore"):
        found = np.where(floors == 0.0, np.where(values == 0.0, 0.0, math.inf), values / floors)
    return np.where(np.isnan(values) | ~np.isfinite(floors), NAN, found)
