"""Reduce a large array on a TPU in one read of it: a Pallas kernel, on the part that each device holds.

Problem. What XLA makes of `on_jax` on a TPU reads a tensor several times and writes copies of it: slots of rows do not
fall on tiles of 8 or 16. A kernel has 16 MiB of fast memory on some chips. And each device of a mesh reads the whole of
a tensor that is replicated.

How. An array is walked over by runs of tokens that hold whole slots. Of each run the kernel takes the moments, and the
signed sums of its slots, one row a slot, as a product with a matrix of -1, 0 and 1: exact for bfloat16, of six passes
for float32; so many tokens at a time that all of it fits. What is not finite is masked for the product, its slots
marked afterwards. The sums are folded into counters outside of the kernel.

Under `shard_map` a device has its items of a batch, its heads and its tokens; of what it shares with others, it takes
the runs whose turn is its own. The parts add up: the sketch is linear. Each item of a batch is read where it lies.

Cost. One read of what a device holds, divided by the devices that hold the same.
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
from jax.sharding import Mesh, PartitionSpec

from parity.hooks.reduce.on_jax import laid_signs
from parity.sketch import BINS, PER_BIN, ROW_SALT, TOTAL, Geometry, geometry, signs

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


def reduce_on_mesh(
    x: jax.Array, start: int = 0, stop: int | None = None, *, mesh: Mesh, items: int = 1, interpret: bool = False
) -> list[dict[str, jax.Array]] | None:
    """As `on_jax.reduce` of each item of a traced [items, tokens, channels] or [items, tokens, heads, channels].

    Items are taken to lie over dp, tokens over sp and heads over tp, as attention has them; what an axis does not split
    is shared out among its devices.

    Args:
        x: or [tokens, channels], of which there is one.
        start, stop: of the tokens, where there is a first axis before them; None for the end.
        mesh: with the axes dp, sp and tp. interpret: the program does not go to a TPU.

    Returns:
        The reductions of each item, or None for what the kernel does not take.
    """
    if x.ndim == 2 and (start or stop not in (None, x.shape[1])):
        return None
    wide = x[None] if x.ndim == 2 else x
    if wide.ndim not in (3, 4) or wide.shape[0] != items:
        return None
    wide = wide[:, :, None] if wide.ndim == 3 else wide
    tokens = wide.shape[1]
    stop = tokens if stop is None or x.ndim == 2 else stop
    ways = int(mesh.shape["sp"])
    splits = (stop - start) % ways == 0 and tokens % ways != 0
    if splits or 2 * (stop - start) < tokens:  # to walk over all of it would cost more than a copy
        wide, start, stop = wide[:, start:stop], 0, stop - start
    runs = runs_of((stop - start, *wide.shape[2:]), str(x.dtype), start)
    if runs is None:
        return None
    sums, sketches = _over(wide.transpose(0, 2, 1, 3), runs, mesh, interpret)
    count = runs.whole.rows * runs.whole.channels
    size = jnp.asarray([count >> 31, count & 0x7FFFFFFF], jnp.int32)
    told = zip(map(_moments, sums), sketches, strict=True)
    return [{"sketch": s, "moments": m, "counts": jnp.concatenate([size, odd])} for (m, odd), s in told]


def _over(x: jax.Array, runs: Runs, mesh: Mesh, interpret: bool) -> tuple[jax.Array, jax.Array]:
    """Moments [items, 16] and sketches [items, EXACT] of an array [items, heads, tokens, channels] on a mesh."""
    (items, heads, tokens, _), sizes = x.shape, dict(mesh.shape)
    dp = "dp" if sizes["dp"] > 1 and items % sizes["dp"] == 0 else None
    sp = "sp" if sizes["sp"] > 1 and tokens % sizes["sp"] == 0 else None
    tp = "tp" if sizes["tp"] > 1 and heads % sizes["tp"] == 0 and heads > 1 else None
    shared = tuple(axis for axis in mesh.axis_names if axis not in (dp, sp, tp) and sizes[axis] > 1)
    axes = tuple(axis for axis in (sp, tp, *shared) if axis is not None)

    def local(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What one device adds: moments and its part of the sketches; summed over the mesh but for dp."""
        items, heads, tokens, channels = x.shape
        turn = lax.axis_index(shared) if shared else jnp.int32(0)
        number = -(-tokens // (runs.tokens * math.prod(sizes[axis] for axis in shared)))
        first_token = jnp.int32(0) if sp is None else lax.axis_index(sp) * tokens
        first_head = jnp.int32(0) if tp is None else lax.axis_index(tp) * heads
        slot = (row_of(first_token, turn * number, runs) - runs.ahead) // runs.whole.rows_per_slot
        merged = x.reshape(items * heads, tokens, channels)  # the whole of it for each item: a slice would be a copy
        places = [jnp.array([first_token, first_head, turn * number, i * heads], jnp.int32) for i in range(items)]
        each = [walked(merged, heads, place, runs, number, interpret) for place in places]
        sums, sketches = jnp.stack([s for s, _ in each]), jnp.stack([_folded(slots, slot, runs) for _, slots in each])
        if not axes:
            return sums, sketches
        extremes = lax.pmax(jnp.stack([-sums[:, 0], sums[:, 1]], 1), axes) * jnp.array([-1.0, 1.0])
        added = lax.psum(jnp.concatenate([sums[:, 2:], sketches], 1), axes)
        return jnp.concatenate([extremes, added[:, : SUMS - 2]], 1), added[:, SUMS - 2 :]

    if mesh.size == 1:
        return local(x)
    spec, own = PartitionSpec(dp, tp, sp), PartitionSpec(dp)
    return jax.shard_map(local, mesh=mesh, in_specs=(spec,), out_specs=own, check_vma=False)(x)


def _folded(slots: jax.Array, first: jax.Array, runs: Runs) -> jax.Array:
    """The sketch, float32 [EXACT], of the slots' sums [number, slots + 1 or more, channels] of consecutive runs.

    Args:
        first: the slot of the whole tensor that the first row is.
    """
    g, k = runs.whole, runs.slots
    number, _, channels = slots.shape
    # The last slot of a run may go on as the first of the next.
    tail = jnp.pad(slots[:, k : k + 1], ((0, 0), (0, k - 1), (0, 0)))
    rows = jnp.pad(slots[:, :k], ((0, 1), (0, 0), (0, 0))) + jnp.pad(tail, ((1, 0), (0, 0), (0, 0)))
    rows = rows.reshape((number + 1) * k, channels)
    slot = first + jnp.arange(rows.shape[0], dtype=jnp.int32)
    signed = rows * laid_signs(slot, channels)
    laid = jnp.pad(signed, ((0, 0), (0, g.width - channels))).reshape(-1)
    total = jnp.pad(laid, (0, -laid.size % TOTAL)).reshape(-1, TOTAL).sum(0)
    total = jnp.roll(total, first * g.width % TOTAL)
    return jnp.concatenate([total, _bins(signed, slot, g)])


def _bins(signed: jax.Array, slot: jax.Array, g: Geometry) -> jax.Array:
    """The counters of the bins, float32 [BINS * PER_BIN], of signed sums [rows, channels] of these slots.

    A slot's channels are folded into PER_BIN, by a product with zeros and ones, which stand by its place in its bin.
    """
    columns = jax.nn.one_hot(jnp.arange(g.channels) % PER_BIN, PER_BIN)
    each = jnp.dot(signed, columns, precision=lax.Precision.HIGHEST)
    turned = (slot % g.slots_per_bin * g.width)[:, None] + jnp.arange(PER_BIN)
    places = (slot // g.slots_per_bin)[:, None] * PER_BIN + turned % PER_BIN
    return jnp.where(places[..., None] == jnp.arange(BINS * PER_BIN), each[..., None], 0.0).sum((0, 1))


def _moments(sums: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`on_jax.reduce`'s moments, float32 [5], and NaNs and infinities, int32 [2]."""
    least, most, total, squares, small, large, nan, inf, part = sums[:9]
    tiny, huge = squares < 1e-30, ~jnp.isfinite(squares)
    unit = jnp.where(huge, SCALE, jnp.where(tiny, 1 / SCALE, 1.0))
    squares = jnp.where(huge, small, jnp.where(tiny, large, squares))
    total = jnp.where(huge, part, total / unit)
    moments = jnp.stack([least, most, total, squares, unit]).astype(jnp.float32)
    return moments, jnp.stack([nan, inf]).astype(jnp.int32)


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
    t, h = pl.program_id(1), pl.program_id(2)

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
        _some(place, x, sums, slots, runs, held, tokens)


def _some(
    place: jax.Array, x: jax.Array, sums: jax.Array, slots: jax.Array, runs: Runs, held: int, tokens: slice
) -> None:
    """Add what some tokens of a run give: see `_kernel`."""
    run, head = place[2] + pl.program_id(1), pl.program_id(2)
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
    sign = signs(begin + offset - runs.ahead, ROW_SALT)
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
