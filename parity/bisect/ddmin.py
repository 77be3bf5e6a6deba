"""Delta debugging: the smallest part of a list that still fails as the whole of it does.

`ddmin` of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE Transactions on Software
Engineering 28(2), 2002: first halves, then finer parts and what is left without each. It also finds items that
fail only together. At most 2 log2(n) calls for one culprit, at most n^2 + 3n in the worst case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def ddmin(items: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """A subset that fails and is 1-minimal: without any single one of its items it does not fail.

    Args:
        items: distinct. fails: presumed for all items together, and presumed not for none; called once for a subset.
    """
    asked, parts = functools.cache(fails), 2
    while len(items) > 1:
        for subset, parts_of_it in _parts(items, parts):
            if asked(subset):
                items, parts = subset, parts_of_it
                break
        else:
            if parts == len(items):
                break
            parts = min(2 * parts, len(items))
    return items


def _parts(items: tuple[T, ...], parts: int) -> Iterator[tuple[tuple[T, ...], int]]:
    """Runs of nearly equal length, then what is left without each; and in how many parts to cut it if it fails."""
    cuts = [(len(items) * i // parts, len(items) * (i + 1) // parts) for i in range(parts)]
    yield from ((items[start:end], 2) for start, end in cuts)
    yield from ((items[:start] + items[end:], max(parts - 1, 2)) for start, end in cuts)
