"""The fewest items that make something good, where more of them never makes it worse: halving, one culprit at a time.

Problem. Delta debugging (`parity.bisect.ddmin`) presumes nothing, and pays for it where two culprits lie apart: each
look drops a quarter of the items at most. Replacing a module by what is right cannot bring a fault back, so an order
can be searched: take items from the front until it is good, and the last one taken is a culprit.

How. As QuickXplain (Junker, AAAI 2004) and linear-time delta debugging do it, the shortest good beginning is found by
halving; its last item is needed, is kept, and those before it are searched again beside it. From the second culprit
on the search begins near the end with steps that double, since culprits stand in heaps (the same fault in every
block). What is returned was seen to be good, whatever the oracle is; that each item of it is needed holds where more
items never make it worse.

Cost. ceil(log2 n) + 2 probes for one culprit (of 64: 8), at most about 2 log2 n for each one more (two of 64: 20 at
most, 16 on average, where delta debugging takes 41 and 32), one where it stands next to the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def _nobody(left: int) -> None:
    del left


def fewest(
    items: Sequence[T], good: Callable[[tuple[T, ...]], bool], narrowed: Callable[[int], None] = _nobody
) -> tuple[T, ...]:
    """The fewest items, in their order, that are good together.

    Presumes, without asking, that all of them are.

    Args:
        items: in the order in which they act. good: whether some of them, in that order, are.
        narrowed: told how many items are left, culprits included, each time they become fewer.
    """
    rest, found = tuple(items), tuple[T, ...]()
    known: dict[tuple[T, ...], bool] = {}

    def enough_with(some: tuple[T, ...]) -> bool:
        if some not in known:
            known[some] = good(some)
        return known[some]

    while True:
        bad, enough = -1, len(rest)  # rest[:bad] with what was found is not good, rest[:enough] is
        if len(found) & (len(found) - 1) == 0:  # now and then, not at each of a heap
            if enough_with(found):
                return found
            bad = 0
        stride = 1 if found else 0
        while bad < enough - 1:
            at = max(enough - stride, bad + 1) if stride else (bad + enough) // 2
            if enough_with(rest[:at] + found):
                enough, stride = at, 2 * stride
            else:
                bad, stride = at, 0
            narrowed(enough + len(found))
        if enough == 0:
            return found
        found = (rest[enough - 1], *found)
        rest = rest[: enough - 1]
        narrowed(len(rest) + len(found))
