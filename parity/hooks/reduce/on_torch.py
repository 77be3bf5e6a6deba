"""Reduce a torch tensor where it lies: its sketch and its order-blind moments.

Problem. Observing a run means reducing the input and output of every module. Done as one would write it down, each
sketch needs sign and index tables as large as the tensor, and each moment one more pass over it.

How. The tensor is walked in runs of rows, so that casts and signed values need scratch of one run only:
the rows of a slot are multiplied by their signs and added up. What is left, [<= 2048 slots, channels] times the sign
tile, is laid out with the sketch's stride between slots, so that every counter becomes a plain sum over a reshape: each
bin folds to 1,536 sums, from which come both its own counters and, skewed by where the bin starts, those of the whole
tensor. Only elementwise products and sums are used: a matrix product would round its operands under
`torch.set_float32_matmul_precision` or TF32.

Cost. On a CPU four to eight norms of the tensor in float32, and up to four times 16 MB of scratch. On CUDA
some forty kernels, no host sync, scratch of a few times the tensor or of 2^26 elements, whichever is less, and one
transfer for any number of reductions (`to_host_many`).

A tensor may be split over processes (DTensor): each reduces its own block, and the blocks' reductions add up. Signs
of a sketch come from the global index (`parity.sketch`), so that a block's sketch is the part that it contributes to
the whole's; counts and sums of squares add anyway. `parity.golden.disk.shards` does the adding. Cost: the sketch of a
block is that of numpy's definition, on the host.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from parity.hooks.tap import Entry, Item
from parity.hooks.torchtools import real
from parity.records import Key, Moments, Record
from parity.sketch import BINS, PER_BIN, ROW_SALT, TILE, TILE_SALT, TOTAL, Geometry, geometry, of_sums, signs, sketch

_CPU_RUN = 1 << 19
"""Elements of a run for each CPU thread: smaller ones are no faster, and each costs some ten parallel regions."""
_CPU_RUN_MOST = 1 << 22
"""Elements of a run on a CPU of many threads, so that scratch stays small."""
_CUDA_RUN = 1 << 26
"""Elements of a run on an accelerator, where launches cost more than bytes."""
_WHOLE = 1 << 22
"""Elements up to which a tensor whose rows are no view is copied as a whole, which is faster."""
_PARTS = 6
"""Columns of `Reduced.moments`."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """What is left of a tensor, still on its device.

    Attributes:
        shape: that the sketch was taken over: the tensor's; of a complex one that of its real view (last axis doubled).
        sketch: float32 [geometry(shape).size].
        moments: float64 [runs, 6] of each run's NaNs, infinities, and its finite elements' minimum, maximum (inf and
            -inf where it has none), sum and sum of squares, which `to_host_many` combines; float32 [runs, 8] on a
            device without float64 (`_unscaled`).
    """

    shape: tuple[int, ...]
    sketch: torch.Tensor
    moments: torch.Tensor


OnHost = tuple[Moments, np.ndarray]
"""A tensor's moments and its sketch, float32 [geometry(shape).size]."""


@torch.no_grad()
def reduce(x: torch.Tensor) -> Reduced:
    """Reduce a tensor to its sketch and moments, on its own device.

    The tensor is only read; neither autograd, the random generators nor any global setting is touched. float64 and
    integers are accumulated in float64, all else in float32, moments that leave float32's range in float64 too.

    Args:
        x: any shape, strides and real, complex, integer or bool dtype.

    Raises:
        TypeError: `x` is sparse, nested, quantised or without data, so that there is nothing to walk.
    """
    # Function modes (the tap's own among them) would look at each of some forty small operations.
    with torch._C.DisableTorchFunction():
        if x.layout is not torch.strided or x.is_quantized or x.is_meta or x.is_nested:
            raise TypeError(
                f"cannot reduce a tensor of layout {x.layout}, dtype {x.dtype} on {x.device}: pass a dense one"
            )
        x = real(x.detach())
        x = x.float() if x.is_floating_point() and x.itemsize == 1 else x  # nothing can be computed in 8 bits
        shape = tuple(x.shape)
        g = geometry(shape)
        wide = x.dtype is torch.float64 or not x.dtype.is_floating_point
        if wide and not has_float64(x.device):
            x = x.cpu()
        dtype = torch.float64 if wide else torch.float32
        if x.numel() == 0:
            return Reduced(shape, torch.zeros(0), torch.zeros((0, _PARTS), dtype=torch.float64))
        if g.exact:
            values = x.to(dtype).reshape(-1)
            sketch = values.to(torch.float32, copy=True)
            return Reduced(shape, sketch, _moments(values)[None])
        sketch, moments = _walk(x, g, dtype)
        return Reduced(shape, sketch, torch.stack(moments))


