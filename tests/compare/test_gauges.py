"""Gauges at the origin: a gain, another order, None against a tensor, and silence for everything else."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.gauges import gauges
from parity.compare.result import Origin
from parity.golden import Key, Record
from tests.compare.make_records import tensor

KEY = Key("transformer", 0, "cond", "m:out")
X = np.random.default_rng(0).standard_normal((1, 96, 64))


def told(theirs: np.ndarray) -> list[str]:
    found = gauges([tensor("m:out", X)], [tensor("m:out", theirs)], Origin(KEY, "module"))
    return [cause.cause for cause in found]


@pytest.mark.parametrize("gain", [0.9, 1.001, 2.0, -1.0])
def test_a_gain(gain: float) -> None:
    (said,) = told(gain * X)
    assert f"times {gain:.5g}" in said


@pytest.mark.parametrize("order", [X[:, ::-1], np.roll(X, 1, 1), X.transpose(0, 2, 1).reshape(X.shape)])
def test_another_order(order: np.ndarray) -> None:
    (said,) = told(np.ascontiguousarray(order))
    assert "in another order" in said


def test_other_faults_are_neither() -> None:
    assert told(X + np.random.default_rng(1).standard_normal(X.shape)) == []
    assert told(np.where(X > 2, 0.0, X)) == []


def test_none_against_a_tensor() -> None:
    (cause,) = gauges([tensor("m:out", X)], [Record(KEY, "none")], Origin(KEY, "input"))
    assert "only the reference has a value" in cause.cause
    assert gauges([], [], None) == ()
