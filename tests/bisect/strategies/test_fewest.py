"""The fewest culprits are found, in a number of probes that grows with the logarithm of the items."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import pytest

from parity.bisect.strategies.fewest import fewest as strategy
from parity.bisect.strategy import Order, Outcome, solve
from tests.bisect.strategies.noted import noted


def fewest(items: Iterable[int], outcome_of: Callable[[tuple[int, ...]], Outcome]) -> tuple[int, ...]:
    return solve(strategy(Order(tuple(items))), outcome_of)


class Counted:
    """Good where all culprits are among the items; counts what it is asked."""

    def __init__(self, *culprits: int) -> None:
        self.culprits, self.asked = set(culprits), list[tuple[int, ...]]()

    def __call__(self, items: tuple[int, ...]) -> Outcome:
        assert list(items) == sorted(set(items))
        self.asked.append(items)
        return "good" if self.culprits <= set(items) else "bad"


@pytest.mark.parametrize("size", [1, 2, 3, 13, 64])
def test_each_single_culprit_in_logarithmically_many_probes(size: int) -> None:
    for culprit in range(size):
        good = Counted(culprit)
        assert fewest(range(size), good) == (culprit,)
        assert len(good.asked) <= math.ceil(math.log2(size)) + 2


@pytest.mark.parametrize("size", [13, 64])
def test_each_pair_in_logarithmically_many_probes(size: int) -> None:
    for pair in itertools.combinations(range(size), 2):
        good = Counted(*pair)
        assert fewest(range(size), good) == pair
        assert len(good.asked) <= 3 * math.ceil(math.log2(size)) + 4
        assert len(set(good.asked)) == len(good.asked)


def test_a_heap_costs_about_one_probe_an_item() -> None:
    good = Counted(*range(20, 60))
    assert fewest(range(64), good) == tuple(range(20, 60))
    assert len(good.asked) <= 40 + 20  # 80 without steps that begin at the end


def test_none_is_an_answer() -> None:
    assert fewest(range(8), Counted()) == ()


def test_what_is_left_becomes_less_until_it_is_the_answer() -> None:
    left: list[int] = []
    assert solve(noted(strategy(Order(tuple(range(64)))), left), Counted(41, 3)) == (3, 41)
    assert left == sorted(left, reverse=True)
    assert left[-1] >= 2


def test_what_is_returned_was_seen_to_be_good_even_where_more_items_make_it_worse() -> None:
    seen: dict[tuple[int, ...], Outcome] = {}

    def odd(items: tuple[int, ...]) -> Outcome:
        good = {2, 5} <= set(items) and (4 not in items or 3 in items)
        return seen.setdefault(items, "good" if good else "bad")

    found = fewest(range(8), odd)
    assert seen[found] == "good"
