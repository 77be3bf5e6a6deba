"""Equal contents have equal names, whatever the strides, byte order or chunks; anything else another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from parity.golden import fingerprint, fingerprint_bytes


def test_pinned() -> None:
    """Fingerprints are in goldens that are kept for months: they must not change."""
    assert fingerprint(np.arange(6, dtype=np.float32).reshape(2, 3)) == "9b536f547091a7da"
    assert fingerprint(np.zeros((0, 4), np.int64)) == "44b85660cab2b127"


@given(hnp.arrays(st.sampled_from(["f4", "f2", "i8", "?"]), hnp.array_shapes(min_dims=0, min_side=0, max_side=6)))
def test_strides_and_byte_order_do_not_matter(x: np.ndarray) -> None:
    name = fingerprint(x)
    assert len(name) == 16
    assert int(name, 16) >= 0
    assert fingerprint(x.T.copy().T) == name
    assert fingerprint(x.astype(x.dtype.newbyteorder(">"))) == name
    assert fingerprint_bytes(x.dtype.name, x.shape, [x.tobytes()]) == name
    assert fingerprint_bytes(x.dtype.name, x.shape, (bytes([b]) for b in x.tobytes())) == name


@pytest.mark.parametrize(
    "other",
    [
        np.float32([1, 2, 3, 5]),
        np.float32([2, 1, 3, 4]),
        np.float32([[1, 2], [3, 4]]),
        np.float64([1, 2, 3, 4]),
        np.float32([1, 2, 3, 4]).view(np.int32),
        np.float32([1, 2, 3]),
    ],
)
def test_other_contents_shapes_and_dtypes_have_other_names(other: np.ndarray) -> None:
    assert fingerprint(other) != fingerprint(np.float32([1, 2, 3, 4]))


def test_signed_zero_and_nan_are_bits() -> None:
    assert fingerprint(np.float32([0.0])) != fingerprint(np.float32([-0.0]))
    assert fingerprint(np.float32([np.nan])) == fingerprint(np.float32([np.nan]))


def test_bfloat16_of_torch_and_of_jax_agree() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(5).astype(ml_dtypes.bfloat16)
    assert fingerprint(x) == fingerprint(x.view(np.uint16), "bfloat16")
    assert fingerprint(x) == fingerprint_bytes("bfloat16", (5,), [x.tobytes()])


def test_more_than_one_block() -> None:
    x = np.arange(1_000_001, dtype=np.int32)
    assert fingerprint(x) == fingerprint_bytes("int32", x.shape, [x.tobytes()])
    assert fingerprint(x[::-1]) == fingerprint_bytes("int32", x.shape, [x[::-1].tobytes()])
