"""Whether one run's error is another's: regression in sketch space. numpy only.

Sketches are linear, so the sketch of an error is the difference of two sketches, and inner products between errors are
those between their sketches (`parity.sketch`). An error vector holds the errors of many sites of one step, each
relative to the norm of what the reference has there, so that no site counts for its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.metrics import comparable_shapes
from parity.compare.unlike import read_key
from parity.records import LOOP, Key, Record, StepRecords
from parity.sketch import TOTAL, Geometry, norm

BROKEN = 1e6
"""The relative error that a value with NaN or Inf counts as: more than any other, and a number, to be shared out."""

LOOP_OUTPUTS = ("noise_pred", "latents.after")

Vector = np.ndarray
"""float64 [counters]: the errors of several sites, one after another."""


def common_keys(*steps: StepRecords) -> tuple[Key, ...]:
    """The outputs that all of these steps hold sketches of, in execution order: modules' and the loop's."""
    held = [{r.key for r in step.records if _counts(r)} for step in steps]
    return tuple(r.key for r in steps[0].records if all(r.key in keys for keys in held))


def _counts(record: Record) -> bool:
    if record.kind != "tensor" or record.sketch is None or record.key.is_apart or record.key.is_input:
        return False
    return record.key.module != LOOP or record.key.port in LOOP_OUTPUTS


def as_read(step: StepRecords, stage: str) -> StepRecords:
    """The step with what is read of a stage's values in their place, where that is held: of frames what is shown."""
    read = {r.key: r for r in step.records if r.key.is_read and r.key.stage == stage}
    held = [(r, read.get(read_key(r.key))) for r in step.records if r.key not in read]
    records = tuple(r if other is None else replace(other, key=r.key) for r, other in held)
    known = {r.key: step.floors[other.key] for r, other in held if other is not None and other.key in step.floors}
    return StepRecords(step.step, records, {**step.floors, **known})


def error_vector(reference: StepRecords, other: StepRecords, keys: Sequence[Key]) -> Vector:
    """The errors of `other` at these sites; one that is absent or of another shape counts as zero, one that is not
    finite as `BROKEN`."""
    ours, theirs = ({r.key: r for r in step.records} for step in (reference, other))
    return np.concatenate([_error(ours[key], theirs.get(key)) for key in keys]) if keys else np.zeros(0)


def site_sizes(reference: StepRecords, keys: Sequence[Key]) -> tuple[int, ...]:
    """How many counters of an error vector each of these sites has."""
    held = {r.key: r for r in reference.records}
    return tuple(_counters(held[key]) for key in keys)


def _counters(record: Record) -> int:
    assert record.sketch is not None
    return record.sketch.size if Geometry(*record.frame).exact else TOTAL


def _error(a: Record, b: Record | None) -> Vector:
    assert a.sketch is not None
    g = Geometry(*a.frame)
    counters = _counters(a)
    scale = norm(a.sketch, g)
    if b is None or b.sketch is None or not comparable_shapes(a, b) or not math.isfinite(scale) or scale == 0.0:
        return np.zeros(counters)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = (b.sketch[:counters].astype(np.float64) - a.sketch[:counters].astype(np.float64)) / scale
    return apart if np.isfinite(apart).all() else np.full(counters, BROKEN / math.sqrt(counters))


def noise_norm(reference: StepRecords, keys: Sequence[Key]) -> float:
    """The norm that rounding alone gives an error vector of these sites: their floors, relative, added in squares."""
    scales = {r.key: norm(r.sketch, Geometry(*r.frame)) for r in reference.records if r.sketch is not None}
    relative = [reference.floors[k].l2 / scales[k] for k in keys if k in reference.floors and scales.get(k)]
    return math.sqrt(sum(x * x for x in relative))


@dataclass(frozen=True, slots=True)
class Fit:
    """One known error fitted to an unknown one.

    Attributes:
        coefficient: of the known error; 1 where it is the same. half: half width of its 95 % interval. r2: share of the
            unknown error's square that it explains.
    """

    coefficient: float
    half: float
    r2: float


