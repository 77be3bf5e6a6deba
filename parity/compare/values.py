"""Exact distances of whole values, in one pass over blocks that stay in the processor's cache.

Problem. A golden's values are mapped files larger than memory: `norm(y - x)` would make arrays as large as they are,
and float64 ones first.

How. Both are walked in blocks; sums over blocks are Python floats. A block of float32 is summed in float32 (relative
error of a distance below 1e-5, typically 1e-7), unless a sum overflows, underflows or is NaN: then that block is done
again in float64, where infinities that both hold, and NaNs that both hold, count as no difference. Other dtypes are
always widened.

Cost. One read of both, a few blocks of memory; about the time of numpy's `norm(y - x) / norm(x)` in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

BLOCK = 1 << 13
"""Elements: small enough that BLAS does not wake its threads (from 10,000 on), which costs more than it gains."""

_SAFE = 2.0**-60
"""Least sum of squares of a float32 block that is trusted: squares of what is 1e-9 of its root still do not vanish."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What was summed up over two values x and y.

    Attributes:
        l2: ||y - x||. scale: ||x||. other: ||y||. dot: their inner product. largest: largest |y - x|.
    """

    l2: float
    scale: float
    other: float
    dot: float
    largest: float


def compare_values(x: np.ndarray, y: np.ndarray) -> Sums:
    """Compare two arrays of one shape; memory maps are read block by block."""
    x, y = x.reshape(-1), y.reshape(-1)
    quick = x.dtype == y.dtype == np.float32
    total = np.zeros(4)
    largest = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, x.size, BLOCK):
            a, b = x[start : start + BLOCK], y[start : start + BLOCK]
            sums, most = _sums(a, b, b - a) if quick else ((), math.nan)
            if not quick or not _trusted(sums, most):
                sums, most = _wide(a, b)
            total += sums
            # A NaN stays: max() would drop it.
            largest = most if math.isnan(most) or most > largest else largest
        l2, scale, other = (float(root) for root in np.sqrt(total[:3]))
    return Sums(l2, scale, other, float(total[3]), largest)


def _sums(a: np.ndarray, b: np.ndarray, apart: np.ndarray) -> tuple[tuple[float, ...], float]:
    sums = (float(apart @ apart), float(a @ a), float(b @ b), float(a @ b))
    return sums, max(float(apart.max()), -float(apart.min()))


def _trusted(sums: tuple[float, ...], most: float) -> bool:
    """Whether float32 was wide enough: all finite, and no square vanished that matters."""
    return math.isfinite(sum(sums)) and (sums[0] > _SAFE or most == 0.0) and min(sums[1:3]) > _SAFE


def _wide(a: np.ndarray, b: np.ndarray) -> tuple[tuple[float, ...], float]:
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (np.isnan(x) & np.isnan(y)) | (np.isinf(x) & (x == y))
    return _sums(x, y, np.where(same, 0.0, y - x))
