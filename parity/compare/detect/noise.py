"""What the loop starts from; later steps start from what the first made."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from parity.compare.detect.held import SAME, Seen, apart, differ, named
from parity.compare.result import Cause
from parity.records import LOOP
from parity.transforms import EXACT, bfloat16

_START = f"{LOOP}:latents.before"


def noise(seen: Seen) -> Iterator[Cause]:
    """What the loop starts from; later steps start from what the first made."""
    if ("", "schedule:timesteps") not in seen.ours:
        return
    pair = seen.pair(f"{LOOP}:latents.before")
    if not differ(pair):
        return
    assert pair is not None
    a, b = pair
    factor = float(np.vdot(a, b) / np.vdot(a, a))
    if apart(bfloat16(a), b) <= SAME:
        yield _rounded(seen, "", "float32", "bfloat16", apart(a, b))
    elif apart(a, bfloat16(b)) <= SAME:
        yield _rounded(seen, " on the reference alone", "bfloat16", "float32", apart(a, b))
    elif abs(factor - 1) > EXACT and np.linalg.norm(b - factor * a) <= EXACT * np.linalg.norm(b):
        yield named(f"the initial noise is {factor:.4g} times the reference's", "noise", 1.0, factor, factor, at=_START)
    elif structure := _structure(a, b):
        yield named(f"the initial noise has another structure: {structure}", "noise", "", "", factor, at=_START)
    elif abs(factor) < 0.2:
        text = "the initial noise is another: another seed, generator, device or order of draws"
        yield named(text, "noise", "", "", factor, at=_START)


def _rounded(seen: Seen, where: str, ours: str, theirs: str, value: float) -> Cause:
    """Noise that one side has in bfloat16: it is drawn in the dtype that the side works in, where that is declared."""
    declared = tuple(settings.get("dtype", "") for settings in seen.settings) == (ours, theirs)
    text = f"the initial noise is rounded to bfloat16{where}" + ", which it works in" * declared
    return named(text, "dtype" if declared else "noise", ours, theirs, value, at=_START)


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
    first, second = [], []
    for axis in (-2, -1):
        lines = np.moveaxis(x - x.mean(), axis, -1)
        inside = [i for i in range(lines.shape[-1] - 1) if period == 1 or (i + 1) % period]
        first.append(lines[..., inside].ravel())
        second.append(lines[..., [i + 1 for i in inside]].ravel())
    p, q = np.concatenate(first), np.concatenate(second)
    size = math.sqrt(float(p @ p) * float(q @ q))
    return (float(p @ q) / size, p.size) if size > 0 and math.isfinite(size) else (0.0, 0)
