"""Fits of an error to known ones: names and shares; what is unknown stays unknown."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from parity.bisect.swaps import plan
from parity.causes.regress import search
from parity.causes.shares import shares
from parity.settings import Settings, parse


def draw(seed: int, size: int = 4096) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size)


# --- a search among known errors -------------------------------------------------------------------------------

FAULTS = {f"s{i}=x": draw(10 + i) for i in range(8)} | {"s0=y": draw(50), "quiet=x": np.zeros(4096)}
# They share a part in which they cancel, so that each alone leaves nearly all.
CANCEL = {"p=x": draw(1) + 0.9 * draw(3), "q=x": draw(2) - 0.9 * draw(3), "r=x": draw(4)}


def joint(names: frozenset[str]) -> np.ndarray:
    """Errors that do not simply add up; the quiet one counts only with `s1=x`."""
    out = sum((({**FAULTS, **CANCEL})[n] for n in names), np.zeros(4096))
    if {"quiet=x", "s1=x"} <= names:
        out = out + 0.5 * draw(99)
    if len(names - {"quiet=x"}) > 1 and not names & CANCEL.keys():
        out = out + 0.2 * draw(98)
    return out


@pytest.mark.parametrize(
    ("names", "faults"),
    [({"s3=x"}, FAULTS), ({"s0=y"}, FAULTS), ({"s2=x", "s5=x"}, FAULTS), ({"s1=x", "quiet=x"}, FAULTS),
     ({"s1=x", "s6=x", "s7=x"}, FAULTS), ({"p=x", "q=x"}, CANCEL)],
)  # fmt: skip
def test_the_faults_of_a_run_are_named(names: set[str], faults: dict[str, np.ndarray]) -> None:
    found = search(joint(frozenset(names)) + 1e-3 / 64 * draw(5), faults, joint, 1e-3)
    assert set(found.names) == names
    assert found.residual < 1e-3


def test_an_unknown_error_and_faults_that_cannot_be_run_are_not_named() -> None:
    found = search(draw(77), FAULTS, joint, 1e-3)
    assert (found.names, found.residual) == ((), pytest.approx(1.0))
    found = search(joint(frozenset({"s2=x", "s5=x"})), FAULTS, lambda names: None, 1e-3)
    assert len(found.names) <= 1


# --- the shares of differing settings --------------------------------------------------------------------------

A, B, C = (draw(i, 2000) / 45 for i in range(3))
GIVEN = ("attention.mask=none", "vision_states=none", "text.reorder=concatenate")
PLAN = plan(parse("torch"), parse("torchax", GIVEN))
Error = Callable[[bool, bool, bool], np.ndarray]


def runner(error: Error) -> Callable[[Settings], np.ndarray]:
    """A candidate whose error depends on which of the three settings it has wrong."""
    return lambda settings: error(*(settings.changed(g.partition("=")[0]) for g in GIVEN))


@pytest.mark.parametrize(
    ("error", "expected"),
    [  # shares of the mask, the vision states and the order; None is harmless
        # Confounded: with the dropped mask the vision states change the error; alone they change nothing.
        (lambda m, v, r: m * A + (m and v) * 0.3 * B + v * 1e-6 * C, (1.0, None, None)),
        (lambda m, v, r: 3.0 * m * A + v * B, (0.9, 0.1, None)),
        (lambda m, v, r: (v and r) * A, (None, 0.5, 0.5)),  # two that act only together
        (lambda m, v, r: m * A + 5.0 * r * B, (1 / 26, None, 25 / 26)),
    ],
)
def test_differing_settings_have_their_shares(error: Error, expected: tuple[float | None, ...]) -> None:
    found = shares(PLAN, runner(error), 1e-5)
    assert [s.share for s in found] == sorted((s.share for s in found), reverse=True)
    by_name = {s.swap.setting: s for s in found}
    for given_, share in zip(GIVEN, expected, strict=True):
        got = by_name[given_.partition("=")[0]]
        assert (got.share, got.harmless) == (pytest.approx(share or 0.0, abs=0.02), share is None)
