"""What a TPU computes otherwise than a CPU, emulated on JAX's CPU: products as `matmul_precision` says, elementary
functions as `tpu` says.

Problem. XLA's CPU computes every product in full float32, whatever precision was asked for; a TPU rounds the operands
of a `default` product to bfloat16, and takes three bfloat16 passes for `high`, which keep about 16 bits. So a port that
is a percent off on a TPU agrees here to the last bits. And what a port gives on a TPU holds what the chip's exp, tanh
and division err by; a CPU's are exact to an ulp.

How. Rules that lower operations for the CPU: below tracing, so nothing escapes them, kernels in interpret mode
included. Products and convolutions round their float32 operands first where the program asks for `default` or `high`
(`jax.default_matmul_precision` in a side's scope, or an argument); `reduce_precision` is what XLA never folds away, as
it does a cast to bfloat16 and back. The same as `parity.paths.reference` on the torch path. A function's result moves,
within the published bounds of the chip (`parity.settings.chips`), by a number that follows from the arguments' bits:
the same argument errs alike everywhere, as on a chip.

Not emulated: what a TPU keeps in float32 inside a fusion, the order of its sums, the sign and course of a real chip's
error, bfloat16 and float16 functions (whose rounding is larger), the six passes of a `highest` product (dropped terms
of 2^-24).

Cost. Two passes over each operand, ten elementwise operations for each function.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

# The rules to go on with have no public name, nor have many functions' primitives.
from jax._src.interpreters.mlir import _lowerings, _platform_specific_lowerings
from jax._src.lax import lax as _lax, special as _special
from jax.interpreters import mlir
from jax.lax import Precision, conv_general_dilated_p, dot_general_p
from jaxlib.mlir.dialects import stablehlo

from parity.errors import UsageError
from parity.paths.jax.mesh import Devices
from parity.settings.chips import CHIPS, EPS, LIMITS, NO_CHIP, chip_of


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


@contextlib.contextmanager
def elementary(chip: str, devices: Devices) -> Iterator[None]:
    """Within it, float32 elementary functions on a CPU err as the chip's may; on that chip they are its own.

    Args:
        chip: a key of `CHIPS`. devices: where the program runs.

    Raises:
        UsageError: they are neither a CPU nor that chip.
    """
    if chip == NO_CHIP or chip_of(devices.kind) == chip:
        yield
        return
    if devices.platform != "cpu":
        raise UsageError(f"'tpu={chip}' is for that chip, or a CPU that errs as it does; JAX runs on '{devices.kind}'")
    with _erring_on_cpu()(chip):
        yield


@functools.cache
def _erring_on_cpu() -> Any:
    """Have this process's elementary functions err on a CPU, once for all; without a chip they are left alone.

    Returns:
        The context that says which chip, part of the key of what JAX keeps compiled.
    """
    if not hasattr(jax, "make_user_context"):
        raise UsageError(f"'tpu' needs a newer JAX than {jax.__version__}, whose programs it cannot distinguish")
    chip = jax.make_user_context(NO_CHIP)
    for name in CHIPS["v6e"]:
        function = getattr(_lax, f"{name}_p", None) or getattr(_special, f"{name}_p")
        rule = functools.partial(_function_lowered, name, chip, _lowerings[function].rule)
        mlir.register_lowering(function, rule, platform="cpu")
    return chip


def _function_lowered(name: str, chip: Any, exact: Any, context: Any, *operands: Any, **parameters: Any) -> Any:
    """A function's lowering, with its result moved."""
    bounds = CHIPS[chip.value]
    (out,) = context.avals_out
    if name not in bounds or out.dtype != jnp.float32 or _by_a_constant(name, context):
        return exact(context, *operands, **parameters)
    # JAX makes the logistic function of exp and a division, which would err as well; XLA has one of its own.
    whole = name == "logistic"
    # A copy of the context: some rules leave their mark in it.
    given = [stablehlo.logistic(*operands)] if whole else exact(context.replace(), *operands, **parameters)
    moving = mlir.lower_fun(functools.partial(_moved, name, bounds[name]), multiple_results=False)
    avals = [out, *context.avals_in]
    return moving(context.replace(avals_in=avals, primitive=None), *given, *operands)


def _by_a_constant(name: str, context: Any) -> bool:
    """Whether it divides by a constant, or takes a power of one: XLA multiplies, which is rounded as anywhere.

    What is traced is broadcast first; a scalar beside an array is a literal.
    """
    return name in ("div", "pow") and context.avals_in[1].shape == () and context.avals_in[0].shape != ()


def _moved(name: str, bound: Any, result: jax.Array, *arguments: jax.Array) -> jax.Array:
    """A result moved within its bound; infinities and NaN stay."""
    draw = _draw(*arguments)
    moved = result + draw * (bound.absolute + bound.relative * EPS * jnp.abs(result))
    if name in LIMITS:
        moved = jnp.clip(moved, *LIMITS[name])
    return jnp.where(jnp.isfinite(result), moved, result)


def _draw(*arguments: jax.Array) -> jax.Array:
    """A number between -1 and 1 that follows from the bits of the arguments (Murmur3's finaliser)."""
    bits = jnp.zeros(arguments[0].shape, jnp.uint32)
    for x in arguments:
        bits = bits * jnp.uint32(31) + jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> jnp.uint32(shift))) * jnp.uint32(factor)
    bits ^= bits >> jnp.uint32(16)
    return bits.astype(jnp.int32).astype(jnp.float32) * jnp.float32(2.0**-31)
