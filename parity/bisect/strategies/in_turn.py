"""Items one after another, for what no halving can presume; cost: a probe an item."""

from __future__ import annotations

from parity.bisect.strategy import Asking, Order, Question, T, register


@register("until_bad")
def until_bad(order: Order[T]) -> Asking[T]:
    """The first bad item, and no look beyond it; none where all are good."""
    for done, item in enumerate(order.items):
        if (yield Question((item,), len(order.items) - done)) == "bad":
            return (item,)
    return ()


@register("each")
def each(order: Order[T]) -> Asking[T]:
    """The first bad item, after every one was tried; none where all are good."""
    first = tuple[T, ...]()
    for done, item in enumerate(order.items):
        outcome = yield Question((item,), len(order.items) - done)
        if outcome == "bad" and not first:
            first = (item,)
    return first
