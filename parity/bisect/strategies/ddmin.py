"""Delta debugging: the smallest part of a list that still shows what the whole of it shows.

Problem. A run that differs from another in twelve settings fails; which of them does it take? Trying one at a time
misses those that only act together, trying all subsets takes 2^12 runs of minutes each.

How. `ddmin` of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE Transactions on
Software Engineering 28(2), 2002: halves first; where neither half is bad, finer parts and what is left without each. An
unresolved set (the run cannot be judged) is never taken for the answer.

Cost. At most 2 log2(n) probes for one culprit, at most n^2 + 3n for the worst of oracles.
"""

from __future__ import annotations

from collections.abc import Iterator

from parity.bisect.strategy import Asking, Order, Question, T, register


@register("ddmin")
def ddmin(order: Order[T]) -> Asking[T]:
    """A subset that is bad and 1-minimal: without any single one of its items it is not bad.

    The smallest of all where the outcomes are monotone and have one answer; in general one of several. Presumes,
    without asking, that all items together are bad and that none at all are not.

    Raises:
        ValueError: an item stands twice.
    """
    items, parts = order.items, 2
    if len(set(items)) != len(items):
        raise ValueError("the items to search are not distinct")
    while len(items) > 1:
        for subset, left_of_it in _parts(items, parts):
            if (yield Question(subset, len(items))) == "bad":
                items, parts = subset, left_of_it
                break
        else:
            if parts == len(items):
                break
            parts = min(2 * parts, len(items))
    return items


def _parts(items: tuple[T, ...], parts: int) -> Iterator[tuple[tuple[T, ...], int]]:
    """Runs of nearly equal length, then what is left without each; and in how many parts to look on, if it is bad."""
    cuts = [(len(items) * i // parts, len(items) * (i + 1) // parts) for i in range(parts)]
    yield from ((items[start:end], 2) for start, end in cuts)
    yield from ((items[:start] + items[end:], max(parts - 1, 2)) for start, end in cuts)


@register("ddmin_unless_none")
def ddmin_unless_none(order: Order[T]) -> Asking[T]:
    """The same, but that none at all are not bad is asked first: where they are, no item is part of the answer."""
    if (yield Question((), len(order.items))) == "bad":
        return ()
    return (yield from ddmin(order))
