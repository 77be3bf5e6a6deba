"""Two records of one site, compared by themselves: values that are held, and whatever is not two sketches.

Contract and inside. What the loop computes, what it gives the model and what comes after it are the contract: there two
records line up, or they differ. Inside a port, which is built otherwise, what does not line up (another shape, other
rows, a number, None on one side) is not compared: neither a difference nor an agreement. A mask that one side lacks
stays a difference. The arguments of a port's own model are its own as far as their shapes go: a timestep for each
token, text without its padding.
"""

from __future__ import annotations

import math
from dataclasses import replace

from parity.compare.births import L2_LIMIT, ONE_SIDED
from parity.compare.metrics import bin_ratios, comparable_shapes, distance, is_contract, linf_ratio, measure, norm_ratio
from parity.compare.pairs.align import Pair
from parity.compare.result import NAN, UNKNOWN, Distance, SiteDiff
from parity.compare.unlike import MASKS, PICTURES, is_mask, is_zero, nothing, same_mask, unlike, what
from parity.records import Floor, Record

_UNLIKE = Distance(NAN, NAN, math.inf)


def compared(pair: Pair, floor: Floor | None, *, own: bool) -> SiteDiff:
    """One site, before it is known where a divergence starts.

    Args:
        floor: of the reference's record. own: whether the module is a port's own.
    """
    a, b = pair.reference, pair.candidate
    if a is None or b is None:
        return SiteDiff(pair.key, _UNLIKE, note=ONE_SIDED)
    if a.kind == b.kind == "tensor":
        return _tensors(a, b, floor, own=own)
    equal = a.kind == b.kind and (a.value == b.value or (a.value != a.value and b.value != b.value))  # NaN is NaN
    if equal or (nothing(a) and nothing(b)):
        return SiteDiff(pair.key, Distance(0.0, 0.0, 0.0))
    inside = own and (_is_zero_for_none(a, b) if pair.key.module == "" else not (is_mask(a) or is_mask(b)))
    return _unlike(SiteDiff(pair.key, UNKNOWN, note=f"{what(a)} against {what(b)}"), inside)


def _unlike(diff: SiteDiff, inside: bool) -> SiteDiff:
    """A site that does not line up, by its place."""
    return replace(diff, verdict="not compared") if inside else replace(diff, distance=_UNLIKE)


def _is_zero_for_none(a: Record, b: Record) -> bool:
    """Whether the model is given zeros on one side and nothing on the other, as for a condition that a prompt lacks."""
    return {a.kind, b.kind} == {"none", "tensor"} and is_zero(a if a.kind == "tensor" else b)


def _tensors(a: Record, b: Record, floor: Floor | None, *, own: bool) -> SiteDiff:
    found = measure(a, b)
    diff = SiteDiff(
        a.key,
        UNKNOWN,
        shapes=(a.shape, b.shape),
        dtypes=(a.dtype, b.dtype),
        nonfinite=(_nonfinite(a), _nonfinite(b)),
        frame=a.frame,
        rows=a.rows,
    )
    equal, as_many = same_mask(a, b) if found is None or found.l2 != 0.0 else (False, False)
    if equal:
        return replace(diff, distance=Distance(0.0, 0.0, 0.0))
    if as_many:
        return replace(diff, verdict="not compared", note=MASKS)
    if found is not None:
        return replace(
            diff,
            distance=distance(found, floor),
            cosine=found.cosine,
            max_abs=found.max_abs,
            linf_ratio=linf_ratio(found, floor),
            bins=bin_ratios(found, floor),
        )
    if a.key.is_apart:
        return diff  # it never decides, and what was not compared says nothing about the whole
    if comparable_shapes(a, b):  # without sketches: the distance is no less than that of the norms
        far = norm_ratio(a, b, floor) > L2_LIMIT
        note = "their norms differ; no sketch is held" if far else "only moments are held"
        return _unlike(replace(diff, note=note), not far)
    note = unlike(a, b)
    return _unlike(replace(diff, note=note), note == PICTURES or (own and not is_contract(a.key)))


def _nonfinite(record: Record) -> int:
    return 0 if record.moments is None else record.moments.nan + record.moments.inf
