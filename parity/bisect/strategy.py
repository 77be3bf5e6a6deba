"""How a search proceeds: what to try next, from the outcomes so far, and what they add up to.

A strategy is a generator: it yields a `Question`, is sent the outcome, and returns the answer. So it needs neither a
state file nor a model, is tested in microseconds, and takes up where it stopped when it is sent recorded outcomes.

    @register("one_by_one")
    def one_by_one(order: Order[T]) -> Asking[T]:
        for item in order.items:
            if (yield Question((item,), left=len(order.items))) == "bad":
                return (item,)
        return ()

A file in `parity/bisect/strategies/` that registers one is all that a new one takes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Generator, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from parity.errors import UsageError

Outcome = Literal["good", "bad", "unresolved"]
OUTCOMES: tuple[Outcome, ...] = ("good", "bad", "unresolved")
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What a strategy wants to know next.

    Attributes:
        items: tried together, in their order. left: how many items may still belong to the answer.
    """

    items: tuple[T, ...]
    left: int


Asking = Generator[Question[T], Outcome, tuple[T, ...]]
"""A search under way: yields questions, is sent outcomes, returns the answer."""


@dataclass(frozen=True)
class Order(Generic[T]):
    """What is searched, and which of it comes first.

    Attributes:
        items: distinct, in their order. believed: the first is good and the last bad, without being tried.
    """

    items: tuple[T, ...]
    believed: bool = False

    def suspects(self, goods: Collection[T], bads: Collection[T]) -> tuple[T, ...]:
        """The items that may be the first bad one: a bad one last, before it the one whose test tells most first."""
        after = max(map(self.items.index, goods))
        last = min(map(self.items.index, bads))
        between = sorted(range(after + 1, last), key=lambda i: abs(2 * i - after - last))
        return tuple(self.items[i] for i in (*between, last))


class Strategy(Protocol):
    """A way to search."""

    def __call__(self, order: Order[T], /) -> Asking[T]: ...


_REGISTERED: dict[str, Strategy] = {}


def register(name: str) -> Callable[[Strategy], Strategy]:
    """Register a strategy under a name.

    Raises:
        ValueError: there is another one of that name.
    """

    def keep(strategy: Strategy) -> Strategy:
        if _REGISTERED.setdefault(name, strategy) is not strategy:
            raise ValueError(f"two strategies are registered as '{name}'")
        return strategy

    return keep


def strategies() -> Mapping[str, Strategy]:
    """All strategies by name."""
    from parity.bisect import strategies as folder

    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    return _REGISTERED


def strategy(name: str) -> Strategy:
    """The strategy of a name.

    Raises:
        UsageError: there is none.
    """
    known = strategies()
    if name not in known:
        raise UsageError(f"there is no search strategy '{name}'; there are {', '.join(sorted(known))}")
    return known[name]


def solve(asking: Asking[T], outcome_of: Callable[[tuple[T, ...]], Outcome]) -> tuple[T, ...]:
    """The answer of a search whose outcomes a function knows; it is not called twice for the same items."""
    known: dict[tuple[T, ...], Outcome] = {}
    try:
        question = next(asking)
        while True:
            if question.items not in known:
                known[question.items] = outcome_of(question.items)
            question = asking.send(known[question.items])
    except StopIteration as end:
        answer: tuple[T, ...] = end.value
        return answer
