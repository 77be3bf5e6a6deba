"""Halving: the first bad item of a line in logarithmically many probes, around items that cannot be judged."""

from __future__ import annotations

import math

import pytest

from parity.bisect.strategies.halving import halving
from parity.bisect.strategies.in_turn import each, until_bad
from parity.bisect.strategy import Order, Outcome, Question, solve


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


def test_in_turn() -> None:
    until, every = Line(3), Line(3)
    assert (solve(until_bad(Order(tuple(range(9)))), until), until.asked) == ((3,), [0, 1, 2, 3])
    assert (solve(each(Order(tuple(range(9)))), every), len(every.asked)) == ((3,), 9)
    assert (solve(until_bad(Order((0,))), Line(9)), solve(each(Order((0,))), Line(9))) == ((), ())
    assert next(until_bad(Order((4, 5)))) == Question((4,), 2)
