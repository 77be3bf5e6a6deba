"""Reduce a jax array inside the program that computes it: its sketch and its order-blind moments.

Problem. Under `jax.jit` a hook sees tracers, once, so the reductions must become part of the traced program; on a mesh
they must not gather the tensor they reduce.

How. The same sums as in `on_torch`: rows times their signs are added up within slots, on the tensor's
own axes wherever a slot does not straddle two of them, and all that follows works on what is left, [<= 2048 slots,
channels]: times the sign tile, padded to the sketch's stride between slots, and folded by reshapes into counters. Signs
are hashed from iotas in the program. Everything is an elementwise product and a sum in float32: no matrix product, as
TPUs round its operands to bfloat16. The moments are plain sums and extrema, which XLA reduces fast and as trees; only
where their sums are not finite does a `lax.cond` count NaNs and infinities and mask them out.

Cost. On a CPU one read of the tensor for each of four moments and one for the sketch; some thirty small operations. Not
measured on an accelerator.

    extra = reduce(y)                      # in a traced function: return it beside the function's own result
    moments, sketch = to_host(extra)       # outside, with concrete arrays
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parity.records import Moments
from parity.sketch import BINS, PER_BIN, TILE, TOTAL, Geometry, geometry

FEW_ROWS = 8
"""Rows of a slot up to which they are added one by one."""

FEW, SMALL = 4, 1 << 14
"""Members of a stack, and elements of each, below which all are sketched at once."""
_TINY = 1e-30
"""A sum of squares below this has lost some of them to underflow."""


def reduce(x: jax.Array) -> dict[str, jax.Array]:
    """Reduce an array to its sketch and moments; pure, to be called in traced functions or on concrete arrays.

    Args:
        x: any shape and real, complex, integer or bool dtype. Integers and float64 are rounded to float32; a complex
            array counts as its real view, the last axis twice as long.

    Returns:
        sketch: float32 [geometry(shape).size].
        moments: float32 [5]: minimum and maximum of the finite elements (inf and -inf where there are none), their sum
            and sum of squares in units of the fifth number, a power of two: 1 unless a sum leaves float32's range.
        counts: int32 [4]: elements // 2^31, elements % 2^31, NaNs, infinities.
    """
    return _traced(x) if isinstance(x, jax.core.Tracer) else _compiled(x)


def to_host(reduced: Mapping[str, jax.Array]) -> tuple[Moments, np.ndarray]:
    """A concrete result of `reduce` on the host: its moments and its sketch, float32 [geometry(shape).size].

    A nest of many results transfers at once as `jax.device_get(results)`, whose numpy arrays this takes as well.
    """
    high, low, nan, inf = (int(n) for n in np.asarray(reduced["counts"]))
    count = (high << 31) + low
    finite = count - nan - inf
    sketch = np.asarray(reduced["sketch"])
    if finite == 0:
        return Moments(count, nan, inf, 0.0, 0.0, 0.0, 0.0), sketch
    least, most, total, squares, unit = (float(v) for v in np.asarray(reduced["moments"]))
    return Moments(count, nan, inf, least, most, total * unit / finite, math.sqrt(squares) * unit), sketch


def _traced(x: jax.Array) -> dict[str, jax.Array]:
    x = jnp.asarray(x)
    if jnp.iscomplexobj(x):
        pairs = jnp.stack([x.real, x.imag], axis=-1)
        x = pairs.reshape(*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else pairs
    g = geometry(x.shape)
    count = g.rows * g.channels
    if count == 0:
        sketch, moments, found = jnp.zeros(0, jnp.float32), jnp.zeros(5, jnp.float32), jnp.zeros(2, jnp.int32)
    else:
        moments, found = _moments(x)
        sketch = x.astype(jnp.float32).reshape(-1) if g.exact else _sketcher(g)(x if x.ndim > 1 else x[None])
    size = jnp.asarray([count >> 31, count & 0x7FFFFFFF], jnp.int32)
    return {"sketch": sketch, "moments": moments, "counts": jnp.concatenate([size, found])}


_compiled = jax.jit(_traced)


@jax.custom_batching.custom_vmap
def _moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`reduce`'s moments, float32 [5], and the numbers of NaNs and infinities, int32 [2], of an array not empty."""
    moments, usual = _plain_moments(x)
    return lax.cond(usual, lambda _: (moments, jnp.zeros(2, jnp.int32)), _careful_moments, x)


@_moments.def_vmap
def _moments_of_many(
    axis_size: int, in_batched: list[bool], x: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple[bool, bool]]:
    """One condition for the whole batch: `vmap` by itself would take both of its branches, always."""
    moments, usual = jax.vmap(_plain_moments)(x)
    found = jnp.zeros((axis_size, 2), jnp.int32)
    return lax.cond(usual.all(), lambda _: (moments, found), jax.vmap(_careful_moments), x), (True, True)


def _plain_moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The moments if all is finite and no sum leaves float32's range, and whether that is so."""
    # Extrema without a cast, and the second sum behind a barrier: XLA on CPUs stores a cast that two reductions share.
    least, most = (v.astype(jnp.float32) for v in (x.min(), x.max()))
    total = jnp.sum(x, dtype=jnp.float32)
    again, total = lax.optimization_barrier((x, total))
    squares = jnp.sum(jnp.square(again.astype(jnp.float32)))
    # A sum shows every NaN and infinity; an extremum need not: XLA's on CPUs pass over NaN.
    usual = jnp.isfinite(total) & jnp.isfinite(squares) & ((squares > _TINY) | ((least == 0) & (most == 0)))
    return jnp.stack([least, most, total, squares, jnp.float32(1)]), usual


