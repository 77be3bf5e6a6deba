"""A tensor that is split over processes (DTensor): each reduces its own block, and the blocks' reductions add up.

Signs of a sketch come from the global index (`parity.sketch`), so that a block's sketch is the part that it
contributes to the whole's; counts and sums of squares add anyway. `parity.golden.disk.shards` does the adding.

Cost: the sketch of a block is that of numpy's definition, on the host.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from parity.hooks.reduce import on_torch
from parity.sketch import geometry, sketch


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


def reduce_block(x: Any) -> on_torch.Reduced:
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
        return on_torch.Reduced((0,), torch.zeros(whole.size), nothing)
    return on_torch.Reduced(tuple(local.shape), counters, on_torch.reduce(wide).moments)


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
