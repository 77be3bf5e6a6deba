"""Reduce a jax array inside the program that computes it: its sketch and its order-blind moments.

Problem. Under `jax.jit` a hook sees tracers, once, so the reductions must become part of the traced program; on a mesh
they must not gather the tensor they reduce.

How. The same sums as in `parity.hooks.reduce_torch`: rows times their signs are added up within slots, on the tensor's
own axes wherever a slot does not straddle two of them, and all that follows works on what is left, [<= 2048 slots,
channels]: times the sign tile, padded to the sketch's stride between slots, and folded by reshapes into counters. Signs
are hashed from iotas in the program. Everything is an elementwise product and a sum in float32: no matrix product, as
TPUs round its operands to bfloat16. Moments are six sums and extrema in one variadic reduction, first over runs of
rows and then up a tree, so that float32 sums stay exact to some 1e-6 however long they are.

Cost. Two reads of the tensor, one for each of the two; some twenty small operations besides. Without 64-bit types.
`benchmarks/reduce.py` measures.

    extra = reduce(y)                      # in a traced function: return it beside the function's own result
    moments, sketch = to_host(extra)       # outside, with concrete arrays
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parity.golden.records import Moments
from parity.golden.sketch import BINS, PER_BIN, TILE, TOTAL, Geometry, geometry

_RUN = 16
"""Elements that one step of the moments' tree combines."""
_HUGE = 2.0**60
"""Elements from here on are summed apart, times `_SHRINK`: their squares, or even their sum, exceed float32."""
_SHRINK = 2.0**-80

Parts = tuple[jax.Array, ...]
_LEAST = float(-np.inf)
_MOST = float(np.inf)


def reduce(x: jax.Array) -> dict[str, jax.Array]:
    """Reduce an array to its sketch and moments; pure, to be called in traced functions or on concrete arrays.

    Args:
        x: any shape and real, complex, integer or bool dtype. Integers and float64 are rounded to float32; a complex
            array counts as its real view, the last axis twice as long.

    Returns:
        sketch: float32 [geometry(shape).size].
        moments: float32 [6]: minimum and maximum of the finite elements (inf and -inf where there are none), sum and
            sum of squares of those below 2^60, sum and sum of squares of the others times 2^-80.
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
    least, most, total, squares, huge, huge_squares = (float(v) for v in np.asarray(reduced["moments"]))
    mean = (total + huge / _SHRINK) / finite
    return Moments(count, nan, inf, least, most, mean, math.sqrt(squares + huge_squares / _SHRINK**2)), sketch


def _traced(x: jax.Array) -> dict[str, jax.Array]:
    x = jnp.asarray(x)
    if jnp.iscomplexobj(x):
        pairs = jnp.stack([x.real, x.imag], axis=-1)
        x = pairs.reshape(*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else pairs
    g = geometry(x.shape)
    count = g.rows * g.channels
    if count == 0:
        parts: Parts = _identity(())
        sketch = jnp.zeros(0, jnp.float32)
    else:
        rows = x.reshape(1, 1) if x.ndim == 0 else x[None] if x.ndim == 1 else x
        parts = _moments(rows)
        sketch = x.astype(jnp.float32).reshape(-1) if g.exact else _sketch(rows, g)
    counts = [jnp.asarray(n, jnp.int32) for n in (count >> 31, count & 0x7FFFFFFF)] + list(parts[6:])
    return {"sketch": sketch, "moments": jnp.stack(parts[:6]), "counts": jnp.stack(counts)}


_compiled = jax.jit(_traced)


def _in_runs(x: jax.Array, run: int) -> tuple[jax.Array, int]:
    """`x` [..., channels] with its rows in runs: [..., runs, run, channels], and how many zero rows that took.

    Axes are split, not merged, where the run divides the innermost one: a sharded axis then stays sharded.
    """
    if x.shape[-2] % run == 0:
        return x.reshape(*x.shape[:-2], x.shape[-2] // run, run, x.shape[-1]), 0
    flat = x.reshape(-1, x.shape[-1])
    padding = -flat.shape[0] % run
    if padding:
        flat = jnp.pad(flat, ((0, padding), (0, 0)))
    return flat.reshape(-1, run, x.shape[-1]), padding


def _sketch(x: jax.Array, g: Geometry) -> jax.Array:
    """The sketch of an array [..., channels] that is too large to be its own: float32 [EXACT]."""
    runs, _ = _in_runs(x, g.rows_per_slot)
    rows = lax.iota(jnp.uint32, math.prod(runs.shape[:-1])).reshape(*runs.shape[:-1], 1)
    slots = jnp.sum(runs.astype(jnp.float32) * _signs(rows, 0x9E3779B9), axis=-2).reshape(g.slots, g.channels)
    tile = _signs(lax.iota(jnp.uint32, TILE * g.channels).reshape(1, TILE, g.channels), 0x7F4A7C15)
    slots = jnp.pad(slots, ((0, -g.slots % TILE), (0, 0))).reshape(-1, TILE, g.channels) * tile
    slots = slots.reshape(-1, g.channels)[: g.slots]
    stride = g.slots_per_bin * g.width
    laid = jnp.pad(slots, ((0, g.bins * g.slots_per_bin - g.slots), (0, g.width - g.channels)))
    laid = jnp.pad(laid.reshape(g.bins, stride), ((0, 0), (0, -stride % TOTAL)))
    folded = laid.reshape(g.bins, -1, TOTAL).sum(1)
    bins = jnp.pad(folded.reshape(g.bins, -1, PER_BIN).sum(1), ((0, BINS - g.bins), (0, 0)))
    # Bin b starts at counter b * stride: rows longer by that remainder put each sum where its counter is, mod TOTAL.
    skewed = jnp.pad(folded, ((0, 0), (0, stride % TOTAL))).reshape(-1)
    total = jnp.pad(skewed, (0, -skewed.size % TOTAL)).reshape(-1, TOTAL).sum(0)
    return jnp.concatenate([total, bins.reshape(-1)])


def _signs(index: jax.Array, salt: int) -> jax.Array:
    """`parity.golden.sketch`'s sign of each uint32 index: float32 of -1 and 1."""
    h = index + jnp.uint32(salt)
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    # The last step of the hash, h ^ (h >> 16), leaves the top bit, the only one used, as it is.
    return 1.0 - 2.0 * (h >> 31).astype(jnp.float32)


