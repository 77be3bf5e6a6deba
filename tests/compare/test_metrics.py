"""Distances: exact from values, within 10 % from sketches, and never a number where there is none."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.compare.metrics import Measure, bin_ratios, distance, measure, ratio
from parity.golden import Floor, Record
from parity.golden.records import AFTER
from tests.support.made import floor_of, moved, noise, tensor

NAN, INF = float("nan"), float("inf")
SHAPES = st.sampled_from([(1, 4, 8), (1, 96, 40), (2, 50, 64), (700, 7), (5000,), (3, 5, 7, 40)])


def measured(a: Record, b: Record) -> Measure:
    found = measure(a, b)
    assert found is not None
    return found


def both(x: np.ndarray, y: np.ndarray, *, held: bool) -> Measure:
    return measured(tensor("a:out", x, held=held), tensor("a:out", y, held=held))


@given(SHAPES, st.integers(0, 2**31), st.floats(1e-6, 1e3))
@settings(max_examples=40, deadline=None)
def test_from_values_everything_is_exact(shape: tuple[int, ...], seed: int, size: float) -> None:
    x = noise(seed, shape).astype(np.float64)
    y = x + size * noise(seed + 1, shape)
    found = both(x, y, held=True)
    assert found.l2 == pytest.approx(np.linalg.norm(y - x), rel=1e-12)
    assert found.scale == pytest.approx(np.linalg.norm(x), rel=1e-12)
    assert found.max_abs == np.abs(y - x).max()
    cosine = np.vdot(x, y) / np.linalg.norm(x) / np.linalg.norm(y)
    assert found.cosine == pytest.approx(cosine, abs=1e-12)


@given(SHAPES, st.integers(0, 2**31), st.floats(1e-3, 1e3))
@settings(max_examples=60, deadline=None)
def test_from_sketches_the_distance_is_within_ten_percent(shape: tuple[int, ...], seed: int, size: float) -> None:
    x = noise(seed, shape).astype(np.float64)
    y = x + size * noise(seed + 1, shape)
    found = both(x, y, held=False)
    assert found.l2 == pytest.approx(np.linalg.norm(y - x), rel=0.1)
    assert found.scale == pytest.approx(np.linalg.norm(x), rel=1e-6)
    assert math.isnan(found.max_abs)
    cosine = np.vdot(x, y) / np.linalg.norm(x) / np.linalg.norm(y)
    assert found.cosine == pytest.approx(cosine, abs=0.1)


@pytest.mark.parametrize("pattern", ["one channel", "one row", "one element", "constant", "shifted rows"])
def test_from_sketches_structured_errors_are_within_ten_percent(pattern: str) -> None:
    x = noise(3, (1, 500, 40)).astype(np.float64)
    y = x.copy()
    if pattern == "one channel":
        y[..., 7] += 0.1 * noise(4, (1, 500))
    elif pattern == "one row":
        y[:, 33] += 0.1
    elif pattern == "one element":
        y[0, 33, 7] += 5.0
    elif pattern == "constant":
        y += 0.01
    else:
        y = np.roll(x, 1, axis=1)
    assert both(x, y, held=False).l2 == pytest.approx(np.linalg.norm(y - x), rel=0.1)


def test_equal_tensors_are_exactly_nothing_apart() -> None:
    x = noise(0)
    for held in (True, False):
        found = both(x, x.copy(), held=held)
        assert found.l2 == 0.0
        assert found.cosine == pytest.approx(1.0)


def test_row_bins_place_a_difference() -> None:
    x = noise(0, (1, 640, 40)).astype(np.float64)
    y = x.copy()
    y[:, 100:110] += 1.0  # 640 rows in 64 bins of ten
    bins = both(x, y, held=False).bins
    assert len(bins) == 64
    assert np.flatnonzero(bins).tolist() == [10]
    assert bins[10] == pytest.approx(np.sqrt(400), rel=0.6)


def test_a_small_tensor_has_exact_bins() -> None:
    x = np.zeros((1, 4, 8), np.float32)
    y = x.copy()
    y[0, 2] = 3.0
    assert both(x, y, held=False).bins == pytest.approx([0.0, 0.0, 3.0 * math.sqrt(8), 0.0])


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.uint8])
@pytest.mark.parametrize("held", [True, False])
def test_integers_and_masks_are_compared_as_numbers(dtype: type, held: bool) -> None:
    x = np.arange(24).reshape(1, 4, 6) % 2
    y = x.copy()
    y[0, 1, 2] = 1 - y[0, 1, 2]
    found = both(x.astype(dtype), y.astype(dtype), held=held)
    assert found.l2 == 1.0


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_nonfinite_value_on_one_side_is_no_number(bad: float, held: bool) -> None:
    x = noise(0)
    y = x.copy()
    y[0, 3, 3] = bad
    for a, b in ((x, y), (y, x)):
        found = both(a, b, held=held)
        assert not math.isfinite(found.l2)
        known = distance(found, Floor(1.0))
        assert not known.ratio <= 3.0  # neither a NaN nor an infinity may read as agreement


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("shape", [(1, 4, 8), (1, 96, 40)])
def test_what_is_nonfinite_alike_on_both_sides_is_no_difference(bad: float, held: bool, shape: tuple[int, ...]) -> None:
    """An additive mask holds -inf on both sides; `Measure.l2` is NaN only where the other side does not."""
    x = noise(0, shape)
    x[0, 1:3] = bad
    found = both(x, x.copy(), held=held)
    assert found.l2 == 0.0


def test_opposite_infinities_are_apart() -> None:
    x, y = noise(0), noise(0)
    x[0, 0, 0], y[0, 0, 0] = INF, -INF
    for held in (True, False):
        assert not math.isfinite(both(x, y, held=held).l2)


def test_other_shapes_cannot_be_compared() -> None:
    x = noise(0)
    for held in (True, False):
        assert measure(tensor("a:out", x, held=held), tensor("a:out", x[:, :-1], held=held)) is None
        # Equal counts, other meaning.
        assert measure(tensor("a:out", x, held=held), tensor("a:out", x.reshape(96, 1, 40), held=held)) is None


def test_a_batch_of_one_that_one_side_leaves_out_is_the_same_tensor() -> None:
    x, y = noise(0), noise(1)
    for held in (True, False):
        found = measure(tensor("a:out", x, held=held), tensor("a:out", y[0], held=held))
        whole = measure(tensor("a:out", x, held=held), tensor("a:out", y, held=held))
        assert found is not None
        assert whole is not None
        assert (found.l2, found.cosine) == (whole.l2, whole.cosine)


def test_what_the_loop_and_the_decoder_hand_on_has_one_shape() -> None:
    """A model's own tensor may leave a batch of one out; audio as [2, N] and as [1, 2, N] is read otherwise."""
    x = noise(0)
    for site, stage in (("loop:noise_pred", "transformer"), ("audio:out", AFTER)):
        ours, theirs = (tensor(site, each, held=False) for each in (x, x[0]))
        placed = [dataclasses.replace(r, key=dataclasses.replace(r.key, stage=stage)) for r in (ours, theirs)]
        assert measure(*placed) is None


