"""The Pallas kernel that reduces what one TPU device holds of an array, in one read: see `on_tpu`.

Problem. A tensor's slots of rows do not fall on tiles of 8 or 16, and a kernel has 16 MiB of fast memory on some chips.

How. An array is walked over by runs of tokens that hold whole slots. Of each run the kernel takes the moments, and the
signed sums of its slots as a product with a matrix of -1, 0 and 1: exact for bfloat16, of six passes for float32; so
many tokens at a time that all of it fits. What is not finite is masked for the product, its slots marked afterwards.

Cost. One read of what a device holds.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from parity.hooks.reduce.on_jax import signs
from parity.sketch import Geometry, geometry

MOST_SLOTS = 128
"""Of a run."""
MOST_MARKS = 1 << 20
"""Of the matrix that adds up a run's slots: slots times tokens."""
MOST_ELEMENTS = 1 << 19
"""Of a run's part with some of the channels: two megabytes in float32, of which a kernel holds several."""
AT_ONCE = 1024
"""Tokens of a run that a kernel takes at once: of 4,208 with 192 slots it would need 20 MiB of a v5p's 16."""

_LARGEST = float(np.finfo(np.float32).max)
SCALE = 2.0**90
"""Sums of squares are taken of x, x / 2^90 and x * 2^90: one of them neither overflows nor underflows."""
SUMS = 16
"""Rows of the moments: minimum, maximum, sum, three sums of squares, NaNs, infinities, sum of x / 2^90."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """How an array [heads, tokens, channels] is walked over.

    Attributes:
        whole: the geometry of the whole tensor [tokens, heads, channels]. heads: of the whole tensor.
        tokens: of a run. slots: of a run. channels: of a part of it.
        start: the token of the array that is the tensor's first.
    """

    whole: Geometry
    heads: int
    tokens: int
    slots: int
    channels: int
    start: int = 0

    @property
    def stop(self) -> int:
        """The token of the array that is no more the tensor's."""
        return self.start + self.whole.rows // self.heads

    @property
    def ahead(self) -> int:
        """Rows of whole slots, at least as many as come before the tensor's: added, no row's number is negative."""
        return -(-self.start * self.heads // self.whole.rows_per_slot) * self.whole.rows_per_slot


def runs_of(shape: tuple[int, ...], dtype: str, start: int = 0) -> Runs | None:
    """How a tensor is walked over; None where it is not, and `on_jax` has to do.

    Args:
        shape: [tokens, heads, channels]. start: the token of the array that is its first.
    """
    if dtype not in ("bfloat16", "float32"):
        return None
    (_, heads, channels), g = shape, geometry(shape)
    if g.exact:
        return None
    least = math.lcm(g.rows_per_slot // math.gcd(g.rows_per_slot, heads), 16)
    each = least * heads // g.rows_per_slot
    times = max(1, min(1024 // least, MOST_SLOTS // each))
    tokens, slots = least * times, each * times
    if _rows(slots) * tokens > MOST_MARKS:
        return None
    part = channels
    while tokens * part > MOST_ELEMENTS and part % 256 == 0:
        part //= 2
    if tokens * part > 4 * MOST_ELEMENTS:
        return None
    return Runs(whole=g, heads=heads, tokens=tokens, slots=slots, channels=part, start=start)


def _rows(slots: int) -> int:
    """Rows that hold a run's slots and the one that it shares with the next, filled up to a tile."""
    return -(-(slots + 1) // 8) * 8


def row_of(first_token: jax.Array, run: jax.Array, runs: Runs) -> jax.Array:
    """The number of a run's first row among the whole tensor's, `runs.ahead` added."""
    return (first_token + run * runs.tokens - runs.start) * runs.heads + runs.ahead


def walked(
    x: jax.Array, heads: int, place: jax.Array, runs: Runs, number: int, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    """The kernel over `number` runs from the run `place[2]` on: moments [16], and slots' sums [number, slots + 1, C].

    Args:
        x: [items * heads, tokens, channels]. heads: of an item.
        place: int32 [first token, first head, first run, where the item begins on the first axis].
    """
    _, tokens, channels = x.shape
    rows = _rows(runs.slots)
    last = -(-tokens // runs.tokens) - 1

    def where(c: jax.Array, t: jax.Array, h: jax.Array, place: jax.Array) -> tuple[jax.Array, ...]:
        return place[3] + h, jnp.minimum(place[2] + t, last), c

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(channels // runs.channels, number, heads),
        in_specs=[pl.BlockSpec((1, runs.tokens, runs.channels), where)],
        out_specs=[
            pl.BlockSpec((SUMS, runs.channels), lambda c, t, h, place: (0, c)),
            pl.BlockSpec((1, rows, runs.channels), lambda c, t, h, place: (t, 0, c)),
        ],
    )
    kernel = functools.partial(_kernel, runs=runs, held=tokens, rows=rows)
    size = x.dtype.itemsize * heads * number * runs.tokens * channels
    sums, slots = pl.pallas_call(
        kernel,
        grid_spec=spec,
        out_shape=[
            jax.ShapeDtypeStruct((SUMS, channels), jnp.float32),
            jax.ShapeDtypeStruct((number, rows, channels), jnp.float32),
        ],
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * size // x.dtype.itemsize,
            transcendentals=0,
            bytes_accessed=size + 4 * channels * (SUMS + number * rows),
        ),
        interpret=interpret,
        name="parity_reduce",
    )(place, x)
    return jnp.concatenate([sums[:1].min(1), sums[1:2].max(1), sums[2:].sum(1)]), slots


def _kernel(
    place: jax.Array, x: jax.Array, sums: jax.Array, slots: jax.Array, *, runs: Runs, held: int, rows: int
) -> None:
    """One run of one head: see `walked`.

    Args:
        held: tokens of the device. rows: of the slots' sums, filled up to tiles.
    """
    _, t, h = (pl.program_id(i) for i in range(3))
    run = place[2] + t

    @pl.when((t == 0) & (h == 0))
    def first() -> None:
        sums[0:1, :] = jnp.full((1, runs.channels), jnp.inf, jnp.float32)
        sums[1:2, :] = jnp.full((1, runs.channels), -jnp.inf, jnp.float32)
        sums[2:, :] = jnp.zeros((SUMS - 2, runs.channels), jnp.float32)

    @pl.when(h == 0)
    def clear() -> None:
        slots[0] = jnp.zeros((rows, runs.channels), jnp.float32)

    for at in range(0, runs.tokens, AT_ONCE):
        tokens = slice(at, min(at + AT_ONCE, runs.tokens))
        _some(place, x, sums, slots, runs=runs, held=held, run=run, head=h, tokens=tokens)


def _some(
    place: jax.Array,
    x: jax.Array,
    sums: jax.Array,
    slots: jax.Array,
    *,
    runs: Runs,
    held: int,
    run: jax.Array,
    head: jax.Array,
    tokens: slice,
) -> None:
    """Add what some tokens of a run give: see `_kernel`."""
    rows, count = slots.shape[1], tokens.stop - tokens.start
    local = lax.broadcasted_iota(jnp.int32, (count, 1), 0) + run * runs.tokens + tokens.start
    token = local + place[0]
    values = x[0, tokens].astype(jnp.float32)
    there = (local < held) & (token >= runs.start) & (token < runs.stop)
    values = jnp.where(there, values, 0.0)
    finite = jnp.abs(values) <= _LARGEST
    usual = jnp.where(finite, values, 0.0)
    counted = finite & there
    sums[0:1, :] = jnp.minimum(sums[0:1, :], jnp.where(counted, usual, jnp.inf).min(0, keepdims=True))
    sums[1:2, :] = jnp.maximum(sums[1:2, :], jnp.where(counted, usual, -jnp.inf).max(0, keepdims=True))
    nan = (values != values).astype(jnp.float32)
    odd = 1.0 - finite.astype(jnp.float32)
    small, large = usual / SCALE, usual * SCALE
    for i, each in enumerate((usual, usual * usual, small * small, large * large, nan, odd - nan, small), 2):
        sums[i : i + 1, :] += each.sum(0, keepdims=True)

    # Of the whole tensor's rows, those of this head: token * heads + head; slots count from that of the run's start.
    begin = row_of(place[0], run, runs)
    phase = lax.rem(begin, runs.whole.rows_per_slot)
    column = lax.broadcasted_iota(jnp.int32, (rows, count), 1) + tokens.start
    offset = column * runs.heads + place[1] + head
    sign = signs((begin + offset - runs.ahead).astype(jnp.uint32), 0x9E3779B9)
    slot = lax.broadcasted_iota(jnp.int32, (rows, count), 0) * runs.whole.rows_per_slot
    inside = (offset + phase >= slot) & (offset + phase < slot + runs.whole.rows_per_slot)
    matrix = jnp.where(inside, sign, 0.0)
    exact = lax.Precision.DEFAULT if x.dtype == jnp.bfloat16 else lax.Precision.HIGHEST
    slots[0] += jnp.dot(
        matrix.astype(x.dtype), usual.astype(x.dtype), precision=exact, preferred_element_type=jnp.float32
    )

    @pl.when(odd.max() > 0)
    def mark() -> None:
        marks = jnp.dot(inside.astype(jnp.bfloat16), odd.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
        slots[0] = jnp.where(marks > 0, jnp.nan, slots[0])
