"""A TPU's products emulated on JAX's CPU, as `matmul_precision` says.

Problem. XLA's CPU computes every product in full float32, whatever precision was asked for; a TPU rounds the operands
of a `default` product to bfloat16, and takes three bfloat16 passes for `high`, which keep about 16 bits. So a port that
is a percent off on a TPU agrees here to the last bits.

How. Rules that lower operations for the CPU: below tracing, so nothing escapes them, kernels in interpret mode
included. Products and convolutions round their float32 operands first where the program asks for `default` or `high`
(`jax.default_matmul_precision` in a side's scope, or an argument); `reduce_precision` is what XLA never folds away, as
it does a cast to bfloat16 and back. The same as `parity.paths.reference` on the torch path.

Not emulated: what a TPU keeps in float32 inside a fusion, the order of its sums, the six passes of a `highest` product
(dropped terms of 2^-24).

Cost. Two passes over each operand.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

# The rules to go on with have no public name.
from jax._src.interpreters.mlir import _platform_specific_lowerings
from jax.interpreters import mlir
from jax.lax import Precision, conv_general_dilated_p, dot_general_p


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """Within it, float32 products are of a precision: `highest`, `high` or `default`."""
    if precision != "highest":
        _round_on_cpu()
    with jax.default_matmul_precision(precision):
        yield


@functools.cache
def _round_on_cpu() -> None:
    """Round the operands of this process's products on a CPU, once for all; those of `highest` are left alone."""
    for product in (dot_general_p, conv_general_dilated_p):
        exact = _platform_specific_lowerings["cpu"][product].rule
        mlir.register_lowering(product, functools.partial(_product_lowered, exact), platform="cpu")


def _product_lowered(exact: Any, context: Any, *operands: Any, **parameters: Any) -> Any:
    """A product's lowering, with its two operands rounded before it."""
    asked = parameters["precision"]
    precisions = asked if isinstance(asked, tuple) else (asked, asked)
    rounded = [
        _rounded(context, x, aval, precision)
        for x, aval, precision in zip(operands, context.avals_in, precisions, strict=True)
    ]
    return exact(context, *rounded, **parameters)


def _rounded(context: Any, x: Any, aval: Any, precision: Any) -> Any:
    if aval.dtype != jnp.float32 or precision not in _ROUNDINGS:
        return x
    rounding = mlir.lower_fun(_ROUNDINGS[precision], multiple_results=False)
    return rounding(context.replace(avals_in=[aval], avals_out=[aval], primitive=None), x)[0]


def _one_pass(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _three_passes(x: jax.Array) -> jax.Array:
    large = _one_pass(x)
    return large + _one_pass(x - large)


_ROUNDINGS = {Precision.DEFAULT: _one_pass, Precision.HIGH: _three_passes}