def test_rows_in_one_frame_compare_although_the_tensors_lengths_differ() -> None:
    x = noise(0)
    ours = tensor("a:out", x, rows="text", shape=(1, 112, 40))
    theirs = tensor("a:out", x, rows="text", shape=(1, 128, 40))
    assert measured(ours, theirs).l2 == 0.0
    assert measure(ours, tensor("a:out", x, shape=(1, 112, 40))) is None


def test_parts_of_joint_sequences_of_other_lengths_compare() -> None:
    x = noise(0)
    ours = tensor("a:in.query@image", x, shape=(1, 184, 40))
    theirs = tensor("a:in.query@image", x, shape=(1, 168, 40))
    assert measured(ours, theirs).l2 == 0.0


def test_without_a_sketch_there_is_nothing_to_measure() -> None:
    ours = tensor("a:out", noise(0))
    theirs = dataclasses.replace(ours, sketch=None)
    assert measure(ours, theirs) is None
    assert measure(theirs, ours) is None


def test_held_on_one_side_only_the_sketches_are_compared() -> None:
    x = noise(0)
    y = moved(x, 1e5)
    found = measured(tensor("a:out", x, held=True), tensor("a:out", y))
    assert found.l2 == pytest.approx(np.linalg.norm(y - x), rel=0.1)
    assert math.isnan(found.max_abs)


