"""Reductions of what a traced program computes: of large tensors inside it, of small ones by programs of their own.

A reduction is some thirty operations, and XLA compiles each one it is given: observing every module of a small model
would compile minutes for milliseconds of work, anew for every setting. A traced program therefore returns its small
tensors as they are, and a program for each shape reduces them afterwards, still on the device: those are the same for
every model and setting, and compiled once for the cache. Large tensors are reduced where they occur; `settled` bounds
how long the compiler may put that off, and so keep them.

Cost: small tensors, at most `SMALL` elements each, live to the end of the program; a call for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from parity.hooks.reduce import on_jax as reduce_jax

SMALL = 1 << 18
"""Elements up to which a tensor is returned as it is: a megabyte in float32."""


@dataclass
class TraceReducer:
    """Reduces torchax tensors, traced or not; see `parity.hooks.tap.Reducer`. What it gives for one is its place among
    `found`, which the trace returns and `reductions` completes.

    Attributes:
        found: the small tensors as they are, and the reductions of the large ones, in the order of the trace.
        pending: places of those that nothing waits for yet.
    """

    found: list[Any] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)

    def reduce(self, x: Any) -> int:
        a = array_of(x)
        if a.size > SMALL:
            self.pending.append(len(self.found))
        self.found.append(reduce_jax.reduce(a) if a.size > SMALL else a)
        return len(self.found) - 1

    def value(self, x: Any) -> jax.Array:
        return array_of(x)

    def settled(self, arrays: list[jax.Array]) -> list[jax.Array]:
        """These arrays, which are there once the large tensors seen so far are reduced: a barrier in a trace."""
        if not self.pending:
            return arrays
        waiting = {i: self.found[i] for i in self.pending}
        arrays, waiting = jax.lax.optimization_barrier((arrays, waiting))
        for i, reduced in waiting.items():
            self.found[i] = reduced
        self.pending.clear()
        return arrays


def reductions(found: list[Any]) -> list[dict[str, jax.Array]]:
    """All reductions, outside the trace, of what it returned; see `parity.hooks.reduce.on_jax.reduce`."""
    return [x if isinstance(x, dict) else reduce_jax.reduce(x) for x in found]


def array_of(x: Any) -> jax.Array:
    """The jax array behind a torchax tensor or view; plain torch constants are moved."""
    return x.jax() if hasattr(x, "jax") else jnp.asarray(x.detach().numpy())
