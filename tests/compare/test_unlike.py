"""Masks of two implementations: compared by which keys they let through, whatever form they have."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from parity.compare.unlike import same_mask
from tests.support.made import Walk, births, tensor

NAN, INF = float("nan"), float("inf")
KEYS = np.arange(64) < 38
ADDED = np.where(KEYS, 0.0, -10000.0).astype(np.float32)


@pytest.mark.parametrize(
    ("theirs", "same"),
    [
        (KEYS[None], True),
        (KEYS[None].astype(np.float32), True),
        (np.where(KEYS, 0.0, -INF).astype(np.float32)[None, None], True),
        (np.where(KEYS, 0.0, -3e38).astype(np.float32)[None, None], True),
        (KEYS[None, ::-1], False),  # as many, others
        (np.ones((1, 64), bool), False),
        (KEYS[None, :40], True),  # fewer padded keys
        (np.repeat(KEYS[None, None], 7, axis=1), True),  # one row a query
        (np.ones((1, 40), bool), False),
        (np.where(KEYS, 0.0, -2.0).astype(np.float32)[None, None], False),  # a bias, no mask
    ],
)
def test_masks_of_other_forms_are_compared_by_what_they_let_through(theirs: np.ndarray, same: bool) -> None:
    """What is added to the scores in one implementation is a mask of ones and zeros in another."""
    walk = Walk()
    walk.pair(tensor("a:in.mask", ADDED[None, None]), tensor("a:in.mask", theirs))
    assert births(walk.judge()) == ({} if same else {"cond/a:in.mask": "input"})


@pytest.mark.parametrize("moments", [{"l2": INF, "min": -1e30}, {"l2": 1e300}, {"l2": NAN}, {"count": 0}])
@pytest.mark.parametrize("shape", [(1, 40), (1, 0), (0,)])
def test_a_mask_whose_moments_are_no_mask_s_lets_nothing_through(shape: tuple[int, ...], moments: Any) -> None:
    """As a golden from elsewhere may say."""
    ours = tensor("a:in.mask", ADDED[None, None])
    assert ours.moments is not None
    theirs = dataclasses.replace(ours, shape=shape, sketch=None, moments=dataclasses.replace(ours.moments, **moments))
    assert not same_mask(ours, theirs)


def test_an_additive_mask_that_leaves_nothing_out_is_one_of_ones() -> None:
    walk = Walk()
    walk.pair(tensor("a:in.mask", np.zeros((1, 1, 64), np.float32)), tensor("a:in.mask", np.ones((1, 64), bool)))
    assert births(walk.judge()) == {}
