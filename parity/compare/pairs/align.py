"""Aligning one step's records of both sides, by their keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parity.compare.pairs.lone import lone_ports
from parity.records import Key, Record


@dataclass(frozen=True, slots=True)
class Pair:
    """Records of one place; None on the side that has none.

    Attributes:
        key: the reference's, where it has a record. reference, candidate: the records.
    """

    key: Key
    reference: Record | None
    candidate: Record | None

    @property
    def called(self) -> str:
        """The candidate's port, where it has another name than the reference's; else empty."""
        other = self.candidate is not None and self.candidate.key != self.key
        return self.candidate.key.port if other and self.candidate is not None else ""


def align(
    reference: Sequence[Record], candidate: Sequence[Record], *, lone: Callable[[str], bool] | None = None
) -> tuple[Pair, ...]:
    """Pairs in the reference's execution order; what only the candidate has follows the record before it.

    A record of None and no record at all are the same: implementations differ in whether they pass what is absent.

    Args:
        lone: of which modules inputs and outputs are paired too that each side names by itself
            (`parity.compare.pairs.lone`); None for none.
    """
    names = lone_ports(reference, candidate, lone) if lone is not None else {}
    theirs = {names.get(r.key, r.key): r for r in candidate}
    ours = {r.key for r in reference}
    pairs = [Pair(r.key, r, theirs.get(r.key)) for r in reference]
    position = {pair.key: i for i, pair in enumerate(pairs)}
    extra: dict[int, list[Pair]] = {}
    at = -1
    for key, record in theirs.items():
        if key in ours:
            at = position[key]
        else:
            extra.setdefault(at, []).append(Pair(key, None, record))
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
