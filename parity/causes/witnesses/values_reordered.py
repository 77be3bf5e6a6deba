"""The same values in another order away from the origin, of which `values_at_origin` speaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parity.causes.evidence import Evidence
from parity.causes.gauges import apart, measured, reordering
from parity.causes.witness import witness
from parity.compare.result import Cause
from parity.compare.unlike import other_layout
from parity.records import PORT, Key, Record


@witness("values_reordered")
def values_reordered(evidence: Evidence) -> Iterator[Cause]:
    """The first site that holds the reference's values in another order."""
    theirs = {r.key: r for r in evidence.theirs.records}
    pairs = [(r, theirs[r.key]) for r in evidence.ours.records if r.key in theirs and not r.key.is_apart]
    tensors = [(a, b) for a, b in pairs if a.kind == b.kind == "tensor"]
    if evidence.declared.backend == PORT:  # heads before tokens inside an attention of its own is no fault
        tensors = [(a, b) for a, b in tensors if not other_layout(a, b)]
    found = list(_reordered(tensors))
    # What begins as another order is known already; what follows from it adds nothing.
    if not found or found[0] == evidence.origin.key:
        return
    first = found[0]
    branches = ", ".join(dict.fromkeys(key.branch for key in found if key.branch)) or "no branch of its own"
    sites = len({key.site for key in found})
    sentence = f"{first.site} holds the same values in another order, although the divergence is not introduced there"
    detail = f"at {sites} sites, branches {branches}, step {first.step}: minimum, maximum, mean and norm agree"
    yield measured(sentence, float(sites), detail, "undo the layout or token order before it")


def _reordered(pairs: Sequence[tuple[Record, Record]]) -> Iterator[Key]:
    """The sites that hold the same values in another order, and are farther apart than anything before them.

    What a norm has made of rows that differ has their moments too: query and key of a wrong prompt, of which the other
    rows decide minimum and maximum. That is no farther apart than what came in; rows in another place are.
    """
    before: dict[str, float] = {}
    for ours, theirs in pairs:
        far = apart(ours, theirs) or 0.0
        came = max(before.get(ours.key.branch, 0.0), before.get("", 0.0))
        if reordering(ours, theirs) is not None and far > came:
            yield ours.key
        before[ours.key.branch] = max(before.get(ours.key.branch, 0.0), far)
