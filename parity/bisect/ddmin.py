"""Delta debugging: the smallest part of a list that still shows what the whole of it shows.

Problem. A run that differs from another in twelve settings fails; which of them does it take? Trying one at a time
misses those that only act together, trying all subsets takes 2^12 runs of minutes each.

How. `ddmin` of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE Transactions on
Software Engineering 28(2), 2002: halves first; where neither half is bad, finer parts and what is left without each.
The oracle may say `unresolved` (the run cannot be judged); such a set is never taken for the answer.

The other direction, "the smallest set of modules whose replacement restores parity", is the same search with the
oracle's good and bad exchanged: `ddmin(modules, inverted(oracle))`.

Cost. At most 2 log2(n) probes for one culprit, at most n^2 + 3n for the worst of oracles. No set is probed twice. The
search is deterministic: where the oracle answers from a record of earlier probes, it takes up where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal, TypeVar

Outcome = Literal["good", "bad", "unresolved"]
T = TypeVar("T", bound=Hashable)
Oracle = Callable[[tuple[T, ...]], Outcome]
"""Whether a subset, its items in their original order, shows what is looked for (bad), or not, or cannot be judged."""

_OTHER: dict[Outcome, Outcome] = {"good": "bad", "bad": "good", "unresolved": "unresolved"}


def inverted(oracle: Oracle[T]) -> Oracle[T]:
    """The oracle that calls bad what `oracle` calls good, and the reverse."""
    return lambda subset: _OTHER[oracle(subset)]


def _nobody(held: tuple[T, ...]) -> None:
    del held


def ddmin(items: Sequence[T], oracle: Oracle[T], narrowed: Callable[[tuple[T, ...]], None] = _nobody) -> tuple[T, ...]:
    """A subset that is bad and 1-minimal: without any single one of its items it is not bad.

    The smallest of all where the oracle is monotone and has one answer; in general one of several. Presumes, without
    asking the oracle, that all items together are bad and that none at all are not.

    Args:
        items: distinct. narrowed: told the items that are left, each time they become fewer.

    Raises:
        ValueError: an item stands twice.
    """
    held, parts = tuple(items), 2
    if len(set(held)) != len(held):
        raise ValueError("the items to search are not distinct")
    known: dict[tuple[T, ...], Outcome] = {}

    def bad(subset: tuple[T, ...]) -> bool:
        if subset not in known:
            known[subset] = oracle(subset)
        return known[subset] == "bad"

    while len(held) > 1:
        subset = next(filter(bad, _subsets(held, parts)), None)
        rest = next(filter(bad, _complements(held, parts)), None) if subset is None else None
        if subset is not None:
            held, parts = subset, 2
        elif rest is not None:
            held, parts = rest, max(parts - 1, 2)
        elif parts < len(held):
            parts = min(2 * parts, len(held))
            continue
        else:
            break
        narrowed(held)
    return held


def _cuts(size: int, parts: int) -> Iterator[tuple[int, int]]:
    """Start and end of `parts` runs of nearly equal length; none is empty where `parts <= size`."""
    for i in range(parts):
        yield size * i // parts, size * (i + 1) // parts


def _subsets(held: tuple[T, ...], parts: int) -> Iterator[tuple[T, ...]]:
    return (held[start:end] for start, end in _cuts(len(held), parts))


def _complements(held: tuple[T, ...], parts: int) -> Iterator[tuple[T, ...]]:
    return (held[:start] + held[end:] for start, end in _cuts(len(held), parts))