def to_host_many(reduced: Sequence[Reduced]) -> list[OnHost]:
    """Reductions on the host, in order, with one transfer for each device they lie on."""
    host: dict[int, OnHost] = {}
    by_device: dict[torch.device, list[int]] = {}
    for i, r in enumerate(reduced):
        by_device.setdefault(r.sketch.device, []).append(i)
    for members in by_device.values():
        # A float64 travels as two float32 beside the sketches: the bits are copied, not converted.
        parts = [p for i in members for p in (reduced[i].sketch, reduced[i].moments.reshape(-1).view(torch.float32))]
        flat = torch.cat(parts).cpu().split([p.numel() for p in parts])
        for i, counters, numbers in zip(members, flat[::2], flat[1::2], strict=True):
            r, moments = reduced[i], numbers.clone()
            found = (
                moments.view(torch.float64).numpy() if r.moments.dtype == torch.float64 else _unscaled(moments.numpy())
            )
            host[i] = _combine(math.prod(r.shape), found.reshape(-1, _PARTS)), counters.clone().numpy()
    return [host[i] for i in range(len(reduced))]


@functools.lru_cache(maxsize=16)
def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64; MPS and TPUs do not."""
    try:
        return torch.zeros(1, dtype=torch.float64, device=device).dtype == torch.float64
    except Exception:  # each backend has its own
        return False


def _walk(x: torch.Tensor, g: Geometry, dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The sketch of a tensor too large to be its own, float32 [EXACT], and the moments of each run."""
    run = g.rows_per_slot
    on_cpu = min(_CPU_RUN * torch.get_num_threads(), _CPU_RUN_MOST)
    least = math.lcm(TILE, g.slots_per_bin)  # slots from one place that begins a bin and the sign tile to the next
    each = least * max(1, (on_cpu if x.device.type == "cpu" else _CUDA_RUN) // (least * run * g.channels))
    moments: list[torch.Tensor] = []
    folded = []
    for first in range(0, g.slots, each):
        start, stop = first * run, min((first + each) * run, g.rows)
        values = _rows(x, start, stop).to(dtype).contiguous()
        moments.append(_moments(values))
        folded.append(_folded(values, _row_signs(start, stop, x.device, dtype), g))
    bins = torch.cat(folded)
    # Bin b starts at counter b * stride: rows longer by that remainder put each sum where its counter is, mod TOTAL.
    skewed = pad(bins, (0, g.slots_per_bin * g.width % TOTAL)).view(-1)
    total = pad(skewed, (0, -skewed.numel() % TOTAL)).view(-1, TOTAL).sum(0)
    bins = pad(bins.view(g.bins, -1, PER_BIN).sum(1), (0, 0, 0, BINS - g.bins))
    return torch.cat([total, bins.view(-1)]).to(torch.float32), moments


def _rows(x: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Rows [start, stop) of `x`, [rows, channels]; where its strides allow no view of all (an expanded mask), a copy of
    these alone."""
    try:
        return x.view(-1, x.shape[-1])[start:stop]
    except RuntimeError:
        if x.numel() <= _WHOLE:
            return x.reshape(-1, x.shape[-1])[start:stop]
    at = torch.arange(start, stop, device=x.device)
    index = []
    for size in reversed(x.shape[:-1]):  # torch.unravel_index would wait for the device
        index.append(at % size)
        at = at.div(size, rounding_mode="floor")
    return x[tuple(reversed(index))]


def _folded(values: torch.Tensor, signs: torch.Tensor, g: Geometry) -> torch.Tensor:
    """What rows [rows, channels] that begin a bin give: each bin's signed slots, a `width` apart, modulo TOTAL."""
    run = g.rows_per_slot
    full, rest = divmod(len(values), run)
    count = full + (rest > 0)
    bins = -(-count // g.slots_per_bin)
    slots = values.new_empty((-(-bins * g.slots_per_bin // TILE) * TILE, g.channels))
    signed = slots[:full] if run == 1 else torch.empty_like(values)
    torch.mul(values, signs[:, None], out=signed)
    if run > 1:
        torch.sum(signed[: full * run].view(full, run, g.channels), 1, out=slots[:full])
    if rest:
        torch.sum(signed[full * run :], 0, out=slots[full])
    tile = _tile(g.channels, min(g.slots, TILE), values.device, values.dtype)
    laid = values.new_empty((len(slots), g.width))
    laid[:, g.channels :].zero_()
    tiled, places = (x.view(-1, TILE, x.shape[1])[:, : len(tile), : g.channels] for x in (slots, laid))
    torch.mul(tiled, tile, out=places)
    laid[count:].zero_()
    stride = g.slots_per_bin * g.width
    runs = laid.view(-1)[: bins * stride].view(bins, stride)
    whole = stride // TOTAL * TOTAL
    folded = runs[:, :whole].reshape(bins, -1, TOTAL).sum(1) if whole else runs.new_zeros(bins, TOTAL)
    folded[:, : stride - whole] += runs[:, whole:]
    return folded


def _moments(values: torch.Tensor) -> torch.Tensor:
    """The moments of a contiguous run: a row of `Reduced.moments`."""
    flat = values.view(-1)
    if values.device.type == "cpu":
        return torch.tensor(_cpu_moments(flat), dtype=torch.float64, device="cpu")
    return _device_moments(flat)


def _cpu_moments(flat: torch.Tensor) -> list[float]:
    low, high = float(flat.amin()), float(flat.amax())  # two passes, and less than `aminmax` takes for its one
    # Neither `torch.dot`, which changes with the matmul precision, nor `vector_norm`, whose float32 sums drift by 1e-4.
    total, squares = float(flat.sum()), float((flat * flat).sum())
    # NaN fails every comparison; sums that left float32's range are done again in float64, below.
    usual = -math.inf < low and high < math.inf and abs(total) < math.inf and 1e-30 < squares < math.inf
    if usual or (low == 0.0 == high):
        return [0.0, 0.0, low, high, total, squares]
    nan, inf = float(flat.isnan().sum()), float(flat.isinf().sum())
    kept = flat[flat.isfinite()].double()
    if kept.numel() == 0:
        return [nan, inf, math.inf, -math.inf, 0.0, 0.0]
    return [nan, inf, float(kept.amin()), float(kept.amax()), float(kept.sum()), float(kept.square().sum())]


def _device_moments(flat: torch.Tensor) -> torch.Tensor:
    """Without looking at the result, as that would wait for the device: non-finite values are always masked out."""
    finite = flat.isfinite()
    nan = flat.isnan().sum()
    zeroed = flat.where(finite, 0.0)
    low = flat.where(finite, math.inf).amin()
    high = flat.where(finite, -math.inf).amax()
    inf = flat.numel() - finite.sum() - nan
    if not has_float64(flat.device):
        # Counts in two halves, which float32 holds exactly, and sums of elements over the largest one.
        largest = zeroed.abs().amax()
        parts = zeroed / largest.where(largest > 0, 1.0)
        counts = [part.float() for count in (nan, inf) for part in (count >> _HALF, count & ((1 << _HALF) - 1))]
        return torch.stack([*counts, low, high, parts.sum(), parts.square().sum()])
    # In float64: attention masks hold float32's least value, whose square and even whose sum float32 cannot.
    squares = torch.linalg.vector_norm(zeroed, dtype=torch.float64).square()
    total = zeroed.sum(dtype=torch.float64)
    return torch.stack([v.double() for v in (nan, inf, low, high, total, squares)])


def _unscaled(parts: np.ndarray) -> np.ndarray:
    """The moments of runs, float64 [runs, 6], from those of a device without float64, float32 [runs, 8]."""
    rows = parts.astype(np.float64).reshape(-1, 8)
    counts = rows[:, :4:2] * (1 << _HALF) + rows[:, 1:4:2]
    low, high = rows[:, 4], rows[:, 5]
    largest = np.maximum(np.where(np.isfinite(low), abs(low), 0.0), np.where(np.isfinite(high), abs(high), 0.0))
    return np.column_stack([counts, low, high, rows[:, 6] * largest, rows[:, 7] * largest**2])


_HALF = 20
"""Bits of the lower half of a count."""


def _combine(count: int, parts: np.ndarray) -> Moments:
    """The moments of the whole from those of its runs, float64 [runs, 6]."""
    nan, inf, total, squares = (float(parts[:, i].sum()) for i in (0, 1, 4, 5))
    low, high = float(parts[:, 2].min(initial=math.inf)), float(parts[:, 3].max(initial=-math.inf))
    return of_sums(count, int(nan), int(inf), low, high, total, math.sqrt(squares))


@functools.lru_cache(maxsize=64)
def _row_signs(start: int, stop: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Signs of rows [start, stop): [rows]."""
    return torch.from_numpy(signs(np.arange(start, stop), ROW_SALT)).to(device, dtype)


@functools.lru_cache(maxsize=64)
def _tile(channels: int, rows: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The sign tile [rows, channels]; of fewer slots than it has rows it has as many: a long vector is one."""
    index = np.arange(rows * channels).reshape(rows, channels)
    return torch.from_numpy(signs(index, TILE_SALT)).to(device, dtype)


# --- from entries to records


def torch_records(entries: Sequence[Entry], stage: str, step: int) -> list[Record]:
    """Records of entries that were reduced by `reduce_torch`, with one transfer for all their reductions."""
    tensors = [e for e in entries if e.kind == "tensor"]
    numbers = iter(to_host_many([e.stats for e in tensors if e.stats is not None]))
    reduced = [None if e.stats is None else next(numbers) for e in tensors]
    # What is held as it is stays on the device after the first step, the one in which it is looked at.
    stays = [e.value is None or (e.stats is None and step != 0) for e in tensors]
    values = [None if left else to_numpy(e.value) for e, left in zip(tensors, stays, strict=True)]
    return to_records(entries, reduced, values, stage, step)


def to_numpy(x: torch.Tensor) -> np.ndarray:
    """A torch tensor's values on the host; floats of 16 bits and fewer, which numpy lacks or sums badly, widened."""
    x = whole_of(x).detach().cpu()  # first: half as many bytes
    x = x.dequantize() if x.is_quantized else x.to_dense() if x.layout != torch.strided else x
    if x.is_floating_point() and x.itemsize < 4:
        x = x.to(torch.float32)
    return x.numpy(force=True)  # a conjugate too


def widen16(x: np.ndarray) -> np.ndarray:
    """16-bit floats, which numpy lacks or computes badly in, as float32."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else x


def to_records(
    entries: Sequence[Entry], reduced: Sequence[OnHost | None], values: Sequence[Any], stage: str, step: int
) -> list[Record]:
    """Records of entries whose reductions have reached the host.

    Args:
        reduced, values: of the tensor entries, in their order. What is only held has no reductions; where its value was
            not brought to the host either (None), it is left out.
    """
    records = []
    numbers = iter(zip(reduced, values, strict=True))
    for e in entries:
        key = Key(stage, step, e.branch, e.site, e.call)
        pair, value = next(numbers) if e.kind == "tensor" else (None, e.scalar)
        if e.kind == "tensor" and pair is None and value is None:
            continue
        moments, counters = pair or (None, None)
        held = None if key.is_padding else counters
        records.append(Record(key, e.kind, e.shape, e.dtype, e.rows, e.frame, moments, held, value))
    return records


class TorchReducer:
    """Reduces torch tensors; see `parity.hooks.tap.Reducer`."""

    def reduce(self, x: torch.Tensor, item: Item | None = None) -> Any:
        return reduce_block(x) if is_split(x) else reduce(whole_of(x))

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return whole_of(x).detach().clone()


# --- tensors that are split over processes


def is_distributed(x: object) -> bool:
    """Whether a tensor is one of several processes' (`torch.distributed.tensor.DTensor`)."""
    return hasattr(x, "placements") and hasattr(x, "device_mesh")


def is_split(x: Any) -> bool:
    """Whether this process holds a part of it alone."""
    return is_distributed(x) and not all(p.is_replicate() for p in x.placements)


def whole_of(x: Any) -> torch.Tensor:
    """What this process holds of a tensor that it holds whole.

    Raises:
        ValueError: it is split: its values do not add up.
    """
    if is_split(x):
        raise ValueError(f"a value that is held whole is split over processes ({_placed(x)}): record it in one process")
    return x.to_local() if is_distributed(x) else x


def reduce_block(x: Any) -> Reduced:
    """The reductions of this process's block of a split tensor.

    Raises:
        ValueError: it is a sum that has not been added up over the processes, or is not split into blocks.
    """
    local, start, shape = x.to_local().detach(), _start(x), tuple(x.shape)
    if not local.numel() or _is_repeated(x):
        nothing = torch.zeros((0, _PARTS), dtype=torch.float64)
        return Reduced((0,), torch.zeros(geometry(shape).size), nothing)
    wide = local.to(torch.float64).cpu()
    counters = torch.from_numpy(sketch(wide.numpy(), shape=shape, start=start))
    return Reduced(tuple(local.shape), counters, reduce(wide).moments)


def _is_repeated(x: Any) -> bool:
    """Whether another process counts for this block: on a mesh of more axes than split it several hold the same."""
    places = zip(x.placements, x.device_mesh.get_coordinate(), strict=True)
    return any(placement.is_replicate() and place for placement, place in places)


def _start(x: Any) -> tuple[int, ...]:
    """Index of the block's first element, one entry an axis."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    for placement in x.placements:
        if placement.is_partial():
            raise ValueError(f"a sum over processes that was not added up cannot be recorded ({_placed(x)})")
        if not placement.is_replicate() and type(placement).__name__ != "Shard":
            raise ValueError(f"a tensor that is not split into blocks cannot be recorded ({_placed(x)})")
    return tuple(compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)[1])


def _placed(x: Any) -> str:
    return ", ".join(map(str, x.placements))
