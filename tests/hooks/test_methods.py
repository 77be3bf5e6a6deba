"""Methods that are watched: calls are seen of one object alone, and nothing stays."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest

from parity.hooks.methods import watched


class Scheduler:
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def step(self, by: int) -> int:
        self.count += by
        return self.count


class Other(Scheduler):
    pass


def watch(owner: Any, seen: list[Any]) -> contextlib.AbstractContextManager[None]:
    return watched(owner, "step", lambda args, kwargs: args, lambda held, args, kwargs, result: seen.append(result))


@pytest.mark.parametrize("kind", [Scheduler, Other])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_not_seen_and_steps_by_itself(kind: type[Scheduler], copied: Any) -> None:
    owner, seen = kind(), list[int]()
    with watch(owner, seen):
        other = copied(owner)
        assert (other.step(5), owner.step(1)) == (5, 1)
    owner.step(1)
    assert (seen, owner.count, other.count) == ([1], 2, 5)
    assert ("step" in vars(Other), "step" in vars(owner)) == (False, False)


@pytest.mark.parametrize("first", [0, 1])
def test_two_of_a_class_end_in_any_order(first: int) -> None:
    own, owners, seen = Scheduler.step, (Scheduler(), Scheduler(10)), ([], [])
    stacks = [contextlib.ExitStack(), contextlib.ExitStack()]
    for stack, owner, held in zip(stacks, owners, seen, strict=True):
        stack.enter_context(watch(owner, held))
    [owner.step(1) for owner in owners]
    stacks[first].close()
    [owner.step(1) for owner in owners]
    stacks[1 - first].close()
    expected = [[1, 2], [11, 12]]
    expected[first].pop()
    assert list(seen) == expected
    assert Scheduler.step is own


def test_one_that_is_watched_twice_is_seen_by_both() -> None:
    owner, seen = Scheduler(), ([], [])
    with watch(owner, seen[0]), watch(owner, seen[1]):
        owner.step(1)
    owner.step(1)
    assert seen == ([1], [1])