@pytest.mark.parametrize("held", [True, False])
def test_a_reference_of_zeros(held: bool) -> None:
    zeros, ones = np.zeros((1, 4, 8), np.float32), np.ones((1, 4, 8), np.float32)
    found = both(zeros, ones, held=held)
    assert math.isnan(found.cosine)
    known = distance(found, Floor(0.0, np.zeros(4, np.float32)))
    assert known.rel_l2 == pytest.approx(math.sqrt(32))  # the absolute distance: there is nothing to relate it to
    assert known.ratio == INF
    nothing = distance(both(zeros, zeros, held=held), Floor(0.0))
    assert (nothing.rel_l2, nothing.floor, nothing.ratio) == (0.0, 0.0, 0.0)


def test_distance_is_relative_to_the_reference() -> None:
    found = distance(Measure(2.0, 8.0, 1.0, NAN, np.zeros(0)), Floor(0.5))
    assert (found.rel_l2, found.floor, found.ratio) == (0.25, 0.0625, 4.0)


def test_without_a_floor_there_is_a_distance_and_no_ratio() -> None:
    found = distance(Measure(2.0, 8.0, 1.0, NAN, np.zeros(0)), None)
    assert found.rel_l2 == 0.25
    assert math.isnan(found.floor)
    assert math.isnan(found.ratio)


@pytest.mark.parametrize(
    ("value", "floor", "expected"),
    [(0.0, 0.0, 0.0), (1.0, 0.0, INF), (0.0, 1.0, 0.0), (3.0, 2.0, 1.5), (INF, 1.0, INF), (1e-300, 0.0, INF)],
)
def test_ratios(value: float, floor: float, expected: float) -> None:
    assert ratio(value, floor) == expected


@pytest.mark.parametrize(("value", "floor"), [(NAN, 1.0), (1.0, NAN), (NAN, NAN), (NAN, 0.0), (INF, INF)])
def test_ratios_that_are_no_numbers(value: float, floor: float) -> None:
    assert math.isnan(ratio(value, floor))


def test_an_infinite_floor_excuses_nothing() -> None:
    """A variant of the reference that overflowed says nothing about rounding; value / inf would read as agreement."""
    assert not ratio(1.0, INF) <= 3.0


def test_bin_ratios_need_bins_on_both() -> None:
    x = noise(0)
    ours = tensor("a:out", x)
    found = measured(ours, tensor("a:out", moved(x, 2.0)))
    assert bin_ratios(found, None) == ()
    assert bin_ratios(found, Floor(1.0)) == ()
    assert bin_ratios(found, Floor(1.0, np.ones(3, np.float32))) == ()
    known = bin_ratios(found, floor_of(ours))
    assert len(known) == len(found.bins)
    assert np.median(known) == pytest.approx(2.0, rel=0.2)


def test_a_bin_without_a_floor_is_infinitely_beyond_it() -> None:
    found = Measure(1.0, 1.0, 1.0, NAN, np.array([1.0, 0.0, 2.0]))
    assert bin_ratios(found, Floor(1.0, np.array([0.0, 0.0, 4.0], np.float32))) == (INF, 0.0, 0.5)
