"""A search whose questions are looked at on the way."""

from __future__ import annotations

from parity.bisect.strategy import Asking, T


def noted(asking: Asking[T], left: list[int]) -> Asking[T]:
    """The same search; how many items are left at each question goes to `left`."""
    question = next(asking)
    while True:
        left.append(question.left)
        outcome = yield question
        try:
            question = asking.send(outcome)
        except StopIteration as end:
            answer: tuple[T, ...] = end.value
            return answer
