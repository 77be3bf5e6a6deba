"""The fewest items that make something good, where more of them never makes it worse: halving, one culprit at a time.

Problem. Delta debugging (`ddmin`) presumes nothing, and pays for it where two culprits lie apart: each look drops a
quarter of the items at most. Replacing a module by what is right cannot bring a fault back, so an order can be
searched: take items from the front until it is good, and the last one taken is a culprit.

How. As QuickXplain (Junker, AAAI 2004) and linear-time delta debugging do it, the shortest good beginning is found by
halving; its last item is needed, is kept, and those before it are searched again beside it. From the second culprit
on the search begins near the end with steps that double, since culprits stand in heaps (the same fault in every
block). What is returned was seen to be good, whatever the outcomes are; that each item of it is needed holds where more
items never make it worse.

Cost. ceil(log2 n) + 2 probes for one culprit (of 64: 8), at most about 2 log2 n for each one more (two of 64: 20 at
most, 16 on average, where delta debugging takes 41 and 32), one where it stands next to the one before.
"""

from __future__ import annotations

from parity.bisect.strategy import Asking, Order, Question, T, register


@register("fewest")
def fewest(order: Order[T]) -> Asking[T]:
    """The fewest items, in the order in which they act, that are good together; presumes that all of them are."""
    rest, culprits = order.items, tuple[T, ...]()
    while True:
        bad, enough = -1, len(rest)  # rest[:bad] with the culprits is not good, rest[:enough] is
        if len(culprits) & (len(culprits) - 1) == 0:  # now and then, not at each of a heap
            if (yield Question(culprits, enough + len(culprits))) == "good":
                return culprits
            bad = 0
        stride = 1 if culprits else 0
        while bad < enough - 1:
            at = max(enough - stride, bad + 1) if stride else (bad + enough) // 2
            if (yield Question(rest[:at] + culprits, enough + len(culprits))) == "good":
                enough, stride = at, 2 * stride
            else:
                bad, stride = at, 0
        if enough == 0:
            return culprits
        culprits = (rest[enough - 1], *culprits)
        rest = rest[: enough - 1]
