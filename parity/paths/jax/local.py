"""A candidate's modules run alone, compiled, on calls that the reference made; see `parity.paths.closer.local`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import numpy as np
import torch
import torchax
from torchax import interop

from parity.hooks.calls import Call
from parity.hooks.operations import Operation, Operations
from parity.hooks.reduce import on_jax as reduce_jax
from parity.hooks.reduce.batch_jax import BatchingReducer, array_of
from parity.hooks.reduce.transfer_jax import jax_records, split
from parity.hooks.sites import SitePlan
from parity.hooks.tap import Entry, Tap, single_output
from parity.hooks.torchtools import mapped
from parity.paths.closer.local import Ordered, Rows
from parity.paths.jax.mesh import Devices
from parity.paths.jax.program import Programs, Shell, apart, holding
from parity.paths.jax.tracing import to_jax
from parity.paths.loaded import STAGE
from parity.records import Record

MOST_PROGRAMS = 128
"""Programs that are kept. On a CPU each takes about a hundred mappings of memory, and Linux gives a process 65,530:
beyond that LLVM ends the process. An older one is compiled again, from JAX's cache on disk, where a later step needs
it."""


_Called = tuple[str, int, tuple[str, ...], tuple[str, str]]
"""Module, number of its call, branches, what the arguments are."""

Observed = Callable[[Any, list[jax.Array], Any], tuple[Any, tuple[Entry, ...]]]
"""(weights, tensors, row frames) -> reductions, and the static half of what they are of."""


class Home(Ordered, Protocol):
    """Who has the modules, loaded through torchax.

    Attributes:
        env, model, params: torchax's environment, the module, its weights by name. jit: whether programs are compiled.
    """

    env: torchax.tensor.Environment
    model: torch.nn.Module
    params: dict[str, jax.Array]
    jit: bool

    @property
    def devices(self) -> Devices: ...

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Settings of the path that hold for a call."""
        ...

    def put(self, x: np.ndarray) -> jax.Array:
        """An array on all devices."""
        ...

    def tensor(self, x: torch.Tensor) -> torch.Tensor:
        """A CPU tensor on all devices."""
        ...


@dataclass
class LocalModules:
    """The modules of a loaded candidate, each a program of its own; one is compiled for both branches.

    Attributes:
        backend: the candidate's. paths: the reference's name of a module -> the candidate's own; None where they are
            the same. rows: the order in which the rows of the calls stand; None for the candidate's own.
        stage: of the records.
    """

    backend: Home
    paths: Mapping[str, str] | None = None
    rows: Rows | None = None
    stage: str = STAGE

    def __post_init__(self) -> None:
        self._programs: Programs[_Called] = Programs(self.backend.jit, most=MOST_PROGRAMS)
        self._eager: Programs[_Called] = Programs(jit=False)

    def has(self, module: str) -> bool:
        if self.paths is not None:
            return module in self.paths
        try:
            self.backend.model.get_submodule(module)
        except AttributeError:
            return False
        return True

    def _path(self, module: str) -> str:
        return module if self.paths is None else self.paths[module]

    def _frames(self, branch: str) -> dict[str, tuple[jax.Array, jax.Array]]:
        if self.rows is None:
            return dict(self.backend.frames[branch])
        put = self.backend.put
        return {n: (put(i.cpu().numpy()), put(w.cpu().numpy())) for n, (i, w) in self.rows.frames[branch].items()}

    def _weights(self, path: str) -> dict[str, jax.Array]:
        prefix = f"{path}."
        return {n.removeprefix(prefix): x for n, x in self.backend.params.items() if n.startswith(prefix)}

    def records(self, call: Call, step: int, eager: bool = False) -> list[Record]:
        """What this path's module gives for a call, observed at its outputs."""
        backend, programs = self.backend, self._eager if eager else self._programs
        given, shell = apart((call.args, dict(call.kwargs)))
        tensors = [jax.device_put(to_jax(x), backend.devices.replicated) for x in given]
        names = call.branches if len(call.branches) > 1 else ("",)
        frames = {name: self._frames(b) for name, b in zip(names, call.branches, strict=True)}
        key = (call.module, call.number, names, shell.key)
        with backend.scope():
            reduced, entries = programs.run(
                key, self._observed(call, names, shell), self._weights(self._path(call.module)), tensors, frames
            )
        if len(names) == 1:
            entries = tuple(replace(e, branch=call.branches[0]) for e in entries)
        return jax_records(entries, reduced, step, self.stage)

    def _observed(self, call: Call, names: tuple[str, ...], shell: Shell) -> Observed:
        """Reductions of what the module gives for (weights, tensors, frames), and what they are of."""
        plan = SitePlan("all", (), frozenset({call.module}))
        backend, module = self.backend, self.backend.model.get_submodule(self._path(call.module))

        def run(weights: Any, tensors: list[jax.Array], frames: Any) -> tuple[Any, tuple[Entry, ...]]:
            args, kwargs = shell.filled(interop.torch_view(tensors))
            with holding(module, weights, backend.env, backend.devices):
                output = module(*args, **kwargs)
                reducer = BatchingReducer()
                rule = (self.rows or backend).rules[call.branches[0]]
                tap = Tap(plan, reducer, rule, names, interop.torch_view(frames))
                tap.see(call.module, call.number, "out", single_output(output))
                entries, reduced = split(tap, reducer)
            return reduced, entries

        return run

    def operations(self, call: Call) -> list[Operation]:
        """The operations of this path's module for a call, run eagerly; `reduced` is a sketch on the host."""
        backend, module = self.backend, self.backend.model.get_submodule(call.module)
        reduce = jax.jit(reduce_jax.reduce)
        seen = Operations(lambda x: jax.device_get(reduce(array_of(x))))
        with backend.scope(), holding(module, self._weights(call.module), backend.env, backend.devices):
            args, kwargs = mapped(backend.tensor, (call.args, dict(call.kwargs)))
            with seen.watching():
                module(*args, **kwargs)
        return [replace(o, reduced=reduce_jax.to_host(o.reduced)[1]) for o in seen.found]
