"""Whole values, block by block: as exact as float64 needs to be, whatever they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from parity.compare import metrics
from parity.compare.metrics import BLOCK, compare_values


def exact(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float]:
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.where((np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == b)), 0.0, b - a)
        norms = [float(np.linalg.norm(v)) for v in (apart, a, b)]
        return norms[0], norms[1], norms[2], float(np.max(np.abs(apart), initial=0.0))


def check(x: np.ndarray, y: np.ndarray, rel: float = 1e-5) -> None:
    found = compare_values(x, y)
    for got, known in zip((found.l2, found.scale, found.other, found.largest), exact(x, y), strict=True):
        assert got == pytest.approx(known, rel=rel, abs=1e-300, nan_ok=True)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "bool"])
@pytest.mark.parametrize("far", [1.0, 1e-3, 0.0])
def test_any_size_and_dtype(size: int, dtype: str, far: float) -> None:
    rng = np.random.default_rng(size)
    x = (8 * rng.standard_normal(size)).astype(dtype)
    y = (x + far * rng.standard_normal(size)).astype(dtype)
    check(x, y)


@given(hnp.arrays(np.float32, 9, elements=st.floats(width=32)), hnp.arrays(np.float32, 9, elements=st.floats(width=32)))
def test_any_numbers(x: np.ndarray, y: np.ndarray) -> None:
    check(x, y)


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-20, 1e20, 3e38])
def test_what_float32_cannot_square_is_not_lost(size: float) -> None:
    x = np.full(5, size, np.float32)
    check(x, -x)
    check(np.ones(5, np.float32), np.ones(5, np.float32) + np.float32(1e-7))
    tiny = x.copy()
    tiny[3] = 0
    assert compare_values(x, tiny).l2 > 0


def test_a_nan_in_any_block_stays() -> None:
    x = np.ones(3 * BLOCK, np.float32)
    y = x.copy()
    y[BLOCK + 5] = np.nan
    found = compare_values(x, y)
    assert math.isnan(found.l2)
    assert math.isnan(found.largest)
    assert math.isnan(compare_values(y, x).l2)
    assert compare_values(y, y).l2 == 0.0


def test_blocks_do_not_need_the_whole_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    most = []
    plain = metrics._sums

    def counted(a: np.ndarray, b: np.ndarray, apart: np.ndarray) -> tuple[tuple[float, ...], float]:
        most.append(apart.nbytes)
        return plain(a, b, apart)

    monkeypatch.setattr(metrics, "_sums", counted)
    compare_values(np.ones((7, BLOCK), np.float32), np.ones((7, BLOCK), np.float32))
    assert len(most) == 7
    assert max(most) == 4 * BLOCK
