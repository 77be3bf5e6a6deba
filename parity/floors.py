"""Floors as numbers: the least that a site is judged by, and how each run that rounds otherwise widens it.

Which runs there are: `parity.paths.floors`; what a floor means: docs/how-it-works.md. numpy only, so that floors can be
widened where records are judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from parity.records import LOOP, SCHEDULE, Floor, Key, Record
from parity.sketch import PER_BIN, Geometry, bin_norms, norm

L2_LIMIT = 3.0
"""Floors that a difference may be wide."""
LINF_LIMIT = 5.0
"""Floors of a largest element, or of a row bin, beyond which a site differs."""
HALF_ULP = 2.0**-24
"""Relative rounding of storing a float32."""

STORED = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Relative rounding of storing a number in 16 bits, at most."""

MEAN = 0.42
"""Root mean square of a rounding, in units of the most: uniform within an ulp, the mantissa's logarithm uniform."""

SCHEDULE_ROUNDING = 2.0**-23
"""Rounding of a schedule's numbers, relative to the largest of them, of which the others are differences.
`jnp.linspace` of 50 steps is within 1.2 of it; relative to the last number it is 17 off."""
UNIT, TIMES = 2.0, 1000.0
"""Timesteps above the first begin at the second, the others at 1 or near it (a logarithm of sigma does)."""


def least(record: Record) -> Floor:
    """What no site is judged below: the rounding of the sketches themselves, and of the loop's own numbers.

    Two backends sum the same bits in different orders. Measured on bit-equal tensors, torch's and jax's sketches
    differ by up to 2.5 half ulps of the norm at 5 million elements, by 7.5 in a row bin, growing as the square root
    of the elements (`tests/paths/test_floors.py`). A tensor in 16 bits may besides hold its largest element rounded the
    other way: of two elements no few runs would sample that (a time embedding of the tiny CogVideoX).
    """
    l2 = record.moments.l2 if record.moments is not None else 0.0
    largest = 0.0 if record.moments is None else max(abs(record.moments.min), abs(record.moments.max))
    timed = SCHEDULE_ROUNDING * (TIMES if largest > UNIT else 1.0) * math.sqrt(math.prod(record.shape))
    if record.key.module == LOOP and record.shape == ():
        return Floor(timed if record.key.port == "timestep" else SCHEDULE_ROUNDING * max(l2, 1.0))
    g = Geometry(*record.frame)
    if _adds_exactly(record.dtype, largest, g):
        return Floor(0.0, None if record.sketch is None else np.zeros(g.bins, np.float32), linf=0.0)
    relative = HALF_ULP * (4.0 + math.sqrt(g.rows * g.channels / 2**18))
    stored = 0.0 if record.key.is_set else STORED.get(record.dtype, 0.0)  # sums over rows are float32
    one = stored * (largest if math.isfinite(largest) else 0.0)
    if record.key.is_argument and is_timestep(record.key.port.removeprefix("in.")):
        one = max(one, timed)
    if record.key.module == SCHEDULE:
        one = max(one, SCHEDULE_ROUNDING * largest)
    # All of a tensor that nobody computes, as noise, is rounded so where the other side has it in float32.
    bins = None
    if record.sketch is not None:
        bins = np.maximum(bin_norms(record.sketch, g) * max(2 * relative, MEAN * stored), one).astype(np.float32)
    held = isinstance(record.value, np.ndarray) and record.moments is not None
    # Noise is scaled by a number of the schedule, which is rounded as these are.
    linf = max(largest * SCHEDULE_ROUNDING, one) if held else math.nan
    return Floor(max(l2 * max(relative, MEAN * stored), one), bins, linf=linf)


_NUMBERS = {"timesteps": ("timestep",), "sigmas": ("sigma", "dt")}


def of_schedule(records: Iterable[Record]) -> dict[str, Floor]:
    """Floors of the loop's numbers by their names, where a step holds the schedule that they are taken of."""
    held = {r.key.port: r.moments for r in records if r.key.module == SCHEDULE and r.moments is not None}
    largest = {name: max(abs(m.min), abs(m.max)) for name, m in held.items()}
    most = LINF_LIMIT / L2_LIMIT * SCHEDULE_ROUNDING  # as far off as the schedule's largest element may be
    return {of: Floor(most * x) for name, x in largest.items() for of in _NUMBERS.get(name, ())}


