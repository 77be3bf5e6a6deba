"""From entries to records: the reductions of one model call brought to the host, and values with them.

A tensor may be split over processes (DTensor): each reduces its own block, and the blocks' reductions add up. Signs
of a sketch come from the global index (`parity.sketch`), so that a block's sketch is the part that it contributes to
the whole's; counts and sums of squares add anyway. `parity.golden.disk.shards` does the adding. Cost: the sketch of a
block is that of numpy's definition, on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from parity.hooks.reduce import on_torch as reduce_torch
from parity.hooks.tap import EVERY, Entry, Item
from parity.records import Key, Moments, Record
from parity.sketch import geometry, sketch


def torch_records(entries: Sequence[Entry], stage: str, step: int) -> list[Record]:
    """Records of entries that were reduced by `reduce_torch`, with one transfer for all their reductions."""
    tensors = [e.reduced for e in entries if e.reduced is not None]
    numbers = iter(reduce_torch.to_host_many([r.stats for r in tensors if r.stats is not None]))
    reduced = [None if r.stats is None else next(numbers) for r in tensors]
    # What is held as it is stays on the device after the first step, the one in which it is looked at.
    stays = [r.value is None or (r.stats is None and step != 0) for r in tensors]
    values = [None if left else to_numpy(r.value) for r, left in zip(tensors, stays, strict=True)]
    return to_records(entries, reduced, values, stage, step)


def to_numpy(x: torch.Tensor) -> np.ndarray:
    """A torch tensor's values on the host; floats of 16 bits and fewer, which numpy lacks or sums badly, widened."""
    x = whole_of(x).detach()
    if x.is_floating_point() and x.itemsize < 4:
        x = x.to(torch.float32)
    return x.cpu().numpy()


def widen16(x: np.ndarray) -> np.ndarray:
    """16-bit floats, which numpy lacks or computes badly in, as float32."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else x


def to_records(
    entries: Sequence[Entry],
    reduced: Sequence[tuple[Moments, np.ndarray] | None],
    values: Sequence[np.ndarray | None],
    stage: str,
    step: int,
) -> list[Record]:
    """Records of entries whose reductions have reached the host.

    Args:
        reduced, values: for the tensor entries, in their order; what is only held has no reductions, and is left out
            where its value was not brought to the host.
    """
    records = []
    numbers = iter(zip(reduced, values, strict=True))
    for e in entries:
        key = Key(stage, step, e.branch, e.site, e.call)
        if e.kind != "tensor":
            records.append(Record(key, e.kind, dtype=e.dtype, value=e.scalar))
            continue
        pair, value = next(numbers)
        if pair is None:
            if value is not None:
                records.append(Record(key, "tensor", e.shape, e.dtype, value=value))
            continue
        moments, counters = pair
        held = None if key.is_padding else counters
        records.append(Record(key, "tensor", e.shape, e.dtype, e.rows, e.frame, moments, held, value))
    return records


class TorchReducer:
    """Reduces torch tensors; see `parity.hooks.tap.Reducer`."""

    def reduce(self, x: torch.Tensor, rows: slice = EVERY, item: Item | None = None) -> Any:
        x = x if rows == EVERY else x[:, rows]
        return reduce_block(x) if is_split(x) else reduce_torch.reduce(whole_of(x))

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
    local: torch.Tensor = x.to_local() if is_distributed(x) else x
    return local


def reduce_block(x: Any) -> reduce_torch.Reduced:
    """The reductions of this process's block of a split tensor.

    Raises:
        ValueError: it is a sum that has not been added up over the processes, or an axis is split more than once.
    """
    local, start = x.to_local().detach(), _start(x)
    shape = tuple(x.shape)
    whole = geometry(shape)
    wide = local.to(torch.float64).cpu()
    counters = torch.from_numpy(sketch(wide.numpy(), shape=shape, start=start)) if math.prod(shape) else torch.zeros(0)
    if not local.numel() or _is_repeated(x):
        nothing = torch.zeros((0, 6), dtype=torch.float64)
        return reduce_torch.Reduced((0,), torch.zeros(whole.size), nothing)
    return reduce_torch.Reduced(tuple(local.shape), counters, reduce_torch.reduce(wide).moments)


def _is_repeated(x: Any) -> bool:
    """Whether another process counts for this block: on a mesh of more axes than split it several hold the same."""
    places = zip(x.placements, x.device_mesh.get_coordinate(), strict=True)
    return any(placement.is_replicate() and place for placement, place in places)


def _start(x: Any) -> tuple[int, ...]:
    """Index of the block's first element, one entry an axis: torch cuts an axis into equal blocks, rounded up."""
    start = [0] * x.ndim
    split = set[int]()
    for axis, (placement, place) in enumerate(zip(x.placements, x.device_mesh.get_coordinate(), strict=True)):
        if placement.is_partial():
            raise ValueError(f"a sum over processes that was not added up cannot be recorded ({_placed(x)})")
        if not placement.is_shard():
            continue
        at = placement.dim % x.ndim
        if at in split or type(placement).__name__ != "Shard":
            raise ValueError(f"a tensor whose axis {at} is split more than once cannot be recorded ({_placed(x)})")
        split.add(at)
        size = -(-x.shape[at] // x.device_mesh.size(axis))
        start[at] = min(size * place, x.shape[at])
    return tuple(start)


def _placed(x: Any) -> str:
    return ", ".join(map(str, x.placements))
