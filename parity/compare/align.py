"""Aligning two sides' records by key: what pairs up, and what only one side has.

A pure planner over keys and records; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parity.golden.records import Key, Record


@dataclass(frozen=True, slots=True)
class Pair:
    """Records of the same key; None on the side that has none."""

    key: Key
    reference: Record | None
    candidate: Record | None


def align(reference: Sequence[Record], candidate: Sequence[Record]) -> tuple[Pair, ...]:
    """Pairs in the reference's execution order; what only the candidate has follows the record before it.

    A record of None and no record at all are the same: implementations differ in whether they pass what is absent.
    """
    theirs = {r.key: r for r in candidate}
    ours = {r.key for r in reference}
    pairs = [Pair(r.key, r, theirs.get(r.key)) for r in reference]
    position = {pair.key: i for i, pair in enumerate(pairs)}
    extra: dict[int, list[Pair]] = {}
    at = -1
    for record in candidate:
        if record.key in ours:
            at = position[record.key]
        else:
            extra.setdefault(at, []).append(Pair(record.key, None, record))
    merged = list(extra.get(-1, []))
    for i, pair in enumerate(pairs):
        merged += [pair, *extra.get(i, [])]
    return tuple(p for p in merged if not _absent(p))


def _absent(pair: Pair) -> bool:
    """Whether one side has nothing and the other None, or a scalar argument the other's code does not take."""
    if pair.reference is not None and pair.candidate is not None:
        return False
    one = pair.reference or pair.candidate
    return one is not None and one.kind in ("none", "scalar")


def common_tensors(pairs: Iterable[Pair]) -> int:
    """How many pairs can be compared at all."""
    return sum(
        1
        for p in pairs
        if p.reference is not None and p.candidate is not None and p.reference.kind == p.candidate.kind == "tensor"
    )
