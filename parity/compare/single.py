"""Two records of one site, compared by themselves: values that are held, and whatever is not two sketches."""

from __future__ import annotations

import math
from dataclasses import replace

from parity.compare.births import L2_LIMIT, ONE_SIDED
from parity.compare.metrics import bin_ratios, comparable_shapes, distance, linf_ratio, measure, norm_ratio
from parity.compare.pairs.align import Pair
from parity.compare.result import NAN, Distance, SiteDiff
from parity.compare.unlike import (
    LAID_OUT,
    MASKS,
    PICTURES,
    REPEATED,
    UNPAIRED,
    left_to_reader,
    nothing,
    other_layout,
    other_rows,
    repeated,
    same_mask,
    unlike,
    what,
)
from parity.records import AFTER, LOOP, Floor, Record


def compared(pair: Pair, floor: Floor | None, *, strict: bool) -> SiteDiff:
    """One site, before it is known where a divergence starts.

    Args:
        floor: of the reference's record. strict: whether both sides are built alike.
    """
    a, b = pair.reference, pair.candidate
    if a is None or b is None:
        return SiteDiff(pair.key, Distance(NAN, NAN, math.inf), note=ONE_SIDED)
    if a.kind != b.kind and nothing(a) and nothing(b):
        return SiteDiff(pair.key, Distance(0.0, 0.0, 0.0))
    left = "" if strict else left_to_reader(a, b)
    if left:
        return SiteDiff(pair.key, Distance(NAN, NAN, NAN), verdict="inconclusive", note=left)
    if a.kind != b.kind:
        return SiteDiff(pair.key, Distance(NAN, NAN, math.inf), note=f"{what(a)} against {what(b)}")
    if a.kind != "tensor":
        # A NaN equals none, itself included.
        same = a.value == b.value or (a.value != a.value and b.value != b.value)
        note = "" if same else f"{a.value!r} against {b.value!r}"
        return SiteDiff(pair.key, Distance(0.0, 0.0, 0.0 if same else math.inf), note=note)
    return _tensor(a, b, floor, strict=strict)


def _tensor(a: Record, b: Record, floor: Floor | None, *, strict: bool) -> SiteDiff:
    found = measure(a, b)
    diff = SiteDiff(
        a.key,
        Distance(NAN, NAN, NAN),
        shapes=(a.shape, b.shape),
        dtypes=(a.dtype, b.dtype),
        nonfinite=(_nonfinite(a), _nonfinite(b)),
        frame=a.frame,
        rows=a.rows,
    )
    alike, counted = same_mask(a, b) if found is None or found.l2 != 0.0 else (False, False)
    if found is not None and not (alike or counted):
        return replace(
            diff,
            distance=distance(found, floor),
            cosine=found.cosine,
            max_abs=found.max_abs,
            linf_ratio=linf_ratio(found, floor),
            bins=bin_ratios(found, floor),
        )
    if alike:
        return replace(diff, distance=Distance(0.0, 0.0, 0.0))
    if counted:
        return replace(diff, verdict="inconclusive", note=MASKS)
    if a.key.is_apart:
        return diff  # it never decides, and what was not compared says nothing about the whole
    if comparable_shapes(a, b):
        return _moments_alone(diff, a, b, floor)
    note = f"shape {list(a.shape)} against {list(b.shape)}" if a.shape != b.shape else unlike(a, b)
    if note == PICTURES:
        return replace(diff, verdict="inconclusive", note=note)
    # Text has rows, which masks pair; what lies behind the loop has none.
    if not strict and a.key.module != LOOP and a.key.stage != AFTER:
        if repeated(a, b):
            return replace(diff, verdict="inconclusive", note=f"{note}, {REPEATED}")
        if other_rows(a.shape, b.shape):
            return replace(diff, verdict="inconclusive", note=f"{note}, {UNPAIRED}")
        if other_layout(a, b):
            least = norm_ratio(a, b, floor)
            if not least > L2_LIMIT:
                return replace(diff, verdict="inconclusive", note=f"{note}, {LAID_OUT}")
            return replace(diff, distance=Distance(NAN, NAN, least), note=f"{note}, and their norms differ")
    return replace(diff, distance=Distance(NAN, NAN, math.inf), note=note)


def _moments_alone(diff: SiteDiff, a: Record, b: Record, floor: Floor | None) -> SiteDiff:
    """Without sketches only a difference of norms is known, below which the distance cannot be."""
    if norm_ratio(a, b, floor) > L2_LIMIT:
        return replace(diff, distance=Distance(NAN, NAN, math.inf), note="their norms differ; no sketch is held")
    return replace(diff, verdict="inconclusive", note="only moments are held")


def _nonfinite(record: Record) -> int:
    return 0 if record.moments is None else record.moments.nan + record.moments.inf
