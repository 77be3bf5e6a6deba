"""Numbers as every report writes them."""

from __future__ import annotations

import math

from parity.compare.result import Distance
from parity.report.document import Cells


def small(value: float) -> str:
    """A difference: `2.80e-06`; 0 as such."""
    return "0" if value == 0 else f"{value:.2e}"


def times(ratio: float) -> str:
    """A ratio to the floor: `0.8x`, `1.2e+04x`, `inf`, `nan`."""
    if not math.isfinite(ratio):
        return str(ratio)
    return f"{ratio:.1f}x" if ratio < 1000 else f"{ratio:.1e}x"


def both(reference: float, candidate: float) -> str:
    """A number of each side, once where they agree: `999`, `999 -> 1000`; `-` for one that a schedule does not have."""
    texts = ["-" if math.isnan(value) else f"{value:.5g}" for value in (reference, candidate)]
    if reference == candidate or (math.isnan(reference) and math.isnan(candidate)):
        return texts[0]
    return " -> ".join(texts if texts[0] != texts[1] else [repr(reference), repr(candidate)])


def distance_cells(distance: Distance) -> Cells:
    """(relative L2, floor, ratio)."""
    return small(distance.rel_l2), small(distance.floor), times(distance.ratio)


def counted(count: int, noun: str) -> str:
    """`1 step`, `3 steps`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
