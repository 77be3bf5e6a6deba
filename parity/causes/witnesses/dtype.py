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


@witness("dtype")
def dtype(evidence: Evidence) -> Iterator[Cause]:
    """One cause where the records say another dtype."""
    found = working_dtype(evidence.ours.records, evidence.theirs.records)
    if found is None:
        return
    ours, theirs = found
    text = f"most modules compute in {theirs}, the reference's in {ours}"
    detail = f"dtype of the module outputs: {ours} against {theirs}"
    yield Cause(text, "dtype", ours, theirs, math.nan, (Witness("measured", float(BITS[theirs]), detail),), fix=FIX)
