"""Products of lower precision on a CPU round as the torch path's emulation and a TPU's one or three passes do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from parity.paths.jax.precision import products

A, B = (np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate([(16, 96), (96, 8)]))


def bfloat16(x: np.ndarray) -> np.ndarray:
    return np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32))


def rounded(x: np.ndarray, precision: str) -> np.ndarray:
    large = bfloat16(x)
    return {"highest": x, "high": large + bfloat16(x - large), "default": large}[precision].astype(np.float64)


def in_a_kernel(a: Any, b: Any) -> Any:
    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = jnp.dot(x[...], y[...])

    shape = jax.ShapeDtypeStruct((16, 8), jnp.float32)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(a, b)


@pytest.mark.parametrize("precision", ["highest", "high", "default"])
@pytest.mark.parametrize("product", [jnp.matmul, jax.jit(lambda a, b: jnp.einsum("ij,jk->ik", a, b)), in_a_kernel])
def test_operands_are_rounded(product: Callable[..., Any], precision: str) -> None:
    with products(precision):
        found = np.asarray(product(jnp.asarray(A), jnp.asarray(B)), np.float64)
    expected = rounded(A, precision) @ rounded(B, precision)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    other = A.astype(np.float64) @ B
    assert (np.abs(found - other).max() > 1e-3 * np.abs(other).max()) == (precision == "default")
