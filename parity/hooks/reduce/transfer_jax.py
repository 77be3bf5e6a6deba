"""From entries to records where tensors are JAX's; see `parity.hooks.reduce.transfer`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from parity.hooks.reduce import on_jax as reduce_jax
from parity.hooks.reduce.batch_jax import BatchingReducer, Slot, gather
from parity.hooks.reduce.transfer import to_records, widen16
from parity.hooks.sites import WHOLE
from parity.hooks.tap import Entry, Reduced, Tap
from parity.records import Record


def split(tap: Tap, reducer: BatchingReducer) -> tuple[tuple[Entry, ...], Any]:
    """What a tap saw inside a trace: the entries, which stay outside it, and the reductions that it returns."""
    values = [e.reduced.value for e in tap.entries if e.reduced is not None]
    # What stays of an entry outside the trace is where its reductions will be found.
    static = tuple(replace(e, reduced=None if e.reduced is None else Reduced(e.reduced.stats)) for e in tap.entries)
    return static, (reducer.finish(), values)


def whole(tree: Any) -> Any:
    """The arrays of a nest as this process can read them: what is spread over several processes is gathered.

    Each of the processes must call it with the same arrays, as with every computation on them.
    """

    def read(x: Any) -> Any:
        if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
            return x
        return multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(read, tree)


def jax_records(entries: tuple[Entry, ...], reduced: Any, step: int, stage: str = "transformer") -> list[Record]:
    """Records of what a tap saw, its reductions brought to the host in one transfer."""
    if not entries:
        return []
    slots: list[Slot | None] = [e.reduced.stats for e in entries if e.reduced is not None]
    # Outputs that are held as they are stay on the device after the first step, the one in which they are looked at;
    # inputs are held in a step alone that is.
    looked_at = step <= 0 or any(f":{WHOLE}.in." in e.site for e in entries)
    wanted = [v if slot is not None or looked_at else None for slot, v in zip(slots, reduced[1], strict=True)]
    groups, values = jax.device_get(whole((reduced[0], wanted)))
    numbers = [None if slot is None else reduce_jax.to_host(gather(groups, slot)) for slot in slots]
    held = [None if v is None else widen16(np.asarray(v)) for v in values]
    return to_records(entries, numbers, held, stage, step)
