"""Gauges: what the origin's own records say of the kind of fault, whatever the code behind it. numpy only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from parity.compare.result import Cause, Origin, Witness
from parity.golden.records import Moments, Record
from parity.golden.sketch import TOTAL, Geometry

LEFT = 0.05
"""A gain explains a difference where it leaves less than this share of it."""


def gauges(reference: Sequence[Record], candidate: Sequence[Record], origin: Origin | None) -> tuple[Cause, ...]:
    """What the two records at the origin show: a gain, another order of the same values, None against a tensor."""
    if origin is None:
        return ()
    ours = next((r for r in reference if r.key == origin.key), None)
    theirs = next((r for r in candidate if r.key == origin.key), None)
    where = origin.key.site
    if ours is None or theirs is None or ours.kind != theirs.kind:
        one = "the candidate" if ours is None or (theirs is not None and ours.kind == "none") else "the reference"
        return (_cause(f"only {one} has a value at {where}", 1.0, "one side has None or nothing there"),)
    if ours.kind != "tensor":
        return ()
    found = [_permuted(ours, theirs, where), _gain(ours, theirs, where)]
    return tuple(cause for cause in found if cause is not None)[:1]


def _cause(sentence: str, value: float, detail: str) -> Cause:
    return Cause(sentence, "", "", "", math.nan, (Witness("gauge", value, detail),))


def _permuted(ours: Record, theirs: Record, where: str) -> Cause | None:
    a, b = ours.moments, theirs.moments
    if a is None or b is None or ours.sketch is None or theirs.sketch is None or not _alike(a, b):
        return None
    apart = float(np.linalg.norm(ours.sketch.astype(np.float64) - theirs.sketch.astype(np.float64)))
    if apart < 1e-3 * float(np.linalg.norm(ours.sketch.astype(np.float64))):
        return None
    detail = f"minimum, maximum, mean and norm agree to 1e-4 ({a.min:.4g}, {a.max:.4g}, {a.mean:.3g}, {a.l2:.4g})"
    return _cause(f"{where} holds the same values in another order: a layout, reshape or token order", 1.0, detail)


def _alike(a: Moments, b: Moments) -> bool:
    size = max(abs(a.min), abs(a.max))
    close = all(abs(x - y) <= 1e-4 * size for x, y in ((a.min, b.min), (a.max, b.max), (a.mean, b.mean)))
    return close and a.count == b.count and abs(a.l2 - b.l2) <= 1e-4 * a.l2


def _gain(ours: Record, theirs: Record, where: str) -> Cause | None:
    if ours.sketch is None or theirs.sketch is None or ours.frame != theirs.frame:
        return None
    counters = ours.sketch.size if Geometry(*ours.frame).exact else TOTAL
    x, y = (s[:counters].astype(np.float64) for s in (ours.sketch, theirs.sketch))
    square, apart = float(x @ x), y - x
    if square == 0.0 or not np.isfinite(y).all() or not apart.any():
        return None
    gain = float(x @ y) / square
    left = float(np.linalg.norm(y - gain * x) / np.linalg.norm(apart))
    if left > LEFT:
        return None
    detail = f"gain {gain:.6f} leaves {left:.1%} of the difference"
    return _cause(f"{where} is the reference's times {gain:.5g}: a scale, gate or count is off", gain, detail)
