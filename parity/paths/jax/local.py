"""A candidate's modules run alone, compiled, on calls that the reference made; see `parity.paths.closer.local`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import numpy as np
import torch
import torchax
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree
from torchax import interop

from parity.golden.records import Record
from parity.hooks.calls import Call, mapped
from parity.hooks.operations import Operation, Operations
from parity.hooks.reduce import on_jax as reduce_jax
from parity.hooks.reduce.batch_jax import BatchingReducer, array_of
from parity.hooks.reduce.transfer_jax import jax_records, split
from parity.hooks.sites import SitePlan
from parity.hooks.tap import Entry, Tap, single_output
from parity.models import splash
from parity.paths.closer.local import Ordered, Rows
from parity.paths.jax.mesh import Devices
from parity.paths.jax.tracing import pinned_attention, signature_of, to_jax
from parity.paths.loaded import STAGE

MOST_PROGRAMS = 128
"""Programs that are kept. On a CPU each takes about a hundred mappings of memory, and Linux gives a process 65,530:
beyond that LLVM ends the process. An older one is compiled again, from JAX's cache on disk, where a later step needs
it."""


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
    _programs: dict[Any, tuple[Callable[..., Any], tuple[Entry, ...]]] = field(default_factory=dict)

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

    def records(self, call: Call, step: int) -> list[Record]:
        """What this path's module gives for a call, observed at its outputs."""
        backend = self.backend
        leaves, structure = pytree.tree_flatten((call.args, dict(call.kwargs)))
        fixed = tuple(None if isinstance(x, torch.Tensor) else x for x in leaves)
        tensors = [jax.device_put(to_jax(x), backend.devices.replicated) for x in leaves if isinstance(x, torch.Tensor)]
        names = call.branches if len(call.branches) > 1 else ("",)
        frames = {name: self._frames(b) for name, b in zip(names, call.branches, strict=True)}
        prefix = f"{self._path(call.module)}."
        params = {n.removeprefix(prefix): x for n, x in backend.params.items() if n.startswith(prefix)}
        key = (call.module, call.number, names, str(structure), repr(fixed), signature_of((tensors, frames)))
        arguments = (params, tensors, frames)
        with backend.scope():
            if not backend.jit:
                seen: list[Entry] = []
                reduced = self._observed(call, names, leaves, structure, seen)(*arguments)
                entries = tuple(seen)
            else:
                if key not in self._programs:
                    if len(self._programs) >= MOST_PROGRAMS:
                        del self._programs[next(iter(self._programs))]
                    self._programs[key] = self._program(call, names, leaves, structure, arguments)
                run, entries = self._programs[key]
                reduced = run(*arguments)
        if len(names) == 1:
            entries = tuple(replace(e, branch=call.branches[0]) for e in entries)
        return jax_records(entries, reduced, step, self.stage)

    def _program(
        self, call: Call, names: tuple[str, ...], leaves: list[Any], structure: Any, arguments: tuple[Any, Any, Any]
    ) -> tuple[Callable[..., Any], tuple[Entry, ...]]:
        seen: list[Entry] = []
        observed = self._observed(call, names, leaves, structure, seen)
        compiled = jax.jit(observed).lower(*arguments).compile()
        return compiled, tuple(seen)

    def _observed(
        self, call: Call, names: tuple[str, ...], leaves: list[Any], structure: Any, seen: list[Entry]
    ) -> Callable[..., Any]:
        """(weights, tensors, frames) -> reductions of what the module gives; what they are of is left in `seen`."""
        plan = SitePlan("all", (), frozenset({call.module}))

        def run(params: Any, tensors: Any, frames: Any) -> Any:
            with self._calling(call, leaves, structure, params, tensors) as output:
                reducer = BatchingReducer()
                rule = (self.rows or self.backend).rules[call.branches[0]]
                tap = Tap(plan, reducer, rule, names, interop.torch_view(frames))
                tap.see(call.module, call.number, "out", single_output(output))
                entries, reduced = split(tap, reducer)
            seen[:] = entries
            return reduced

        return run

    @contextlib.contextmanager
    def _calling(self, call: Call, leaves: list[Any], structure: Any, params: Any, tensors: Any) -> Iterator[Any]:
        """What the module gives for these weights and tensors, in the environment that gave it; traced or not."""
        backend, module = self.backend, self.backend.model.get_submodule(self._path(call.module))
        views = iter(interop.torch_view(tensors))
        given = [next(views) if isinstance(x, torch.Tensor) else x for x in leaves]
        args, kwargs = pytree.tree_unflatten(given, structure)
        with (
            pinned_attention(),
            splash.on_mesh(backend.devices.mesh),
            backend.env,
            torch.no_grad(),
            stateless._reparametrize_module(module, interop.torch_view(params)),
        ):
            yield module(*args, **kwargs)

    def operations(self, call: Call) -> list[Operation]:
        """The operations of this path's module for a call, run eagerly; `reduced` is a sketch on the host."""
        backend, module = self.backend, self.backend.model.get_submodule(call.module)
        prefix = f"{call.module}."
        params = {n.removeprefix(prefix): x for n, x in backend.params.items() if n.startswith(prefix)}
        reduce = jax.jit(reduce_jax.reduce)
        seen = Operations(lambda x: jax.device_get(reduce(array_of(x))))
        with backend.scope(), pinned_attention(), splash.on_mesh(backend.devices.mesh):
            args, kwargs = mapped(backend.tensor, (call.args, dict(call.kwargs)))
            weights = interop.torch_view(params)
            with stateless._reparametrize_module(module, weights), seen.watching():
                module(*args, **kwargs)
        return [replace(o, reduced=reduce_jax.to_host(o.reduced)[1]) for o in seen.found]
