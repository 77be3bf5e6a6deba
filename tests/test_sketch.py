"""The sketch's definition: linear, additive over shards, sensitive to position, small, pinned to literal numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from parity.sketch import EXACT, TOTAL, bin_norms, distance, geometry, norm, sketch

seeds = st.integers(0, 2**32 - 1)
sizes = st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple)
FEW = settings(max_examples=25)


def difference(kind: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """A difference of the named form, float64 of `shape`."""
    rng = np.random.default_rng(seed)
    g = geometry(shape)
    d = np.zeros((g.rows, g.channels))
    if kind == "noise":
        d[:] = rng.standard_normal(d.shape)
    elif kind == "channel":
        d[:, g.channels // 3] = rng.standard_normal(g.rows)
    elif kind == "row":
        d[g.rows // 3] = rng.standard_normal(g.channels)
    elif kind == "element":
        d[g.rows // 3, g.channels // 3] = 3.0
    elif kind == "rank one":
        d[:] = np.outer(rng.standard_normal(g.rows), rng.standard_normal(g.channels))
    elif kind == "constant":
        d[:] = 0.5
    elif kind == "bias":
        d[:] = rng.standard_normal(g.channels)
    else:
        x = rng.standard_normal(d.shape)
        d[:] = x - np.roll(x, 1, axis=0 if g.rows > 1 else 1)
    return d.reshape(shape)


@given(shape=sizes, seed=seeds, a=st.floats(-4, 4), b=st.floats(-4, 4))
@FEW
def test_the_sketch_is_linear(shape: tuple[int, ...], seed: int, a: float, b: float) -> None:
    x, y = np.random.default_rng(seed).standard_normal((2, *shape))
    np.testing.assert_allclose(sketch(a * x + b * y), a * sketch(x) + b * sketch(y), rtol=1e-5, atol=1e-4)


@given(shape=sizes, seed=seeds, data=st.data())
@FEW
def test_sketches_of_shards_add_up_to_that_of_the_tensor(
    shape: tuple[int, ...], seed: int, data: st.DataObject
) -> None:
    x = np.random.default_rng(seed).standard_normal(shape)
    cuts = [sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=2))}) for n in shape]
    total = np.zeros_like(sketch(x))
    for block in itertools.product(*(itertools.pairwise(c) for c in cuts)):
        part = x[tuple(slice(a, b) for a, b in block)]
        total += sketch(part, shape=shape, start=tuple(a for a, _ in block))
    np.testing.assert_allclose(total, sketch(x), rtol=1e-5, atol=1e-4)


@given(rows=st.integers(2, 3000), channels=st.integers(2, 64), seed=seeds)
@settings(max_examples=25, derandomize=True)  # the bound is statistical
def test_permuted_values_are_apart(rows: int, channels: int, seed: int) -> None:
    """Order-blind statistics cannot distinguish these; the sketch must."""
    x = np.random.default_rng(seed).standard_normal((rows, channels))
    g = geometry(x.shape)
    for y in (x[::-1], x[:, ::-1], np.roll(x, 1, 0)):
        assert np.isclose(np.linalg.norm(x), np.linalg.norm(y))
        assert distance(sketch(x), sketch(y), g) == pytest.approx(np.linalg.norm(x - y), rel=0.1)


@pytest.mark.parametrize("kind", ["noise", "channel", "row", "element", "rank one", "constant", "bias", "shifted"])
@pytest.mark.parametrize("shape", [(1, 12288), (6000, 64), (2048, 256), (1, 4, 4, 45, 40)], ids=str)
def test_the_norm_is_estimated_within_ten_per_cent(shape: tuple[int, ...], kind: str) -> None:
    d = difference(kind, shape)
    assert norm(sketch(d), geometry(shape)) == pytest.approx(np.linalg.norm(d), rel=0.1)


@given(rows=st.integers(1, 5000), channels=st.integers(1, 80), seed=seeds)
@FEW
def test_row_bins_place_a_difference(rows: int, channels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    g = geometry((rows, channels))
    row = int(rng.integers(rows))
    d = np.zeros((rows, channels))
    d[row] = 1.0 + rng.random(channels)
    norms, right = bin_norms(sketch(d), g), row // g.rows_per_bin
    assert norms.shape == (g.bins,)
    assert np.count_nonzero(np.delete(norms, right)) == 0
    # One row in one bin has 8 counters: its estimate may be far off, but vanishes only if every one of them cancels.
    assert g.channels > 1 or norms[right] == pytest.approx(np.linalg.norm(d))


def test_small_empty_and_scalar_tensors_are_their_own_sketch() -> None:
    x = np.arange(-1000.0, 1048.0).reshape(32, 64)
    np.testing.assert_array_equal(sketch(x), x.reshape(-1).astype(np.float32))
    assert sketch(np.zeros((2049,))).shape == (EXACT,)
    assert sketch(np.zeros((0, 8))).shape == sketch(np.zeros((3, 0))).shape == (0,)
    assert (norm(np.zeros(0, np.float32), geometry((0, 8))), sketch(np.array(3.0)).tolist()) == (0.0, [3.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_number_that_is_not_finite_stays_in_its_bin(bad: float) -> None:
    x = np.ones((4096, 16))
    x[2000, 3] = bad
    s, g = sketch(x), geometry(x.shape)
    assert np.count_nonzero(~np.isfinite(s)) == 2
    assert np.flatnonzero(~np.isfinite(bin_norms(s, g))).tolist() == [2000 // g.rows_per_bin]


# Goldens on disk outlive this code: a sketch of another version compares only if these numbers never change.
# Shape, the first counters of the total, the first of the second bin, the sum of counters times position.
PINNED = [
    ((100, 30), [154, 14, 21, 37, 204, -62], [-387, 0, 6, -178, 133, 58], -11006838),
    ((3, 1500, 10), [-102, -119, 122, -231, 460, 135], [411, -634, -415, 1283, 53, -393], -20993346),
    ((5000, 7), [272, -119, -249, -251, 36, 174], [-604, 67, -701, 781, 1282, 313], 10334692),
]


@pytest.mark.parametrize(("shape", "head", "bins", "checksum"), PINNED, ids=str)
def test_the_definition_is_pinned(shape: tuple[int, ...], head: list[int], bins: list[int], checksum: int) -> None:
    # Small integers without a period that the sketch shares, so that its counters are integers too.
    s = sketch(((np.arange(np.prod(shape)) * 7919) % 251 - 125.0).reshape(shape))
    assert s[:6].tolist() == head
    assert s[TOTAL + 8 : TOTAL + 14].tolist() == bins
    assert int(np.dot(s.astype(np.int64), np.arange(1, s.size + 1))) == checksum
