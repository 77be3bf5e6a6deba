"""The dtype map in one word: most of the candidate's modules have another working dtype."""

from __future__ import annotations

from collections.abc import Iterator

from parity.causes.evidence import Evidence
from parity.causes.gauges import working_dtype
from parity.compare.result import Cause, measured
from parity.settings import BITS

FIX = "run both in one dtype, or expect its rounding"


MOST = 65504.0
"""The largest number of float16, which values of a model reach; those of bfloat16 and float32 none does."""


def _overflow(evidence: Evidence) -> str:
    """Where float16 ends before the reference's values do, so that the candidate has Inf or NaN; empty for nowhere."""
    largest = {r.key: max(abs(r.moments.min), abs(r.moments.max)) for r in evidence.ours.records if r.moments}
    for r in evidence.theirs.records:
        broken = r.dtype == "float16" and r.moments is not None and r.moments.nan + r.moments.inf > 0
        if broken and largest.get(r.key, 0.0) > MOST:
            return f"; float16 holds at most {MOST:.0f}, the reference has {largest[r.key]:.0f} at {r.key.site}"
    return ""


def dtype(evidence: Evidence) -> Iterator[Cause]:
    """One cause where the records say another dtype."""
    found = working_dtype(evidence.ours.records, evidence.theirs.records)
    if found is None:
        return
    ours, theirs = found
    text = f"most modules compute in {theirs}, the reference's in {ours}"
    detail = f"dtype of the module outputs: {ours} against {theirs}{_overflow(evidence)}"
    yield measured(text, "dtype", ours, theirs, float(BITS[theirs]), detail=detail, fix=FIX)
