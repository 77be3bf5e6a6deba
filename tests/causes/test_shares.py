"""Shares of differing settings: the confounded case, the interacting case, the harmless one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.bisect.swaps import plan
from parity.causes.shares import shares
from parity.settings import Settings, parse

A, B, C = (np.random.default_rng(i).standard_normal(2000) / 45 for i in range(3))
NOISE = 1e-5
GIVEN = ("attention.mask=none", "vision_states=none", "text.reorder=concatenate")


def runner(error: Callable[[bool, bool, bool], np.ndarray]) -> Callable[[Settings], np.ndarray]:
    """A made candidate whose error depends on which of the three settings it has wrong."""

    def run(given: Settings) -> np.ndarray:
        wrong = [given.changed(g.partition("=")[0]) for g in GIVEN]
        return error(*wrong)

    return run


def found(error: Callable[[bool, bool, bool], np.ndarray]) -> dict[str, tuple[float, bool]]:
    searched = plan(parse("torch"), parse("torchax", GIVEN))
    return {s.swap.setting: (s.share, s.harmless) for s in shares(searched, runner(error), NOISE)}


def test_one_culprit_has_all_of_it_and_the_others_are_harmless() -> None:
    """Confounded: beside the dropped mask, the vision states change the error; alone they change nothing."""
    got = found(lambda m, v, r: m * A + (m and v) * 0.3 * B + v * 1e-6 * C)
    assert got["attention.mask"] == (pytest.approx(1.0), False)
    assert got["vision_states"] == (0.0, True)
    assert got["text.reorder"] == (0.0, True)


def test_two_culprits_share_it() -> None:
    got = found(lambda m, v, r: 3.0 * m * A + v * B)
    assert got["attention.mask"][0] == pytest.approx(0.9, abs=0.02)
    assert got["vision_states"][0] == pytest.approx(0.1, abs=0.02)
    assert got["text.reorder"] == (0.0, True)


def test_two_that_act_only_together_are_both_named() -> None:
    got = found(lambda m, v, r: (v and r) * A)
    assert got["attention.mask"] == (0.0, True)
    assert got["vision_states"][0] == got["text.reorder"][0] == pytest.approx(0.5)


def test_the_largest_share_comes_first() -> None:
    searched = plan(parse("torch"), parse("torchax", GIVEN))
    got = shares(searched, runner(lambda m, v, r: m * A + 5.0 * r * B), NOISE)
    assert [s.swap.setting for s in got] == ["text.reorder", "attention.mask", "vision_states"]
    assert got[0].recovered == pytest.approx(1 - 1 / np.sqrt(26), rel=0.05)


def test_three_that_act_on_one_another_still_add_up_to_all() -> None:
    searched = plan(parse("torch"), parse("torchax", GIVEN))
    got = shares(searched, runner(lambda m, v, r: m * A + v * B + r * C + (m and v and r) * (A + B)), NOISE)
    assert sum(s.share for s in got) == pytest.approx(1.0)
    assert not any(s.harmless for s in got)


@given(size=st.floats(1e-4, 1e-1), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_floor_cannot_move_a_share_out_of_its_interval(size: float, seed: int) -> None:
    """Each run moved by the floor, up or down the error itself; a little slack for the second order."""
    rng = np.random.default_rng(seed)
    searched = plan(parse("torch"), parse("torchax", GIVEN))

    def exact(m: bool, v: bool, r: bool) -> np.ndarray:
        return m * A + 0.5 * v * B + 0.4 * (m and v) * C

    def moved(m: bool, v: bool, r: bool) -> np.ndarray:
        by = exact(True, True, True) * rng.choice([-1.0, 1.0])
        return exact(m, v, r) + by * (size / np.linalg.norm(by))

    truth = {s.swap.setting: s.share for s in shares(searched, runner(exact), size)}
    for share in shares(searched, runner(moved), size):
        assert abs(share.share - truth[share.swap.setting]) <= 1.1 * share.half + size**2
