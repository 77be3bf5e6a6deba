"""Arithmetic of other machines on a CPU: products of lower precision, operations one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torchax
from jax.experimental import pallas as pl
from torch.nn import functional as F  # noqa: N812  (torch's own convention)
from torchax import interop

from parity.paths.jax.emulated import products
from parity.paths.jax.mended import mended
from parity.paths.stepwise import stepwise

# --- Products of lower precision on a CPU round as the torch path's emulation and a TPU's one or three passes do

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


# --- Norms and activations operation by operation

NARROW: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "layer_norm": lambda x: F.layer_norm(x, (64,), torch.full_like(x[0], 1.5), torch.full_like(x[0], 0.3)),
    "layer_norm module": lambda x: torch.nn.LayerNorm(64, elementwise_affine=False)(x),
    "rms_norm": lambda x: F.rms_norm(x, (64,), torch.full_like(x[0], 1.5), 1e-6),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("name", NARROW)
def test_rounds_more_often_and_computes_the_same(name: str) -> None:
    function = NARROW[name]
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    truth = function(x.float())

    def error(y: torch.Tensor) -> float:
        assert y.dtype == torch.bfloat16
        return float((y.float() - truth).norm() / truth.norm())

    with stepwise():
        rounded = function(x)
        assert torch.equal(function(x.float()), truth)  # fused, as ever, where nothing is narrow
    assert 1.1 * error(function(x)) < error(rounded) < 1e-2


def test_type_as_is_a_cast_that_can_be_undone() -> None:
    """torchax's own casts in place, and `float` of the result does nothing."""
    env = torchax.default_env()
    with env, mended(env):
        narrow, wide = (interop.torch_view(jnp.full((2, 3), 1.001, dtype)) for dtype in (jnp.bfloat16, jnp.float32))
        cast_ = wide.type_as(narrow)
        assert [x.float().dtype for x in (cast_, wide)] == [torch.float32] * 2
        assert (cast_.dtype, wide.dtype) == (torch.bfloat16, torch.float32)


def attended(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Attention whose queries and keys are normed and rotated in place, as CogView4's are."""
    q, k = (F.layer_norm((x @ w).unflatten(2, (2, 16)).transpose(1, 2), (16,)) for w in weights)
    for each in (q, k):
        part = each[:, :, 16:]
        each[:, :, 16:] = 0.3 * part + 0.7 * torch.cat([-part[..., 8:], part[..., :8]], -1)
    return F.scaled_dot_product_attention(q, k, x.unflatten(2, (2, 16)).transpose(1, 2))


def test_what_is_rotated_in_place_is_read_as_it_was() -> None:
    """XLA on a CPU writes into the tensor that it still reads."""
    torch.manual_seed(0)
    given, env = (torch.randn(1, 40, 32), torch.randn(2, 32, 32) / 6), torchax.default_env()
    with env, mended(env):
        found = interop.jax_jit(attended)(*interop.torch_view([jnp.asarray(x.numpy()) for x in given]))
    torch.testing.assert_close(torch.from_numpy(np.array(found.jax())), attended(*given))