def is_timestep(name: str) -> bool:
    """Whether an argument of a model of this name is its timestep, [B] or one for each token."""
    return name == "t" or "time" in name


def in_another_unit(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether timesteps are the reference's in the other of the units that models take: in [0, 1], or up to 1000."""
    if ours.shape != theirs.shape:
        return False
    near = {unit: LINF_LIMIT * SCHEDULE_ROUNDING * max(unit, 1.0) for unit in (TIMES, 1.0 / TIMES)}
    return any((np.abs(theirs - unit * ours) <= most).all() for unit, most in near.items())


def _adds_exactly(dtype: str, largest: float, g: Geometry) -> bool:
    """Whether a tensor is of whole numbers whose sums a float32 holds, in whatever order they are made: token ids."""
    if not dtype.startswith(("int", "bool")):
        return False
    each = 1.0 if g.exact else g.rows_per_bin * g.channels / PER_BIN
    return largest * 8 * math.sqrt(max(each, 1.0)) < 2.0**24  # signs are random: eight deviations of a sum


class Floors:
    """The floors of one side's records, widened by each run of it that rounds otherwise.

    Args:
        centre: the records. known: their floors so far; None for the least of each tensor.
    """

    def __init__(self, centre: Sequence[Record], known: Mapping[Key, Floor] | None = None) -> None:
        least_of = {r.key: least(r) for r in centre if r.kind == "tensor"} if known is None else known
        self._centre, self._found = centre, dict(least_of)

    def add(self, run: Sequence[Record], *, truth: bool = False) -> None:
        """Raise each floor to the distance of a run; what is not finite says nothing.

        Args:
            truth: whether further runs are measured from this one.
        """
        others = {r.key: r for r in run}
        for record in self._centre:
            other, known = others.get(record.key), self._found.get(record.key)
            if other is not None and known is not None:
                self._found[record.key] = _widened(known, record, other)
        self._centre = run if truth else self._centre

    def done(self) -> dict[Key, Floor]:
        """The floors, each row bin at least at its share of the tensor's: an equal one, or by what it holds.

        A bin is eight counters of a few runs: the norm of what a run rounded there has a spread of a quarter, and where
        a 16-bit floor rests on one run, a bin of 700 sites times 64 falls far below what rounding does to it now and
        then (bfloat16 pair, all innocent: 5 x in one bin of `x_embedder`, whose tensor was at 1.4 x). So no bin is
        taken to be more exact than the tensor is as a whole; an error in one bin alone is still seen at 5 / 8 of the
        tensor's floor.
        """
        for record in self._centre:
            floor = self._found.get(record.key)
            if floor is not None and floor.bins is not None and record.sketch is not None:
                self._found[record.key] = replace(floor, bins=_level(floor.l2, floor.bins, record))
        return self._found


def _level(l2: float, bins: np.ndarray, record: Record) -> np.ndarray:
    assert record.sketch is not None
    with np.errstate(invalid="ignore", over="ignore"):
        held = bin_norms(record.sketch, Geometry(*record.frame))
        whole = math.sqrt(float((held**2).sum()))
    if not math.isfinite(whole) or whole == 0.0:
        return bins
    return np.maximum(bins, (l2 * np.maximum(held / whole, 1.0 / math.sqrt(held.size))).astype(np.float32))


def _widened(known: Floor, record: Record, other: Record) -> Floor:
    """A floor raised to the distance between two runs."""
    if record.sketch is None or other.sketch is None:
        return known
    g = Geometry(*record.frame)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = other.sketch.astype(np.float64) - record.sketch.astype(np.float64)
        l2, bins = norm(apart, g), bin_norms(apart, g).astype(np.float32)
    bins = np.where(np.isfinite(bins), bins, 0.0).astype(np.float32)
    bins = bins if known.bins is None else np.maximum(known.bins, bins)
    linf = max(known.linf, _largest_apart(record, other))  # a NaN that was there stays, one that comes does not
    return replace(known, l2=max(known.l2, l2) if math.isfinite(l2) else known.l2, bins=bins, linf=linf)


def _largest_apart(ours: Record, theirs: Record) -> float:
    """The largest finite element of the difference of two values; NaN where they are not held or have none."""
    a, b = ours.value, theirs.value
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape:
        return math.nan
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(np.subtract(b, a, dtype=np.result_type(a, b, np.float32)))
    return float(np.max(apart, initial=0.0, where=np.isfinite(apart)))
