"""Gauges: what the records themselves say of the kind of fault, whatever the code behind it. numpy only.

At the origin: a gain, another order, None against a tensor. At any other site of its step: the same values in another
order. In the loop's own numbers, at every step: another schedule (`parity.causes.schedule_gauge`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from parity.compare.detect.phantoms import CONFIRM
from parity.compare.result import Cause, Origin, Witness
from parity.golden.records import LOOP, Moments, Record
from parity.golden.sketch import TOTAL, Geometry
from parity.settings import BITS

LEFT = 0.05
"""A gain explains a difference where it leaves less than this share of it."""
SAME = 1e-4
"""Relative difference of the moments of a permuted tensor at most; and `AGAINST` times that of the sketches."""
AGAINST = 1e-3
"""Noise of relative size d moves a tensor's extremes by about d / 4 of their size: by less than this share of d once in
a hundred times, both extremes and the norm together never."""
LEAST = 1e-6
"""What rounding moves moments by."""


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


def dtype_gauge(reference: Sequence[Record], candidate: Sequence[Record]) -> tuple[Cause, ...]:
    """One cause where most of the candidate's modules have another working dtype, as its records say."""
    found = working_dtype(reference, candidate)
    if found is None:
        return ()
    ours, theirs = found
    text = f"most modules compute in {theirs}, the reference's in {ours}: run both in one dtype, or expect its rounding"
    detail = f"dtype of the module outputs: {ours} against {theirs}; {CONFIRM}"
    witness = Witness("gauge", float(BITS[theirs]), detail)
    return (Cause(text, "dtype", ours, theirs, math.nan, (witness,)),)


def _cause(sentence: str, value: float, detail: str) -> Cause:
    return Cause(sentence, "", "", "", math.nan, (Witness("gauge", value, f"{detail}; {CONFIRM}"),))


def reordered(
    reference: Sequence[Record], candidate: Sequence[Record], origin: Origin | None = None
) -> tuple[Cause, ...]:
    """The first site that holds the same values in another order, unless it is the origin, which `gauges` reads."""
    theirs = {r.key: r for r in candidate}
    found = []
    for ours in reference:
        other = theirs.get(ours.key)
        if other is None or ours.key.is_padding or not ours.kind == other.kind == "tensor":
            continue
        if _permuted(ours, other, ours.key.site) is not None:
            found.append(ours)
    # What is born as another order is told by `gauges`; what follows from it says nothing more.
    if not found or (origin is not None and found[0].key == origin.key):
        return ()
    first = found[0].key
    branches = ", ".join(dict.fromkeys(r.key.branch for r in found if r.key.branch)) or "no branch of its own"
    sites = len({r.key.site for r in found})
    sentence = f"{first.site} holds the same values in another order, although the divergence is not born there"
    detail = f"at {sites} sites, branches {branches}, step {first.step}: minimum, maximum, mean and norm agree"
    return (_cause(f"{sentence}: undo the layout or token order before it", float(sites), detail),)


def _permuted(ours: Record, theirs: Record, where: str) -> Cause | None:
    a, b = ours.moments, theirs.moments
    if a is None or b is None or ours.sketch is None or theirs.sketch is None or ours.frame != theirs.frame:
        return None
    x, y = (r.sketch.astype(np.float64) for r in (ours, theirs) if r.sketch is not None)
    size, apart = float(np.linalg.norm(x)), float(np.linalg.norm(x - y))
    if not math.isfinite(apart) or size == 0.0 or apart < 1e-3 * size or not _alike(a, b, apart / size):
        return None
    detail = f"minimum, maximum, mean and norm agree ({a.min:.4g}, {a.max:.4g}, {a.mean:.3g}, {a.l2:.4g})"
    return _cause(f"{where} holds the same values in another order: a layout, reshape or token order", 1.0, detail)


def _alike(a: Moments, b: Moments, apart: float) -> bool:
    """Whether moments agree far better than tensors do that are this far apart by anything but their order."""
    size, within = max(abs(a.min), abs(a.max)), max(LEAST, min(SAME, AGAINST * apart))
    close = all(abs(x - y) <= within * size for x, y in ((a.min, b.min), (a.max, b.max), (a.mean, b.mean)))
    return close and a.count == b.count and abs(a.l2 - b.l2) <= within * a.l2


def _gain(ours: Record, theirs: Record, where: str) -> Cause | None:
    if ours.sketch is None or theirs.sketch is None or ours.frame != theirs.frame:
        return None
    counters = ours.sketch.size if Geometry(*ours.frame).exact else TOTAL
    x, y = (s[:counters].astype(np.float64) for s in (ours.sketch, theirs.sketch))
    square, apart = float(x @ x), y - x
    if x.size < 2 or square == 0.0 or not np.isfinite(y).all() or not apart.any():
        return None
    gain = float(x @ y) / square
    left = float(np.linalg.norm(y - gain * x) / np.linalg.norm(apart))
    if left > LEFT:
        return None
    detail = f"gain {gain:.6f} leaves {left:.1%} of the difference"
    return _cause(f"{where} is the reference's times {gain:.5g}: a scale, gate or count is off", gain, detail)
