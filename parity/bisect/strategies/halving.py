"""The first bad item of an order, where from it on every item is bad: halving.

How. A good item clears all that comes before it, a bad one blames itself or something before it; of what is left the
item that tells most is tried (`Order.suspects`: in a line the middle one, in a graph git's choice), where that one
cannot be judged the next best.

Cost. ceil(log2 n) probes of n items in a line, about as many in a graph; more where items cannot be judged. Where the
ends are not believed, two more.
"""

from __future__ import annotations

from parity.bisect.strategy import Asking, Order, Question, T, register


@register("halving")
def halving(order: Order[T]) -> Asking[T]:
    """The first bad item; several where only items that cannot be judged are left; none where the last is not bad."""
    first, last = order.items[0], order.items[-1]
    if not order.believed:
        if (yield Question((first,), len(order.items))) == "bad":
            return (first,)
        if (yield Question((last,), len(order.items) - 1)) != "bad":
            return ()
    outcomes = {"good": [first], "bad": [last], "unresolved": list[T]()}
    while True:
        suspects = order.suspects(outcomes["good"], outcomes["bad"])
        item = next((item for item in suspects[:-1] if item not in outcomes["unresolved"]), None)
        if item is None:
            return tuple(sorted(suspects, key=order.items.index))
        outcome = yield Question((item,), len(suspects))
        outcomes[outcome].append(item)
