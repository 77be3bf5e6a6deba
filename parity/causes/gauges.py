"""What gauges share: they read records alone, whatever the code behind them. numpy only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from parity.records import LOOP, Moments, Record
from parity.settings import BITS

ROUNDING = 1e-6
"""Relative difference of two float32 schedules that is rounding."""
SAME = 1e-4
"""Relative difference of the moments of a permuted tensor at most; and `AGAINST` times that of the sketches."""
AGAINST = 1e-3
"""Noise of relative size d moves a tensor's extremes by about d / 4 of their size: by less than this share of d once in
a hundred times, both extremes and the norm together never."""
LEAST = 1e-6
"""What rounding moves moments by."""


def working_dtype(reference: Sequence[Record], candidate: Sequence[Record]) -> tuple[str, str] | None:
    """The dtype of most module outputs on each side, where the two differ: the dtype map in one word."""
    theirs = {r.key: r for r in candidate}
    pairs = [
        (r.dtype, theirs[r.key].dtype)
        for r in reference
        if r.kind == "tensor" and r.key in theirs and r.key.module != LOOP and not r.key.is_input
    ]
    floats = [(a, b) for a, b in pairs if a in BITS and b in BITS]
    if not floats:
        return None
    ours, other = (Counter(side).most_common(1)[0][0] for side in zip(*floats, strict=True))
    return None if ours == other else (ours, other)


def reordering(ours: Record, theirs: Record) -> str | None:
    """By what two tensors are seen to hold the same values in another order; None where they do not."""
    a, b = ours.moments, theirs.moments
    far = apart(ours, theirs)
    if a is None or b is None or far is None or far < 1e-3 or not _alike(a, b, far):
        return None
    return f"minimum, maximum, mean and norm agree ({a.min:.4g}, {a.max:.4g}, {a.mean:.3g}, {a.l2:.4g})"


def apart(ours: Record, theirs: Record) -> float | None:
    """How far two tensors are apart, relative to the first, by their sketches; None where that cannot be told."""
    if ours.sketch is None or theirs.sketch is None or ours.frame != theirs.frame:
        return None
    x, y = (sketch.astype(np.float64) for sketch in (ours.sketch, theirs.sketch))
    size, far = float(np.linalg.norm(x)), float(np.linalg.norm(x - y))
    return far / size if math.isfinite(far) and size > 0.0 else None


def _alike(a: Moments, b: Moments, apart: float) -> bool:
    """Whether moments agree far better than tensors do that are this far apart by anything but their order."""
    size, within = max(abs(a.min), abs(a.max)), max(LEAST, min(SAME, AGAINST * apart))
    close = all(abs(x - y) <= within * size for x, y in ((a.min, b.min), (a.max, b.max), (a.mean, b.mean)))
    return close and a.count == b.count and abs(a.l2 - b.l2) <= within * a.l2
