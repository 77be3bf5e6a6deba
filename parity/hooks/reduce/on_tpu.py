"""Reduce a large array on a TPU in one read of it: a Pallas kernel, on the part that each device holds.

Problem. What XLA makes of `on_jax` on a TPU reads a tensor several times and writes copies of it: slots of rows do not
fall on tiles of 8 or 16. And each device of a mesh reads the whole of a tensor that is replicated.

How. A kernel (`tpu_kernel`) takes the moments and the signed sums of the slots, one row a slot; these are folded into
counters outside of it. Under `shard_map` a device has its items of a batch, its heads and its tokens; of what it shares
with others, it takes the runs whose turn is its own. The parts add up: the sketch is linear. Each item of a batch is
read where it lies.

Cost. One read of what a device holds, divided by the devices that hold the same.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from parity.hooks.reduce.on_jax import signs
from parity.hooks.reduce.tpu_kernel import SCALE, SUMS, Runs, row_of, runs_of, walked
from parity.sketch import BINS, PER_BIN, TOTAL, Geometry


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
    local = functools.partial(_local, runs=runs, split=(sp, tp), shared=shared, sizes=sizes, interpret=interpret)
    if mesh.size > 1:
        spec, own = PartitionSpec(dp, tp, sp), PartitionSpec(dp)
        local = jax.shard_map(local, mesh=mesh, in_specs=(spec,), out_specs=own, check_vma=False)
    found: tuple[jax.Array, jax.Array] = local(x)
    return found


def _local(
    x: jax.Array,
    *,
    runs: Runs,
    split: tuple[str | None, str | None],
    shared: tuple[str, ...],
    sizes: dict[str, int],
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """What one device adds: moments [items, 16] and its part of the sketches; summed over the mesh but for dp."""
    sp, tp = split
    items, heads, tokens, channels = x.shape
    turns, turn = 1, jnp.int32(0)
    for axis in shared:
        turns, turn = turns * sizes[axis], turn * sizes[axis] + lax.axis_index(axis)
    number = -(-tokens // (runs.tokens * turns))
    first_token = jnp.int32(0) if sp is None else lax.axis_index(sp) * tokens
    first_head = jnp.int32(0) if tp is None else lax.axis_index(tp) * heads
    slot = (row_of(first_token, turn * number, runs) - runs.ahead) // runs.whole.rows_per_slot
    merged = x.reshape(items * heads, tokens, channels)  # the whole of it for each item: a slice would be a copy
    places = [jnp.array([first_token, first_head, turn * number, i * heads], jnp.int32) for i in range(items)]
    each = [walked(merged, heads, place, runs, number, interpret) for place in places]
    sums, sketches = jnp.stack([s for s, _ in each]), jnp.stack([_folded(slots, slot, runs) for _, slots in each])
    axes = tuple(axis for axis in (sp, tp, *shared) if axis is not None)
    if not axes:
        return sums, sketches
    extremes = lax.pmax(jnp.stack([-sums[:, 0], sums[:, 1]], 1), axes) * jnp.array([-1.0, 1.0])
    added = lax.psum(jnp.concatenate([sums[:, 2:], sketches], 1), axes)
    return jnp.concatenate([extremes, added[:, : SUMS - 2]], 1), added[:, SUMS - 2 :]


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
    local = jnp.arange(rows.shape[0], dtype=jnp.int32)
    slot = local + first
    index = (slot % 32).astype(jnp.uint32)[:, None] * jnp.uint32(channels)
    signed = rows * signs(index + lax.broadcasted_iota(jnp.uint32, (1, channels), 1), 0x7F4A7C15)
    laid = jnp.pad(signed, ((0, 0), (0, g.width - channels))).reshape(-1)
    total = jnp.pad(laid, (0, -laid.size % TOTAL)).reshape(-1, TOTAL).sum(0)
    total = jnp.roll(total, first * g.width % TOTAL)
    return jnp.concatenate([total, _bins(signed, slot, g)])


def _bins(signed: jax.Array, slot: jax.Array, g: Geometry) -> jax.Array:
    """The counters of the bins, float32 [BINS * PER_BIN], of signed sums [rows, channels] of these slots.

    A slot's channels are folded into PER_BIN, then turned by its place in its bin and added up: three products with
    zeros and ones.
    """
    each = _product(signed, _equal(jnp.arange(g.channels) % PER_BIN, jnp.arange(PER_BIN)))
    turn = slot % g.slots_per_bin * g.width % PER_BIN
    places = slot // g.slots_per_bin * PER_BIN + turn
    by_turn = _product(_equal(jnp.arange(BINS * PER_BIN), places), each).reshape(BINS, PER_BIN * PER_BIN)
    turned = np.add.outer(np.arange(PER_BIN), np.arange(PER_BIN)).reshape(-1) % PER_BIN
    return _product(by_turn, _equal(jnp.asarray(turned), jnp.arange(PER_BIN))).reshape(-1)


def _equal(rows: jax.Array, columns: jax.Array) -> jax.Array:
    """float32 [rows, columns]: 1 where they are equal."""
    return (rows[:, None] == columns).astype(jnp.float32)


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.dot(x, y, precision=lax.Precision.HIGHEST)


def _moments(sums: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`on_jax.reduce`'s moments, float32 [5], and NaNs and infinities, int32 [2]."""
    least, most, total, squares, small, large, nan, inf, part = sums[:9]
    tiny, huge = squares < 1e-30, ~jnp.isfinite(squares)
    unit = jnp.where(huge, SCALE, jnp.where(tiny, 1 / SCALE, 1.0))
    squares = jnp.where(huge, small, jnp.where(tiny, large, squares))
    total = jnp.where(huge, part, total / unit)
    moments = jnp.stack([least, most, total, squares, unit]).astype(jnp.float32)
    return moments, jnp.stack([nan, inf]).astype(jnp.int32)
