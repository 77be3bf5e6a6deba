"""Local errors beside the propagated ones, and the births they decide.

Where a module was run on the reference's own inputs, its local error against its local floor says whether its own
arithmetic differs: no other evidence is needed for a birth, and without it there is none in that module. numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parity.compare.excuses import Excuse, excused
from parity.compare.judge import BIN_LIMIT, L2_LIMIT
from parity.compare.metrics import bin_ratios, distance, measure
from parity.compare.result import NAN, Distance, SiteDiff
from parity.golden.records import Key, Record, StepRecords


@dataclass(frozen=True, slots=True)
class Local:
    """The local error at one output.

    Attributes:
        distance: of the candidate's output from the truth's, fed the same inputs. beyond: whether above its floor in
            L2 or in a row bin. note: what cannot be measured, such as another shape.
    """

    distance: Distance
    beyond: bool
    note: str = ""


def local_errors(truth: StepRecords, candidate: Sequence[Record]) -> dict[Key, Local]:
    """The local errors of one module call; padded rows never decide."""
    theirs = {r.key: r for r in candidate}
    found: dict[Key, Local] = {}
    for record in truth.records:
        if record.kind != "tensor" or record.key.is_padding:
            continue
        other = theirs.get(record.key)
        measured = None if other is None or other.kind != "tensor" else measure(record, other)
        if measured is None:
            found[record.key] = Local(Distance(NAN, NAN, float("inf")), True, "it cannot be compared")
            continue
        floor = truth.floors.get(record.key)
        far = distance(measured, floor)
        bins = bin_ratios(measured, floor)
        inside = far.ratio <= L2_LIMIT and not any(b > BIN_LIMIT for b in bins)
        found[record.key] = Local(far, not inside)
    return found


def with_local(
    sites: Sequence[SiteDiff], found: Mapping[Key, Local], excuses: Sequence[Excuse] = ()
) -> tuple[SiteDiff, ...]:
    """The judged sites of a step with their local errors, which decide where a module's own arithmetic differs."""
    return tuple(_site(d, found[d.key], excuses) if d.key in found else d for d in sites)


def _site(d: SiteDiff, local: Local, excuses: Sequence[Excuse]) -> SiteDiff:
    d = replace(d, local=local.distance, note=d.note or local.note)
    if local.beyond:
        return replace(d, birth="module", verdict="harmless" if excused(d.key, excuses) else "fail")
    # Its own arithmetic agrees: what differs in the free run came in with its inputs.
    return replace(d, birth="amplified") if d.birth == "module" else d
