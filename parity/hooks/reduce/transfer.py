"""From entries to records: the reductions of one model call brought to the host, and values with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from parity.hooks.reduce import on_torch as reduce_torch
from parity.hooks.reduce.shards import is_split, reduce_block, whole_of
from parity.hooks.tap import EVERY, Entry, Item
from parity.records import Key, Moments, Record


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
        moments, sketch = pair
        held = None if key.is_padding else sketch
        records.append(Record(key, "tensor", e.shape, e.dtype, e.rows, e.frame, moments, held, value))
    return records


class TorchReducer:
    """Reduces torch tensors; see `parity.hooks.tap.Reducer`."""

    def reduce(self, x: torch.Tensor, rows: slice = EVERY, item: Item | None = None) -> Any:
        x = x if rows == EVERY else x[:, rows]
        return reduce_block(x) if is_split(x) else reduce_torch.reduce(whole_of(x))

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return whole_of(x).detach().clone()
