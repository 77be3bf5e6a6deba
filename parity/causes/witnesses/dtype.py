"""The dtype map in one word: most of the candidate's modules have another working dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator

from parity.causes.evidence import Evidence
from parity.causes.gauges import working_dtype
from parity.causes.witness import witness
from parity.compare.result import Cause, Witness
from parity.settings import BITS

FIX = "run both in one dtype, or expect its rounding"


MOST = {"float16": 65504.0}
"""The largest number of a dtype that values of a model reach."""


def _overflow(evidence: Evidence) -> str:
    """Where the candidate has Inf or NaN because its dtype ends before the reference's values do; empty for nowhere."""
    ours = {r.key: r.moments for r in evidence.ours.records if r.moments is not None}
    for r in evidence.theirs.records:
        most, own = MOST.get(r.dtype, math.inf), ours.get(r.key)
        if r.moments is None or own is None or not r.moments.nan + r.moments.inf:
            continue
        largest = max(abs(own.min), abs(own.max))
        if largest > most:
            return f"; {r.dtype} holds at most {most:.0f}, the reference has {largest:.0f} at {r.key.site}"
    return ""


@witness("dtype")
def dtype(evidence: Evidence) -> Iterator[Cause]:
    """One cause where the records say another dtype."""
    found = working_dtype(evidence.ours.records, evidence.theirs.records)
    if found is None:
        return
    ours, theirs = found
    text = f"most modules compute in {theirs}, the reference's in {ours}"
    detail = f"dtype of the module outputs: {ours} against {theirs}{_overflow(evidence)}"
    yield Cause(text, "dtype", ours, theirs, math.nan, (Witness("measured", float(BITS[theirs]), detail),), fix=FIX)