def fit(error: Vector, known: Vector, noise: float = 0.0) -> Fit:
    """Least squares of `error` on `known` alone.

    Args:
        noise: norm of what rounding adds to the error, which widens the interval.
    """
    square, whole = float(known @ known), float(error @ error)
    if square == 0.0 or whole == 0.0:
        return Fit(0.0, math.inf, 0.0)
    coefficient = float(known @ error) / square
    left = error - coefficient * known
    residual = math.sqrt(float(left @ left) + noise * noise)
    # Residuals of neighbouring counters are no independent draws: a site's error counts as one, a sketch has 1,536.
    draws = max(1.0, error.size / TOTAL)
    half = 1.96 * residual / math.sqrt(square * draws)
    return Fit(coefficient, half, 1.0 - float(left @ left) / whole)


UNKNOWN = 0.3
"""An error of which known faults leave more than this share of its norm is not explained by them."""


@dataclass(frozen=True, slots=True)
class Explained:
    """Known faults that together give an unknown error.

    Attributes:
        names: in the order in which they were taken. residual: norm of what they leave, relative to the error's.
        fits: of each known fault alone.
    """

    names: tuple[str, ...]
    residual: float
    fits: Mapping[str, Fit]


GAIN = 0.85
"""A fault more is taken only where it leaves less than this of what was left: one of three equal ones leaves 0.82, a
fault that has nothing to do with an error of thousands of counters leaves nearly all."""
MOST = 4
TRIED = 6


def search(
    error: Vector, singles: Mapping[str, Vector], together: Callable[[frozenset[str]], Vector | None], noise: float
) -> Explained:
    """Known faults whose joint run has the unknown error: forward selection by simulation.

    The first is the single fault that leaves least. Each further one is chosen among those that regression on what is
    left ranks highest, and those that do nothing alone, by running it together with those taken: errors do not simply
    add up, and what is harmless alone (tokens that nobody sees) can count beside a fault (once they are seen).

    Args:
        together: the error of a run with several faults; None where it cannot be run. noise: norm that rounding gives.
    """
    whole = math.sqrt(float(error @ error))
    fits = {name: fit(error, known, noise) for name, known in singles.items()}
    silent = {n for n, v in singles.items() if float(np.linalg.norm(v)) <= 3.0 * noise}
    best = _Taken((), np.zeros_like(error), whole)
    while len(best.names) < MOST and best.left > 3.0 * noise:
        further = _further(error, best, singles, silent, together)
        enough = GAIN * best.left
        if further is not None and not best.names and further.left > enough:
            # One of several equal faults need not explain much alone.
            further, enough = _further(error, further, singles, silent, together), GAIN * enough
        if further is None or further.left > enough:
            break
        best = further
    return Explained(best.names, best.left / whole if whole else 0.0, fits)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Faults taken so far, the error of their joint run, and the norm of what it leaves."""

    names: tuple[str, ...]
    run: Vector
    left: float


def _further(
    error: Vector,
    taken: _Taken,
    singles: Mapping[str, Vector],
    silent: set[str],
    together: Callable[[frozenset[str]], Vector | None],
) -> _Taken | None:
    """The fault that leaves least, run together with those taken; None where none can be run."""
    used = {name.partition("=")[0] for name in taken.names}
    rest = [n for n in singles if n.partition("=")[0] not in used]
    loud = sorted((n for n in rest if n not in silent), key=lambda n: _leaves(error - taken.run, singles[n]))
    best: _Taken | None = None
    for name in [*loud[:TRIED], *(n for n in rest if n in silent)] if taken.names else loud:
        names = (*taken.names, name)
        run = together(frozenset(names)) if taken.names else singles[name]
        left = math.inf if run is None else float(np.linalg.norm(error - run))
        if run is not None and (best is None or left < best.left):
            best = _Taken(names, run, left)
    return best


def _leaves(error: Vector, known: Vector) -> float:
    """What the best multiple of a known error leaves of an error."""
    square = float(known @ known)
    return float(np.linalg.norm(error - (float(known @ error) / square if square else 0.0) * known))
