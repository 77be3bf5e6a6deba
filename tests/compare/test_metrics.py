"""Distances: exact from values, within 10 % from sketches, and never a number where there is none."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from parity.compare.judge import Judge
from parity.compare.metrics import BLOCK, compare_values, ratio
from parity.compare.result import SiteDiff
from parity.records import AFTER, Floor, Record, StepRecords
from tests.support.made import moved, noise, tensor

NAN, INF = float("nan"), float("inf")
SHAPES = st.sampled_from([(1, 4, 8), (1, 96, 40), (2, 50, 64), (700, 7), (5000,), (3, 5, 7, 40)])
X = noise(0)


def measured(a: Record, b: Record, floor: Floor | None = None) -> SiteDiff:
    """The one site of a step."""
    b = dataclasses.replace(b, key=a.key)
    (found,) = Judge().step(StepRecords(0, (a,), {} if floor is None else {a.key: floor}), StepRecords(0, (b,)))
    return found


def both(x: np.ndarray, y: np.ndarray, *, held: bool, floor: Floor | None = None) -> SiteDiff:
    return measured(tensor("a:out", x, held=held), tensor("a:out", y, held=held), floor)


@given(SHAPES, st.integers(0, 2**31), st.floats(1e-3, 1e3), st.booleans())
@settings(max_examples=40)
def test_distances_from_values_and_from_sketches(shape: tuple[int, ...], seed: int, size: float, held: bool) -> None:
    x = noise(seed, shape).astype(np.float64)
    y = x + size * noise(seed + 1, shape)
    found = both(x, y, held=held)
    cosine = np.vdot(x, y) / np.linalg.norm(x) / np.linalg.norm(y)
    far = np.linalg.norm(y - x) / np.linalg.norm(x)
    assert found.distance.rel_l2 == pytest.approx(far, rel=1e-12 if held else 0.1)
    assert found.cosine == pytest.approx(cosine, abs=1e-12 if held else 0.1)
    assert found.max_abs == pytest.approx(np.abs(y - x).max() if held else NAN, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.uint8])
@pytest.mark.parametrize("held", [True, False])
def test_integers_and_masks_are_compared_as_numbers(dtype: type, held: bool) -> None:
    x = np.arange(24).reshape(1, 4, 6) % 2
    y = x.copy()
    y[0, 1, 2] = 1 - y[0, 1, 2]
    found = both(x.astype(dtype), y.astype(dtype), held=held)
    assert found.distance.rel_l2 * np.linalg.norm(x) == pytest.approx(1.0)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("shape", [(1, 4, 8), (1, 96, 40)])
def test_numbers_that_are_not_finite_agree_only_with_themselves(bad: float, held: bool, shape: tuple[int, ...]) -> None:
    """An additive mask holds -inf on both sides."""
    x = noise(0, shape)
    y = x.copy()
    y[0, 1:3] = bad
    assert both(y, y.copy(), held=held).distance.rel_l2 == 0.0
    others = [(x, y), (y, x)] + ([(y, -y)] if math.isinf(bad) else [])
    for a, b in others:
        found = both(a, b, held=held, floor=Floor(1.0))
        assert not math.isfinite(found.distance.rel_l2)
        assert not found.distance.ratio <= 3.0  # neither may read as agreement
        assert found.verdict == "fail"


TEXT = tensor("a:out", X, rows="text", shape=(1, 112, 40))


def of_stage(site: str, x: np.ndarray, stage: str) -> Record:
    record = tensor(site, x)
    return dataclasses.replace(record, key=dataclasses.replace(record.key, stage=stage))


@pytest.mark.parametrize(
    ("ours", "theirs", "is_comparable"),
    [
        (tensor("a:out", X), tensor("a:out", X[:, :-1]), False),
        (tensor("a:out", X), tensor("a:out", X.reshape(96, 1, 40)), False),  # equal counts, another meaning
        (tensor("a:out", X, held=True), tensor("a:out", X[:, :-1], held=True), False),
        (tensor("a:out", X), tensor("a:out", X[0]), True),  # a batch of one that one side leaves out
        (tensor("a:out", X, held=True), tensor("a:out", X[0], held=True), True),
        # The loop's own values and what comes after the loop have one shape: audio as [2, N] is read differently.
        (tensor("loop:noise_pred", X), tensor("loop:noise_pred", X[0]), False),
        (of_stage("audio:out", X, AFTER), of_stage("audio:out", X[0], AFTER), False),
        # Rows in one frame compare although the tensors' lengths differ; so do parts of joint sequences.
        (TEXT, tensor("a:out", X, rows="text", shape=(1, 128, 40)), True),
        (TEXT, tensor("a:out", X, shape=(1, 112, 40)), False),
        (tensor("a:q@image", X, shape=(1, 184, 40)), tensor("a:q@image", X, shape=(1, 168, 40)), True),
        (TEXT, dataclasses.replace(TEXT, sketch=None), False),
        (dataclasses.replace(TEXT, sketch=None), TEXT, False),
    ],
)
def test_only_tensors_of_one_meaning_are_measured(ours: Record, theirs: Record, is_comparable: bool) -> None:
    assert (measured(ours, theirs).distance.rel_l2 == 0.0) is is_comparable


def test_a_value_on_one_side_only_is_compared_by_sketches() -> None:
    y = moved(X, 1e5)
    found = measured(tensor("a:out", X, held=True), tensor("a:out", y))
    assert found.distance.rel_l2 * np.linalg.norm(X) == pytest.approx(np.linalg.norm(y - X), rel=0.1)
    assert math.isnan(found.max_abs)


@pytest.mark.parametrize("held", [True, False])
def test_the_distance_from_a_reference_of_zeros_is_absolute(held: bool) -> None:
    zeros, ones = np.zeros((1, 4, 8), np.float32), np.ones((1, 4, 8), np.float32)
    found = both(zeros, ones, held=held, floor=Floor(0.0, np.zeros(4, np.float32)))
    assert math.isnan(found.cosine)
    assert (found.distance.rel_l2, found.distance.ratio) == (pytest.approx(math.sqrt(32)), INF)
    nothing = both(zeros, zeros, held=held, floor=Floor(0.0)).distance
    assert (nothing.rel_l2, nothing.floor, nothing.ratio) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("value", "floor", "expected"),
    [(0.0, 0.0, 0.0), (1.0, 0.0, INF), (0.0, 1.0, 0.0), (3.0, 2.0, 1.5), (INF, 1.0, INF), (1e-300, 0.0, INF),
     (NAN, 1.0, NAN), (1.0, NAN, NAN), (NAN, 0.0, NAN), (INF, INF, NAN), (1.0, INF, NAN)],
)  # fmt: skip
def test_a_ratio_is_no_number_without_a_finite_floor(value: float, floor: float, expected: float) -> None:
    """A variant of the reference that overflowed says nothing about rounding; value / inf would read as agreement."""
    assert ratio(value, floor) == pytest.approx(expected, nan_ok=True)


# --- whole values, block by block ------------------------------------------------------------------------------


def check(x: np.ndarray, y: np.ndarray) -> None:
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.where((np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == b)), 0.0, b - a)
        l2, scale, other = (float(np.linalg.norm(v)) for v in (apart, a, b))
        cosine = float(a @ b) / (scale * other) if scale > 0 and other > 0 else NAN
        expected = (l2, scale, cosine, float(np.max(np.abs(apart), initial=0.0)))
    assert compare_values(x, y) == pytest.approx(expected, rel=1e-5, abs=1e-13, nan_ok=True)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "bool"])
def test_values_of_any_size_and_dtype_are_compared_in_float64(size: int, dtype: str) -> None:
    rng = np.random.default_rng(size)
    x = (8 * rng.standard_normal(size)).astype(dtype)
    for far in (1.0, 1e-3, 0.0):
        check(x, (x + far * rng.standard_normal(size)).astype(dtype))


@given(*(hnp.arrays(np.float32, 9, elements=st.floats(width=32)) for _ in range(2)))
@settings(max_examples=50)
def test_any_numbers_are_compared_in_float64(x: np.ndarray, y: np.ndarray) -> None:
    check(x, y)


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-20, 1e20, 3e38])
def test_what_float32_cannot_square_is_not_lost(size: float) -> None:
    x = np.full(5, size, np.float32)
    check(x, -x)
    tiny = x.copy()
    tiny[3] = 0
    assert compare_values(x, tiny)[0] > 0


def test_a_nan_in_any_block_stays() -> None:
    x = np.ones(3 * BLOCK, np.float32)
    y = x.copy()
    y[BLOCK + 5] = np.nan
    assert all(math.isnan(found) for found in (compare_values(x, y)[0], compare_values(y, x)[3]))
    assert compare_values(y, y)[0] == 0.0
