"""Equal contents have equal fingerprints, whatever the strides, byte order or chunks; anything else has another."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from parity.golden import fingerprint, fingerprint_bytes
from parity.golden.fingerprint import WeightPrint, weight_print, weight_prints

X = np.float32([1, 2, 3, 4])


def test_fingerprints_are_pinned() -> None:
    """They are in goldens that are kept for months."""
    assert fingerprint(np.arange(6, dtype=np.float32).reshape(2, 3)) == "9b536f547091a7da"
    assert fingerprint(np.zeros((0, 4), np.int64)) == "44b85660cab2b127"


@given(hnp.arrays(st.sampled_from(["f4", "f2", "i8", "?"]), hnp.array_shapes(min_dims=0, min_side=0, max_side=6)))
@settings(max_examples=25)
def test_strides_byte_order_and_chunks_do_not_matter(x: np.ndarray) -> None:
    names = {fingerprint(x), fingerprint(x.T.copy().T), fingerprint(x.astype(x.dtype.newbyteorder(">")))}
    names |= {fingerprint_bytes(x.dtype.name, x.shape, chunks) for chunks in ([x.tobytes()], map(bytes, _singly(x)))}
    assert len(names) == 1


def _singly(x: np.ndarray) -> list[list[int]]:
    return [[b] for b in x.tobytes()]


@pytest.mark.parametrize(
    ("x", "y", "is_same"),
    [
        (X, np.float32([1, 2, 3, 5]), False),
        (X, np.float32([2, 1, 3, 4]), False),
        (X, X.reshape(2, 2), False),
        (X, X.astype(np.float64), False),
        (X, X.view(np.int32), False),
        (X, X[:3], False),
        (np.float32([0.0]), np.float32([-0.0]), False),
        (np.float32([np.nan]), np.float32([np.nan]), True),
        (np.arange(1_000_001), np.arange(2_000_002)[:1_000_001], True),
        (np.arange(1_000_001), np.arange(1_000_001)[::-1], False),
    ],
)
def test_contents_shape_and_dtype_decide(x: np.ndarray, y: np.ndarray, is_same: bool) -> None:
    assert (fingerprint(x) == fingerprint(y)) is is_same


# --- weights


W = np.random.default_rng(0).standard_normal((3, 512, 130)).astype(np.float32)  # more than one chunk of numbers


def printed(x: np.ndarray) -> WeightPrint:
    return WeightPrint.parse(weight_print(x))


def test_a_weight_s_numbers_are_pinned() -> None:
    """They are in goldens that are kept for months."""
    found = printed(np.arange(-3, 70_000, dtype=np.float32))
    assert found.digits == fingerprint(np.arange(-3, 70_000, dtype=np.float32))
    assert found.numbers[:4].tolist() == [10692562.0, 34998.0, -3.0, 69999.0]
    assert found.counters[:3].tolist() == [4350492.0, -2252087.0, 2473006.0]


@pytest.mark.parametrize(
    ("make", "apart", "gain", "same"),
    [
        (lambda x: x, 0.0, 1.0, True),
        (lambda x: x + 1e-7 * np.abs(x), 1e-7, 1.0, True),
        (lambda x: 8 * x, 7.0, 8.0, False),
        (lambda x: -x, 2.0, -1.0, False),
        (lambda x: x + 0.3 * np.random.default_rng(1).standard_normal(x.shape), 0.3, None, False),
        (lambda x: x[:, ::-1], np.sqrt(2), None, True),
        (lambda x: np.roll(x, 256, 1), np.sqrt(2), None, True),
        (lambda x: x.swapaxes(1, 2), np.sqrt(2), None, True),
        (lambda x: np.roll(x, 1, 0), np.sqrt(2), None, True),
        (lambda x: np.random.default_rng(2).standard_normal(x.shape), np.sqrt(2), None, False),
        (np.zeros_like, 1.0, 0.0, False),
    ],
)
def test_how_a_weight_differs_is_seen_without_it(
    make: Callable[[np.ndarray], np.ndarray], apart: float, gain: float | None, same: bool
) -> None:
    a, b = printed(W), printed(np.ascontiguousarray(make(W), np.float32))
    assert a.apart(b) == pytest.approx(apart, rel=0.5)
    assert a.gain(b) == pytest.approx(gain, rel=1e-5) if gain is not None else np.isnan(a.gain(b))
    assert a.same_values(b) == same


def test_many_weights_have_the_prints_of_each_in_their_order() -> None:
    many = [(str(i), W[i % 3, i:]) for i in range(99)]
    reads = ((name, functools.partial(np.asarray, x)) for name, x in many)
    assert list(weight_prints(reads).items()) == [(name, weight_print(x)) for name, x in many]


@given(text=st.text(max_size=200))
def test_any_text_is_a_print_of_which_nothing_else_is_known(text: str) -> None:
    found = WeightPrint.parse(text)
    assert np.isnan(found.numbers).all() or len(text) > 100
    assert np.isnan(found.apart(printed(W))) or np.isfinite(found.numbers).all()


@pytest.mark.parametrize("x", [np.zeros(0, np.float32), np.full(4, np.nan, np.float32), np.float32(2), np.arange(5)])
def test_every_tensor_has_a_print(x: np.ndarray) -> None:
    assert printed(np.asarray(x)).digits == fingerprint(np.asarray(x))
