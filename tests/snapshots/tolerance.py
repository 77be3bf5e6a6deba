"""How far two numbers may be apart: by what a machine rounds, and no further.

A floor is the largest of a few random roundings (Monte Carlo) and of |float32 - float64|, both measured where the
command runs. On one machine with one set of versions it comes out the same each time; another processor orders its
sums otherwise, and the largest of three seeds moves by a factor. So does a difference under its floor, and that one on
every change of the compiled program: it is rounding and nothing else. A real difference is the same everywhere up to
a few floors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SPECIAL = ("nan", "inf", "-inf")
Number = float | int | str
"""A number of a document: NaN and infinities are strings there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """What counts as equal.

    Attributes:
        floor: factor between two floors of one site. distance: factor between two differences beyond their floor.
        other: factor between any other numbers. share: absolute, of shares and percentages; bits: absolute.
        judged: factor around a limit within which another verdict is the machine's; 1 for none.
        hashes: whether fingerprints and checksums of what was computed are equal.
    """

    floor: float
    distance: float
    other: float
    share: float
    bits: float
    judged: float
    hashes: bool


SAME = Tolerance(floor=1.06, distance=1.06, other=1.06, share=0.02, bits=0.2, judged=1.0, hashes=True)
"""On the machine of the snapshots, with its versions; two digits of a site's numbers are 5 % themselves."""

OTHER = Tolerance(floor=4.0, distance=1.3, other=1.5, share=0.15, bits=1.5, judged=2.0, hashes=False)
"""On any other: three seeds' largest rounding moves by less than this; so does the verdict of a site that stands within
a factor of 2 of its limit."""

LIMIT = 3.0
"""Ratio to the floor from which a site fails."""


def near(old: Number, new: Number, factor: float) -> bool:
    """Whether two numbers agree within a factor; NaN, infinities and 0 agree with themselves alone."""
    a, b = float(old), float(new)
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    if a == b:
        return True
    if math.isinf(a) or math.isinf(b) or a * b <= 0:
        return False
    return max(abs(a), abs(b)) <= factor * min(abs(a), abs(b)) * (1 + 1e-9)


def floors_agree(old: Number, new: Number, tolerance: Tolerance) -> bool:
    """Whether two floors of one site agree."""
    return near(old, new, tolerance.floor)


def distances_agree(old: tuple[Number, Number], new: tuple[Number, Number], tolerance: Tolerance) -> bool:
    """Whether two differences (relative L2, floor) agree: beyond the floor by a factor, else both are under it."""
    if all(_under(*pair) for pair in (old, new)):
        return True
    # A difference of a few floors carries its rounding with it.
    a, b = float(old[0]), float(new[0])
    least = max(float(old[1]), float(new[1]))
    slack = 0.0 if math.isnan(least) else least
    return near(old[0], new[0], tolerance.distance) or abs(a - b) <= slack


def _under(rel_l2: Number, floor: Number) -> bool:
    return float(rel_l2) <= float(floor)


def borderline(pair: tuple[Number, Number], tolerance: Tolerance) -> bool:
    """Whether a site stands so near its limit that another machine may judge it otherwise."""
    rel_l2, floor = map(float, pair)
    if not floor > 0 or math.isnan(rel_l2):
        return False
    return LIMIT / tolerance.judged < rel_l2 / floor < LIMIT * tolerance.judged


SMALL = 1e-4
"""Differences and floors in a sentence: smaller ones may be roundings."""


def texts_agree(old: str, new: str, tolerance: Tolerance) -> bool:
    """Whether two numbers of sentences agree, as `parity` writes them: `2.1e-06`, `64384x`, `98%`, `12`."""
    if old == new:
        return True
    if old[-1] != new[-1] and {old[-1], new[-1]} & {"x", "%"}:
        return False
    a, b = (float(text.rstrip("x%").replace(",", "")) for text in (old, new))
    if old.endswith("%"):
        return abs(a - b) <= 100 * tolerance.share
    if old.endswith("x"):
        return max(a, b) < LIMIT or near(a, b, tolerance.distance * tolerance.floor) or abs(a - b) <= LIMIT
    if not set(".e") & set(old + new):
        return False  # a count is exact
    return max(abs(a), abs(b)) < SMALL or near(a, b, tolerance.other) or abs(a - b) <= tolerance.bits * ("e" not in old)
