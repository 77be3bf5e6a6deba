"""From entries to records where tensors are JAX's; see `parity.hooks.reduce.transfer`.

Small tensors are reduced together: that keeps observed programs quick to compile. A reduction is some thirty
operations, and XLA compiles each one it is given: observing every module of a small model would compile minutes for
milliseconds of work. Those of one shape and dtype are therefore stacked when the trace ends and reduced in one. Large
ones are reduced where they occur; `settled` bounds how long the compiler may put that off, and so keep them.

Cost: a copy of each small tensor, at most `SMALL` elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.experimental import multihost_utils

from parity.hooks.reduce import on_jax as reduce_jax
from parity.hooks.reduce.transfer import to_records, widen16
from parity.hooks.sites import WHOLE
from parity.hooks.tap import EVERY, Entry, Item, Reduced, Tap
from parity.records import Record

SMALL = 1 << 18
"""Elements up to which a tensor is stacked with others of its shape: a megabyte in float32."""

GroupKey = tuple[tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the reductions of one tensor are found: row `row` of group `group`."""

    group: int
    row: int


Reductions = dict[str, jax.Array]
Large = Callable[[jax.Array, int, int, int], list[Reductions] | None]
"""Reduces rows [start, stop) of each of so many items of a large traced tensor; None for one that it does not take."""


@dataclass
class BatchingReducer:
    """Reduces torchax tensors, traced or not; see `parity.hooks.tap.Reducer`. `finish` gives the groups' reductions.

    Attributes:
        large: for a TPU. With it, what XLA reduces stands behind a barrier: otherwise its reductions would be fused
            into the product that makes the tensor, which is then compiled otherwise.
        batches: what `large` gave, by the array and its rows: the items of a batch are asked for one after the other.
    """

    large: Large | None = None
    keys: dict[GroupKey, int] = field(default_factory=dict)
    members: list[list[jax.Array]] = field(default_factory=list)
    alone: dict[int, Any] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    batches: dict[tuple[int, int, int], tuple[jax.Array, list[Reductions] | None]] = field(default_factory=dict)

    def reduce(self, x: Any, rows: slice = EVERY, item: Item | None = None) -> Slot:
        a = array_of(x if rows == EVERY else x[:, rows])
        if a.size > SMALL or a.size == 0:
            self.members.append([])
            self.alone[len(self.members) - 1] = self._alone(x, a, rows, item)
            self.pending.append(len(self.members) - 1)
            return Slot(len(self.members) - 1, -1)
        a = self._apart(a)
        key = (a.shape, str(a.dtype))
        if key not in self.keys:
            self.keys[key] = len(self.members)
            self.members.append([])
        group = self.members[self.keys[key]]
        group.append(a)
        return Slot(self.keys[key], len(group) - 1)

    def _alone(self, x: Any, a: jax.Array, rows: slice, item: Item | None) -> Reductions:
        """Reductions of `a`, these rows of `x`."""
        if self.large is not None and isinstance(a, jax.core.Tracer):
            found = self._in_place(self.large, Item(x, 0, 1) if item is None else item, rows)
            if found is not None:
                return found
        return reduce_jax.reduce(self._apart(a))

    def _in_place(self, large: Large, item: Item, rows: slice) -> Reductions | None:
        """The item's reductions; those of the other items are kept for the branches that come next."""
        whole = array_of(item.whole)
        start, stop, _ = rows.indices(whole.shape[1] if whole.ndim > 1 else 0)
        key = (id(whole), start, stop)
        if key not in self.batches:  # with the array itself, so that no other gets its number
            self.batches[key] = (whole, large(whole, start, stop, item.count))
        found = self.batches[key][1]
        return None if found is None else found[item.index]

    def _apart(self, a: jax.Array) -> jax.Array:
        behind = self.large is not None and isinstance(a, jax.core.Tracer)
        return cast(jax.Array, jax.lax.optimization_barrier(a)) if behind else a

    def value(self, x: Any) -> jax.Array:
        return array_of(x)

    def settled(self, arrays: list[jax.Array]) -> list[jax.Array]:
        """These arrays, which are there once the large tensors seen so far are reduced: a barrier in a trace."""
        if not self.pending:
            return arrays
        waiting = {i: self.alone[i] for i in self.pending}
        arrays, waiting = jax.lax.optimization_barrier((arrays, waiting))
        self.alone.update(waiting)
        self.pending.clear()
        return arrays

    def finish(self) -> list[Any]:
        """The reductions of each group, a leading axis over its members; of a tensor reduced alone without it."""
        return [
            self.alone[i] if i in self.alone else _together(jnp.stack(members))
            for i, members in enumerate(self.members)
        ]


def _together(x: jax.Array) -> dict[str, jax.Array]:
    """Reduces the members of a stack; outside a trace by a program of its own, which is compiled once for its shape."""
    return (_every if isinstance(x, jax.core.Tracer) else _compiled)(x)


_every = jax.vmap(reduce_jax.reduce)
_compiled = jax.jit(_every)


def gather(groups: list[Any], slot: Slot) -> dict[str, Any]:
    """One tensor's reductions from the groups on the host."""
    group = groups[slot.group]
    return group if slot.row < 0 else {name: x[slot.row] for name, x in group.items()}


def array_of(x: Any) -> jax.Array:
    """The jax array behind a torchax tensor or view. A plain torch tensor is moved, bfloat16 too, which numpy lacks."""
    if hasattr(x, "jax"):
        return cast(jax.Array, x.jax())
    x = x.detach().cpu().contiguous()
    if x.dtype == torch.bfloat16:
        return jnp.asarray(x.view(torch.int16).numpy().view(jnp.bfloat16.dtype))
    return jnp.asarray(x.numpy())


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
