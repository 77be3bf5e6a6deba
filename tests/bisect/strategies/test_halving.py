"""Halving: the first bad item of a line in logarithmically many probes, around items that cannot be judged."""

from __future__ import annotations

import math

import pytest

from parity.bisect.strategies.halving import halving
from parity.bisect.strategy import Order, Outcome, solve


class Line:
    """Bad from item `first` on; those of `skipped` cannot be judged."""

    def __init__(self, first: int, skipped: range = range(0)) -> None:
        self.first, self.skipped, self.asked = first, skipped, list[int]()

    def __call__(self, items: tuple[int, ...]) -> Outcome:
        (item,) = items
        self.asked.append(item)
        return "unresolved" if item in self.skipped else "bad" if item >= self.first else "good"


@pytest.mark.parametrize("size", [1, 2, 3, 50, 64])
@pytest.mark.parametrize("believed", [False, True])
def test_wherever_it_begins(size: int, believed: bool) -> None:
    for first in range(believed, size):
        line = Line(first)
        assert solve(halving(Order(tuple(range(size)), believed)), line) == (first,)
        assert len(line.asked) <= math.ceil(math.log2(size)) + 2 * (not believed)


def test_where_the_last_is_not_bad_there_is_no_answer() -> None:
    line = Line(99)
    assert solve(halving(Order(tuple(range(50)))), line) == ()
    assert line.asked == [0, 49]


def test_items_that_cannot_be_judged_are_gone_round_or_left() -> None:
    assert solve(halving(Order(tuple(range(65)), True)), Line(41, range(30, 36))) == (41,)
    line = Line(33, range(30, 36))
    assert solve(halving(Order(tuple(range(65)), True)), line) == tuple(range(30, 37))
    assert len(set(line.asked)) == len(line.asked)