def _identity(shape: tuple[int, ...]) -> Parts:
    """What `_combine` leaves everything else unchanged by."""
    floats = [jnp.full(shape, v, jnp.float32) for v in (_MOST, _LEAST, 0.0, 0.0, 0.0, 0.0)]
    return (*floats, *(jnp.zeros(shape, jnp.int32) for _ in range(2)))


def _combine(a: Parts, b: Parts) -> Parts:
    return (lax.min(a[0], b[0]), lax.max(a[1], b[1]), *(lax.add(v, w) for v, w in zip(a[2:], b[2:], strict=True)))


def _moments(x: jax.Array) -> Parts:
    """Moments of an array [..., channels]: six float32 scalars and two int32, as `reduce` returns them."""
    runs, padding = _in_runs(x, min(_RUN, x.shape[-2]))
    y = runs.astype(jnp.float32)
    finite = jnp.isfinite(y)
    real = finite
    if padding:
        rows = lax.broadcasted_iota(jnp.int32, y.shape[:-1], 0) * y.shape[-2]
        rows = rows + lax.broadcasted_iota(jnp.int32, y.shape[:-1], 1)
        real = finite & (rows < y.shape[0] * y.shape[1] - padding)[..., None]
    huge = finite & (jnp.abs(y) >= _HUGE)
    small = jnp.where(finite & ~huge, y, 0.0)
    large = jnp.where(huge, y, 0.0) * _SHRINK
    least, most = jnp.where(real, y, _MOST), jnp.where(real, y, _LEAST)
    nan, inf = jnp.isnan(y).astype(jnp.int32), jnp.isinf(y).astype(jnp.int32)
    parts = _fold((least, most, small, small * small, large, large * large, nan, inf), y.ndim - 2)
    parts = tuple(p.reshape(-1, p.shape[-1]) for p in parts)
    while parts[0].shape[0] > 1:
        parts = _shorten(parts)
    parts = tuple(p.reshape(-1, 1) for p in parts)
    while parts[0].shape[0] > 1:
        parts = _shorten(parts)
    return tuple(p.reshape(()) for p in parts)


def _shorten(parts: Parts) -> Parts:
    """One step up the tree: parts [n, channels] to [ceil(n / 16), channels]."""
    n, channels = parts[0].shape
    run = min(_RUN, n)
    if n % run:
        more = _identity((-n % run, channels))
        parts = tuple(jnp.concatenate([p, m]) for p, m in zip(parts, more, strict=True))
    return _fold(tuple(p.reshape(-1, run, channels) for p in parts), 1)


def _fold(parts: Parts, axis: int) -> Parts:
    return tuple(lax.reduce(parts, _identity(()), partial(_combine), (axis,)))
