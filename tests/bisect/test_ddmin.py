"""Delta debugging: minimal answers whatever the oracle, few questions for one culprit, none asked twice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from parity.bisect.settings import ddmin

sizes = st.integers(1, 60)


class Asked:
    """An oracle that keeps what it was asked and refuses to be asked twice."""

    def __init__(self, fails: Callable[[set[int]], bool]) -> None:
        self.fails, self.subsets = fails, set[tuple[int, ...]]()

    def __call__(self, subset: tuple[int, ...]) -> bool:
        assert subset not in self.subsets
        assert list(subset) == sorted(set(subset)), "items stay in their order"
        assert subset, "that nothing at all does not fail is presumed"
        self.subsets.add(subset)
        return self.fails(set(subset))


@given(sizes, st.data())
def test_culprits_that_act_together_are_found_together(size: int, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=4))
    oracle = Asked(lambda held: culprits <= held)
    assert ddmin(tuple(range(size)), oracle) == tuple(sorted(culprits))
    most = 2 * math.ceil(math.log2(size)) if len(culprits) == 1 else size**2 + 3 * size
    assert len(oracle.subsets) <= most


@given(st.integers(1, 14), st.integers())
@settings(max_examples=300)
def test_any_oracle_whatever_gives_a_failing_set_that_no_single_item_can_leave(size: int, seed: int) -> None:
    """Not monotone: each subset has an answer by lot."""

    def by_lot(held: set[int]) -> bool:
        if len(held) in (0, size):
            return bool(held)
        return random.Random(f"{seed} {sorted(held)}").random() < 0.25

    oracle = Asked(by_lot)
    found = ddmin(tuple(range(size)), oracle)
    assert by_lot(set(found))
    assert not any(by_lot(set(found) - {item}) for item in found)
    assert len(oracle.subsets) <= size**2 + 3 * size


@pytest.mark.parametrize("items", [(), (7,)])
def test_what_cannot_be_smaller_is_not_asked_about(items: tuple[int, ...]) -> None:
    assert ddmin(items, Asked(lambda _: True)) == items
