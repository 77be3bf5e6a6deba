"""Delta debugging: minimal answers whatever the oracle, few questions for one culprit, none asked twice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.bisect.strategies.ddmin import ddmin as strategy
from parity.bisect.strategies.ddmin import ddmin_unless_none
from parity.bisect.strategy import Order, Outcome, solve
from tests.bisect.strategies.noted import noted

Subset = tuple[int, ...]
sizes = st.integers(1, 100)


def ddmin(items: Sequence[int], outcome_of: Callable[[Subset], Outcome]) -> Subset:
    return solve(strategy(Order(tuple(items))), outcome_of)


class Asked:
    """An oracle that keeps what it was asked and refuses to be asked twice."""

    def __init__(self, answer: Callable[[set[int]], Outcome]) -> None:
        self.answer, self.subsets = answer, set[Subset]()

    def __call__(self, subset: Subset) -> Outcome:
        assert subset not in self.subsets
        assert list(subset) == sorted(set(subset)), "items stay in their order"
        assert subset, "that nothing at all is not bad is presumed"
        self.subsets.add(subset)
        return self.answer(set(subset))


def needs(*culprits: int) -> Asked:
    return Asked(lambda held: "bad" if set(culprits) <= held else "good")


@given(sizes, st.data())
def test_one_culprit_takes_logarithmically_many_probes(size: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, size - 1))
    oracle = needs(culprit)
    assert ddmin(range(size), oracle) == (culprit,)
    assert len(oracle.subsets) <= 2 * math.ceil(math.log2(size))


@given(st.integers(2, 60), st.data())
def test_culprits_that_act_together_are_found_together(size: int, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=4))
    oracle = needs(*culprits)
    assert ddmin(range(size), oracle) == tuple(sorted(culprits))
    assert len(oracle.subsets) <= size**2 + 3 * size


@given(st.integers(2, 60), st.data())
def test_either_of_two_culprits_is_an_answer(size: int, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=2))
    (found,) = ddmin(range(size), Asked(lambda held: "bad" if culprits & held else "good"))
    assert found in culprits


@given(st.integers(1, 14), st.integers())
@settings(max_examples=300)
def test_any_oracle_whatever_gives_a_bad_set_that_no_single_item_can_leave(size: int, seed: int) -> None:
    """Neither monotone nor always resolved: each subset has an answer by lot."""

    def by_lot(held: set[int]) -> Outcome:
        if len(held) in (0, size):
            return "bad" if held else "good"
        return random.Random(f"{seed} {sorted(held)}").choice(["good", "bad", "unresolved", "good"])

    oracle = Asked(by_lot)
    found = ddmin(range(size), oracle)
    assert by_lot(set(found)) == "bad"
    for item in found:
        assert by_lot(set(found) - {item}) != "bad"
    assert len(oracle.subsets) <= size**2 + 3 * size


@given(st.integers(2, 40), st.data())
def test_a_culprit_that_is_judged_only_beside_its_companion(size: int, data: st.DataObject) -> None:
    culprit, companion = data.draw(st.permutations(range(size)))[:2]
    one = {culprit, companion}

    def answer(held: set[int]) -> Outcome:
        return "bad" if one <= held else "unresolved" if one & held else "good"

    assert ddmin(range(size), Asked(answer)) == tuple(sorted(one))


def test_what_is_left_becomes_less_until_it_is_the_answer() -> None:
    left: list[int] = []
    answer = solve(noted(strategy(Order(tuple(range(20)))), left), needs(3, 17))
    assert answer == (3, 17)
    assert left == sorted(left, reverse=True)
    assert (left[0], left[-1]) == (20, 2)


def test_where_none_at_all_are_bad_nothing_is_to_blame() -> None:
    assert solve(ddmin_unless_none(Order((1, 2, 3))), lambda items: "bad") == ()
    assert solve(ddmin_unless_none(Order((1, 2, 3))), lambda items: "bad" if 2 in items else "good") == (2,)


@pytest.mark.parametrize("items", [(), (7,)])
def test_what_cannot_be_smaller_is_not_asked_about(items: Subset) -> None:
    assert ddmin(items, needs(7)) == items


def test_an_item_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="distinct"):
        ddmin((1, 2, 1), needs(1))
