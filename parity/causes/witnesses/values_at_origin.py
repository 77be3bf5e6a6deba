"""The value at the origin: a gain, another order of the same values, None against a tensor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.causes.evidence import Evidence
from parity.causes.gauges import measured, reordering
from parity.causes.witness import witness
from parity.compare.result import Cause
from parity.compare.unlike import keys_through
from parity.records import Record
from parity.sketch import TOTAL, Geometry

LEFT = 0.05
"""A gain explains a difference where it leaves less than this share of it."""


@witness("values_at_origin")
def values_at_origin(evidence: Evidence) -> Iterator[Cause]:
    """What the two records at the origin show, at most one thing."""
    key = evidence.origin.key
    ours, theirs = (next((r for r in side.records if r.key == key), None) for side in (evidence.ours, evidence.theirs))
    if ours is None or theirs is None or ours.kind != theirs.kind:
        one = "the candidate" if ours is None or (theirs is not None and ours.kind == "none") else "the reference"
        yield measured(f"only {one} has a value at {key.site}", 1.0, "one side has None or nothing there")
    elif ours.kind == "tensor" and "mask" in key.port:
        yield from _keys(ours, theirs)
    elif ours.kind == "tensor":
        order = reordering(ours, theirs)
        if order is not None:
            text = f"{key.site} holds the same values in another order"
            yield measured(text, 1.0, order, "undo the layout, reshape or token order")
        elif not evidence.counts_keys:  # which shrink what the attention gives, all alike: their count says it
            yield from _gain(ours, theirs)


def _keys(ours: Record, theirs: Record) -> Iterator[Cause]:
    """How many keys two masks let through in each row."""
    added = any(r.moments is not None and r.moments.min < 0 for r in (ours, theirs))
    # All zeros lets all through where masks are added, and nothing where they are ones and zeros.
    x, y = ((max if added else min)(keys_through(r), default=None) for r in (ours, theirs))
    if x is None or y is None:
        return
    numbers = f"{y} a row on the candidate, {x} on the reference"
    what = (
        f"another number of keys through: {numbers}"
        if x != y
        else f"{x} keys a row through, as the reference's, others"
    )
    yield measured(f"the mask {ours.key.site} lets {what}", float(y), numbers)


def _gain(ours: Record, theirs: Record) -> Iterator[Cause]:
    if ours.sketch is None or theirs.sketch is None or ours.frame != theirs.frame:
        return
    counters = ours.sketch.size if Geometry(*ours.frame).exact else TOTAL
    x, y = (s[:counters].astype(np.float64) for s in (ours.sketch, theirs.sketch))
    square, apart = float(x @ x), y - x
    if x.size < 2 or square == 0.0 or not np.isfinite(y).all() or not apart.any():
        return
    gain = float(x @ y) / square
    left = float(np.linalg.norm(y - gain * x) / np.linalg.norm(apart))
    if left <= LEFT:
        detail = f"gain {gain:.6f} leaves {left:.1%} of the difference"
        yield measured(
            f"{ours.key.site} is the reference's times {gain:.5g}: a scale, gate or count is off", gain, detail
        )
