"""Tensors of another form that may be one: masks, repeated values, numbers and tables of a text that is cut."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from parity.compare.pairs.align import Pair
from parity.compare.result import SiteDiff
from parity.compare.single import compared
from parity.compare.unlike import COUNTS, GIVEN_ONCE, REPEATED, UNPAIRED, same_mask
from parity.records import Record
from tests.support.made import Walk, none, scalar, tensor

NAN, INF = float("nan"), float("inf")
KEYS = np.arange(64) < 38
ADDED = np.where(KEYS, 0.0, -10000.0).astype(np.float32)[None, None]


def additive(low: float) -> np.ndarray:
    return np.where(KEYS, 0.0, low).astype(np.float32)[None, None]


MANY_KEYS = np.arange(4000) < 100


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (ADDED, KEYS[None], "pass"),
        (ADDED, additive(-INF), "pass"),
        (ADDED, KEYS[None, ::-1], "fail"),  # as many, others
        (ADDED, np.ones((1, 64), bool), "fail"),
        (ADDED, np.ones((1, 40), bool), "fail"),
        (ADDED, additive(-2.0), "fail"),  # a bias, no mask
        (np.zeros((1, 1, 64), np.float32), np.ones((1, 64), bool), "pass"),  # leaves nothing out
        (np.full((1, 64), 0.2, np.float32), np.ones((1, 64), bool), "fail"),  # a soft mask, as of inpainting
        # As many keys, and nothing shows which.
        (ADDED, KEYS[None, :40], "inconclusive"),  # fewer padded keys
        (ADDED, np.repeat(KEYS[None, None], 7, axis=1), "inconclusive"),  # one row a query
        (MANY_KEYS[None], MANY_KEYS[None, ::-1].astype(np.float32), "inconclusive"),
        (MANY_KEYS[None], MANY_KEYS[None, ::-1], "fail"),
    ],
)
def test_masks_are_compared_by_what_they_let_through(ours: np.ndarray, theirs: np.ndarray, verdict: str) -> None:
    walk = Walk()
    walk.pair(tensor("a:in.mask", ours), tensor("a:in.mask", theirs))
    (found,) = walk.judge().values()
    assert found.verdict == verdict


@pytest.mark.parametrize("moments", [{"l2": INF, "min": -1e30}, {"l2": 1e300}, {"l2": NAN}, {"count": 0}])
@pytest.mark.parametrize("shape", [(1, 40), (1, 0), (0,)])
def test_a_mask_with_impossible_moments_lets_nothing_through(shape: tuple[int, ...], moments: Any) -> None:
    """As a golden from elsewhere may say."""
    ours = tensor("a:in.mask", ADDED)
    assert ours.moments is not None
    theirs = dataclasses.replace(ours, shape=shape, sketch=None, moments=dataclasses.replace(ours.moments, **moments))
    assert same_mask(ours, theirs) == (False, False)


ROW = np.random.default_rng(0).normal(size=(1, 6, 8)).astype(np.float32)
MANY = np.repeat(ROW[:, None], 5, axis=1)
OTHER = MANY * np.where(np.arange(5) == 3, 1.01, 1.0).astype(np.float32)[:, None, None]
TABLE = np.random.default_rng(2).normal(size=(16, 8)).astype(np.float32)
AUDIO = np.random.default_rng(1).normal(size=(2, 64)).astype(np.float32)


def judged(a: Record, b: Record, strict: bool = False) -> SiteDiff:
    return compared(Pair(a.key, a, b), None, strict=strict)


def of_vae(x: np.ndarray) -> Record:
    record = tensor("audio:out", x)
    return dataclasses.replace(record, key=dataclasses.replace(record.key, stage="vae"))


@pytest.mark.parametrize(
    ("ours", "theirs", "note"),
    [  # a note says why a site is not compared; without one it differs
        (tensor("m:in.temb", MANY), tensor("m:in.temb", ROW), REPEATED),
        (tensor("m:in.temb", OTHER), tensor("m:in.temb", ROW), ""),
        # Rows after the loop are no text: audio that is four times as long once passed as rows that no mask pairs.
        (tensor("audio:out", AUDIO[:, :16]), tensor("audio:out", AUDIO), UNPAIRED),
        (of_vae(AUDIO[:, :16]), of_vae(AUDIO), ""),
        # An optional number of an inner module against None; the root's is compared.
        (scalar("m:in.length", 48), none("m:in.length"), GIVEN_ONCE),
        (scalar(":in.length", 48), none(":in.length"), ""),
        # A right port that cuts padded tokens off tells its rotary embedding so, which makes a shorter table.
        (scalar("m:in.length", 16), scalar("m:in.length", 12), COUNTS),
        (scalar(":in.length", 16), scalar(":in.length", 12), ""),
        (tensor("m:out", TABLE), tensor("m:out", TABLE[:12].copy()), UNPAIRED),
    ],
)
def test_what_cannot_be_compared_is_inconclusive_with_a_note(ours: Record, theirs: Record, note: str) -> None:
    found = judged(ours, theirs)
    assert (found.verdict == "inconclusive") == bool(note)
    assert found.note.endswith(note)
    assert note or found.distance.ratio > 3.0
    assert judged(ours, theirs, strict=True).verdict != "inconclusive"