def _careful_moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = x.astype(jnp.float32)
    finite = jnp.isfinite(y)
    y_or_zero = jnp.where(finite, y, 0)
    # The largest magnitude becomes 1 to 2, by division: the reciprocal of 2^127 is no normal number.
    _, exponent = jnp.frexp(jnp.max(jnp.abs(y_or_zero)))
    unit = jnp.ldexp(jnp.float32(1), jnp.clip(exponent - 1, -120, 127))
    scaled = y_or_zero / unit
    moments = jnp.stack(
        [
            jnp.min(jnp.where(finite, y, jnp.inf)),
            jnp.max(jnp.where(finite, y, -jnp.inf)),
            scaled.sum(),
            jnp.sum(scaled * scaled),
            unit,
        ]
    )
    return moments, jnp.stack([jnp.sum(jnp.isnan(y), dtype=jnp.int32), jnp.sum(jnp.isinf(y), dtype=jnp.int32)])


@functools.lru_cache(maxsize=1024)
def _sketcher(g: Geometry) -> Callable[[jax.Array], jax.Array]:
    """`_sketch` for this geometry. Of a stack, on one CPU, it is taken member after member, unless these are small:
    each then stays in the processor's cache, where a stack is written and read several times."""
    sketch = functools.partial(_sketch, g=g)
    one = jax.custom_batching.custom_vmap(sketch)

    @one.def_vmap
    def many(axis_size: int, in_batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
        del axis_size, in_batched
        together = jax.vmap(sketch)
        if jax.device_count() > 1 or x.shape[0] < FEW or x[0].size < SMALL:
            return together(x), True
        return lax.platform_dependent(x, cpu=functools.partial(lax.map, sketch), default=together), True

    return one


def _sketch(x: jax.Array, g: Geometry) -> jax.Array:
    """The sketch of an array [..., rows, channels] that is too large to be its own: float32 [EXACT]."""
    slots = _laid_signs(g) * _slots(x, g)
    stride = g.slots_per_bin * g.width
    slots = jnp.pad(slots, ((0, g.bins * g.slots_per_bin - g.slots), (0, g.width - g.channels)))
    # XLA on a CPU makes fast loops of the product with its layout and of the sums, and a slow one of all that together.
    laid = lax.optimization_barrier(slots).reshape(g.bins, stride)
    whole = stride // TOTAL * TOTAL
    folded = jnp.pad(laid[:, whole:], ((0, 0), (0, TOTAL - (stride - whole))))
    folded = folded + laid[:, :whole].reshape(g.bins, -1, TOTAL).sum(1) if whole else folded
    bins = jnp.pad(folded.reshape(g.bins, -1, PER_BIN).sum(1), ((0, BINS - g.bins), (0, 0)))
    # Bin b starts at counter b * stride: rows longer by that remainder put each sum where its counter is, mod TOTAL.
    skewed = jnp.pad(folded, ((0, 0), (0, stride % TOTAL))).reshape(-1)
    total = jnp.pad(skewed, (0, -skewed.size % TOTAL)).reshape(-1, TOTAL).sum(0)
    return jnp.concatenate([total, bins.reshape(-1)])


def _slots(x: jax.Array, g: Geometry) -> jax.Array:
    """Rows of [..., rows, channels] times their signs, added up by slot: float32 [slots, channels].

    A slot's rows become an axis of their own by splitting the rows where that is possible: a sharded axis then stays
    sharded. Where slots straddle the next axis (or the last is short), the rows of all axes are merged first.
    """
    run = g.rows_per_slot
    if x.shape[-2] % run:
        x = jnp.pad(x.reshape(-1, g.channels), ((0, -g.rows % run), (0, 0)))
    # Behind the barrier the product is fused into the sum; without it XLA on CPUs stores it, as large as the tensor.
    runs = lax.optimization_barrier(x.reshape(*x.shape[:-2], x.shape[-2] // run, run, g.channels))
    rows = lax.iota(jnp.uint32, g.slots * run).reshape(*runs.shape[:-1], 1)
    signed = runs.astype(jnp.float32) * signs(rows, 0x9E3779B9)
    if run <= FEW_ROWS:
        # Not a reduction: XLA on CPUs (jax 0.10.2) sums batched axes of two rows wrongly, [2, 16, 9, 8, 2, 32] for one,
        # and reads what nobody wrote (`tests/hooks/test_reduce.py`).
        summed = signed[..., 0, :]
        for i in range(1, run):
            summed = summed + signed[..., i, :]
    else:
        summed = jnp.sum(signed, axis=-2)
    return summed.reshape(g.slots, g.channels)


def _laid_signs(g: Geometry) -> jax.Array:
    """The sign tile's entry for each slot and channel, float32 [slots, channels]; XLA computes it where it is used."""
    slot = lax.broadcasted_iota(jnp.uint32, (g.slots, g.channels), 0)
    channel = lax.broadcasted_iota(jnp.uint32, (g.slots, g.channels), 1)
    return signs(slot % TILE * jnp.uint32(g.channels) + channel, 0x7F4A7C15)


def signs(index: jax.Array, salt: int) -> jax.Array:
    """`parity.sketch`'s sign of each uint32 index: float32 of -1 and 1."""
    h = index + jnp.uint32(salt)
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    # The last step of the hash, h ^ (h >> 16), leaves the top bit, the only one used, as it is.
    return 1.0 - 2.0 * (h >> 31).astype(jnp.float32)
