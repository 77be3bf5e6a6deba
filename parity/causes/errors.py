"""Errors in sketch space: vectors that can be set against one another. numpy only.

Sketches are linear, so the sketch of an error is the difference of two sketches, and inner products between errors are
those between their sketches (`parity.sketch`). An error vector holds the errors of many sites of one step, each
relative to the norm of what the reference has there, so that no site counts for its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parity.compare.metrics import comparable_shapes
from parity.compare.unlike import read_key
from parity.records import LOOP, Key, Record, StepRecords
from parity.sketch import TOTAL, Geometry
from parity.sketch import norm as norm_of

BROKEN = 1e6
"""The relative error that a value with NaN or Inf counts as: more than any other, and a number."""

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


def _counters(record: Record) -> int:
    assert record.sketch is not None
    return record.sketch.size if Geometry(*record.frame).exact else TOTAL


def _error(a: Record, b: Record | None) -> Vector:
    assert a.sketch is not None
    g = Geometry(*a.frame)
    counters = _counters(a)
    scale = norm_of(a.sketch, g)
    if b is None or b.sketch is None or not comparable_shapes(a, b) or not math.isfinite(scale) or scale == 0.0:
        return np.zeros(counters)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = (b.sketch[:counters].astype(np.float64) - a.sketch[:counters].astype(np.float64)) / scale
    return apart if np.isfinite(apart).all() else np.full(counters, BROKEN / math.sqrt(counters))


def noise_norm(reference: StepRecords, keys: Sequence[Key]) -> float:
    """The norm that rounding alone gives an error vector of these sites: their floors, relative, added in squares."""
    scales = {r.key: norm_of(r.sketch, Geometry(*r.frame)) for r in reference.records if r.sketch is not None}
    relative = [reference.floors[k].l2 / scales[k] for k in keys if k in reference.floors and scales.get(k)]
    return math.sqrt(sum(x * x for x in relative))


def norm(x: Vector) -> float:
    """L2."""
    return float(np.linalg.norm(x))
