"""The first operation in which two runs of one module part. numpy only."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.births import L2_LIMIT
from parity.compare.metrics import ratio
from parity.sketch import Geometry, geometry, norm

ULPS = 16 * 2.0**-24
"""Least relative floor of one operation: sixteen float32 roundings, which no reordered sum of one module reaches."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """One operation as it is compared: name, shape, sketch [geometry(shape).size]."""

    name: str
    shape: tuple[int, ...]
    sketch: np.ndarray


@dataclass(frozen=True, slots=True)
class Parting:
    """Where the operations part.

    Attributes:
        index: of the reference's operation. name, shape: of it. rel_l2, ratio: to its floor; NaN where the candidate
            calls another operation there. other: what the candidate calls instead, `` where it calls the same.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    rel_l2: float
    ratio: float
    other: str = ""


def first_parting(
    reference: Sequence[Reduced], variants: Sequence[Sequence[Reduced]], candidate: Sequence[Reduced]
) -> Parting | None:
    """The first operation whose output differs beyond its floor, or that the candidate does not call.

    Args:
        variants: the reference's operations in float64 and under Monte Carlo rounding; the floor of each operation is
            the largest distance. One that does not call the same operations says nothing.
    """
    alike = [v for v in variants if [o.name for o in v] == [o.name for o in reference]]
    a, b = ([f"{o.name} {o.shape}" for o in side] for side in (reference, candidate))
    for tag, i, end, j, stop in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag != "equal":
            instead = ", ".join(f"{o.name} {list(o.shape)}" for o in candidate[j:stop]) or "nothing"
            at = reference[min(i, len(reference) - 1)]
            return Parting(i, at.name if end > i else "(none)", at.shape, math.nan, math.nan, instead)
        for k in range(end - i):
            found = _parting(i + k, reference[i + k], [v[i + k] for v in alike], candidate[j + k])
            if found is not None:
                return found
    return None


def _parting(index: int, ours: Reduced, variants: Sequence[Reduced], theirs: Reduced) -> Parting | None:
    g = geometry(ours.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        scale = norm(ours.sketch.astype(np.float64), g)
    floor = max([ULPS * scale, *(_apart(ours, v, g) for v in variants if v.shape == ours.shape)])
    far = _apart(ours, theirs, g)
    r = ratio(far, floor)
    if r <= L2_LIMIT:
        return None
    return Parting(index, ours.name, ours.shape, far / scale if scale else math.inf, r)


def _apart(a: Reduced, b: Reduced, g: Geometry) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return norm(b.sketch.astype(np.float64) - a.sketch.astype(np.float64), g)
