"""Equal contents have equal fingerprints, whatever the strides, byte order or chunks; anything else has another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from parity.golden import fingerprint, fingerprint_bytes

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
