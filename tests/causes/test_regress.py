"""Errors regressed on known ones: coefficients, intervals, joint faults by simulation, unknown ones left unknown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.causes.regress import common_keys, error_vector, fit, noise_norm, search
from parity.golden import Floor, Key, StepRecords
from tests.support.made import tensor

N = 4096


def draw(seed: int, size: int = N) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size)


@given(scale=st.floats(0.1, 10), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_multiple_is_found_with_its_coefficient(scale: float, seed: int) -> None:
    found = fit(scale * draw(seed), draw(seed))
    assert found.coefficient == pytest.approx(scale)
    assert found.r2 == pytest.approx(1.0)


def test_noise_widens_the_interval_and_leaves_the_coefficient() -> None:
    error = draw(0) + 0.1 * draw(1)
    found = fit(error, draw(0), noise=1.0)
    assert abs(found.coefficient - 1.0) < found.half < 0.5
    assert found.half > fit(error, draw(0)).half


def test_unrelated_errors_explain_nothing() -> None:
    assert fit(draw(0), draw(1)).r2 < 0.01
    assert fit(draw(0), np.zeros(N)).coefficient == 0.0


FAULTS = {f"s{i}=x": draw(10 + i) for i in range(8)} | {"s0=y": draw(50), "quiet=x": np.zeros(N)}


def joint(names: frozenset[str]) -> np.ndarray:
    """Errors that do not simply add up; the quiet one counts beside `s1=x` alone."""
    out = sum(FAULTS[n] for n in names)
    if {"quiet=x", "s1=x"} <= names:
        out = out + 0.5 * draw(99)
    if len(names - {"quiet=x"}) > 1:
        out = out + 0.2 * draw(98)
    return np.asarray(out)


@pytest.mark.parametrize("names", [{"s3=x"}, {"s0=y"}, {"s2=x", "s5=x"}, {"s1=x", "quiet=x"}, {"s1=x", "s6=x", "s7=x"}])
def test_the_faults_of_a_run_are_named(names: set[str]) -> None:
    noise = 1e-3
    error = joint(frozenset(names)) + noise / np.sqrt(N) * draw(5)
    found = search(error, FAULTS, joint, noise)
    assert set(found.names) == names
    assert found.residual < 1e-3


def test_an_unknown_error_is_left_unexplained() -> None:
    found = search(draw(77), FAULTS, joint, 1e-3)
    assert found.names == ()
    assert found.residual == pytest.approx(1.0)


def test_a_fault_that_cannot_be_run_is_passed_over() -> None:
    error = joint(frozenset({"s2=x", "s5=x"}))
    found = search(error, FAULTS, lambda names: None, 1e-3)
    assert len(found.names) <= 1


def test_error_vectors_are_relative_and_skip_what_is_absent() -> None:
    x, y = draw(0).reshape(1, 64, 64), 100.0 * draw(1).reshape(1, 64, 64)
    ours = StepRecords(0, (tensor("a:out", x), tensor("b:out", y), tensor("a:in.x", x)))
    theirs = StepRecords(0, (tensor("a:out", 1.1 * x), tensor("b:out", 1.1 * y)))
    keys = common_keys(ours, theirs)
    assert [k.site for k in keys] == ["a:out", "b:out"]
    vector = error_vector(ours, theirs, keys)
    assert np.linalg.norm(vector) == pytest.approx(0.1 * np.sqrt(2), rel=0.05)
    assert np.linalg.norm(error_vector(ours, StepRecords(0, theirs.records[:1]), keys)) == pytest.approx(0.1, rel=0.05)
    floors = {Key("transformer", 0, "cond", "a:out"): Floor(float(np.linalg.norm(x)) * 1e-6)}
    assert noise_norm(StepRecords(0, ours.records, floors), keys) == pytest.approx(1e-6, rel=0.05)


def test_two_equal_faults_of_which_neither_explains_enough_alone_are_both_named() -> None:
    """They share a part in which they cancel, so that each alone leaves nearly all."""
    a, b, common = draw(1), draw(2), draw(3)
    singles = {"p=x": a + 0.9 * common, "q=x": b - 0.9 * common, "r=x": draw(4)}
    found = search(a + b, singles, lambda names: sum((singles[n] for n in names), np.zeros(N)), 1e-3)
    assert min(np.linalg.norm(a + b - x) for x in singles.values()) > 0.85 * np.linalg.norm(a + b)
    assert set(found.names) == {"p=x", "q=x"}
