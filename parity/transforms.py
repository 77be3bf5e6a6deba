"""What was done to values: one family of transforms, each tried in both directions.

A port rounds, scales, turns round or lays out otherwise what it hands on; the two values show it. A transform speaks
only where it makes one side's values of the other's and explains their difference; the more it can fit, the more values
it takes. numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

EXACT = 2e-3
"""Relative residual up to which a hypothesis explains a value: bfloat16 rounds to 4e-3 at most, 2e-3 on average."""
WITHIN = 1e-6
"""Relative difference up to which a value is the one that it was rounded to: that of float32."""
LEFT = 0.05
"""A transform explains a difference where it leaves at most this share of it."""


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Values rounded to bfloat16, to nearest and ties to even, as float64."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


Made = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Transform:
    """One that fits nothing.

    Attributes:
        words: what it did, of a value that "is the reference's ...". make: does it.
    """

    words: str
    make: Made


TRANSFORMS = (
    Transform("rounded down to integers", np.floor),
    Transform("rounded to integers", np.round),
    Transform("rounded to bfloat16", bfloat16),
    Transform("rounded to float16", lambda x: x.astype(np.float16).astype(np.float64)),
    Transform("negated", np.negative),
    Transform("times 1000", lambda x: 1000.0 * x),
    Transform("divided by 1000", lambda x: x / 1000.0),
    Transform("subtracted from 1", lambda x: 1.0 - x),
    Transform("subtracted from 1000", lambda x: 1000.0 - x),
)


@dataclass(frozen=True, slots=True)
class Done:
    """What was done to one side's values.

    Attributes:
        words: of `Transform`. inverse: whether the reference's are the candidate's, so made.
    """

    words: str
    inverse: bool = False

    def __str__(self) -> str:
        one, other = ("reference", "candidate") if self.inverse else ("candidate", "reference")
        return f"the {one}'s is the {other}'s {self.words}"


def done(a: np.ndarray, b: np.ndarray, *, fitted: bool = True) -> Done | None:
    """How one side's values were made of the other's; None where that is not known, and where they are the same.

    Args:
        a: the reference's values, float64. b: the candidate's, of the same shape. fitted: whether those count that hold
            up to rounding, a gain among them.
    """
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()) or _alike(a, b):
        return None
    exactly = ((False, a, b, _exactly), (True, b, a, _exactly))
    about = ((False, a, b, _about), (True, b, a, _about))
    ways = (*exactly, *about) if fitted else exactly
    found = (Done(words, inverse) for inverse, x, y, made in ways for words in made(x, y))
    return next(found, None)


def _exactly(x: np.ndarray, y: np.ndarray) -> Iterator[str]:
    """Transforms that give every value; one that comes to nothing says nothing of how."""
    if not y.any():
        yield "set to zero"
        return
    with np.errstate(over="ignore"):
        yield from (t.words for t in TRANSFORMS if _alike(t.make(x), y))
    zero = _zero_rows(x, y)
    if zero:
        yield zero


def _about(x: np.ndarray, y: np.ndarray) -> Iterator[str]:
    """Transforms that hold up to rounding."""
    if _kept_in_bfloat16(x, y):
        yield "computed in bfloat16"
    yield from (words for words, made in _laid_out(x, y) if _explains(made, x, y))
    if x.size > 1 and x.any():
        gain = float(np.vdot(x, y) / np.vdot(x, x))
        if _explains(gain * x, x, y):
            yield "negated" if abs(gain + 1) <= EXACT else f"times {gain:.5g}"
    if x.size > 3 and np.ptp(x) > 0:
        slope, offset = np.polyfit(x.ravel(), y.ravel(), 1)
        if _explains(slope * x + offset, x, y):
            yield f"plus {offset:.5g}" if abs(slope - 1) <= EXACT else f"times {slope:.5g} plus {offset:.5g}"
    if x.size > 3 and _alike(np.sort(x, None), np.sort(y, None)):
        yield "in another order"


ULPS = 6
"""Roundings to bfloat16, half an ulp or 2^-8 each, in what was computed in it: some operations."""


def _kept_in_bfloat16(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether `y` holds numbers of bfloat16 alone, each within some roundings of `x`, which does not."""
    narrow = x.size > 1 and np.array_equal(y, bfloat16(y)) and not np.array_equal(x, bfloat16(x))
    return bool(narrow and (np.abs(y - x) <= ULPS * 2.0**-8 * np.abs(x)).all())


def _laid_out(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if x.ndim == 1 and x.size > 2:  # what comes in at the end is the candidate's own
        yield "a step ahead", np.append(x[1:], y[-1])
        yield "a step late", np.append(y[0], x[:-1])
    for axis in range(x.ndim):
        along = f" along axis {axis}" if x.ndim > 1 else ""
        if x.shape[axis] > 2:
            yield f"from last to first{along}", np.flip(x, axis)
        if x.shape[axis] > 3 and x.shape[axis] % 2 == 0:
            yield f"with its halves{along} swapped", np.roll(x, x.shape[axis] // 2, axis)
    if x.ndim > 1 and x.shape[-1] == x.shape[-2]:
        yield "transposed", x.swapaxes(-1, -2)


def _zero_rows(x: np.ndarray, y: np.ndarray) -> str:
    """Rows that are zeros on one side alone, where the others agree."""
    if x.ndim < 2:
        return ""
    rows, others = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    zero = (np.count_nonzero(others, axis=1) == 0) & (np.count_nonzero(rows, axis=1) > 0)
    if not zero.any() or not _alike(rows[~zero], others[~zero]):
        return ""
    return f"with {int(zero.sum())} of its {len(zero)} rows zero"


def _alike(x: np.ndarray, y: np.ndarray) -> bool:
    return bool((np.abs(x - y) <= WITHIN * np.abs(y)).all())


def _explains(made: np.ndarray, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether what was made of `x` is `y`, and `x` itself is not."""
    left = float(np.linalg.norm(made - y))
    return left <= EXACT * float(np.linalg.norm(y)) and left <= LEFT * float(np.linalg.norm(y - x))
