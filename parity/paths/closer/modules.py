"""Modules of a loaded candidate run alone, whoever wrote it: parity's own path, or a port that is a torch module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from parity.hooks.calls import Call
from parity.hooks.operations import Operation, Operations
from parity.hooks.perturb import perturbed
from parity.hooks.reduce import on_torch as reduce_torch
from parity.hooks.rerun import rerun
from parity.paths.closer.local import Ordered, Rows, observe
from parity.paths.loaded import STAGE, Eager, Loaded
from parity.paths.port.load import Entry, failures
from parity.records import Key, Record, StepRecords
from parity.settings import Settings
from parity.sketch import geometry


class Modules(Protocol):
    """A candidate's modules by the reference's names."""

    def has(self, module: str) -> bool: ...

    def records(self, call: Call, step: int, eager: bool = False) -> list[Record]:
        """What the module gives for a call of the reference's, observed at its outputs.

        Args:
            eager: operation by operation, where it would be compiled.
        """
        ...


def cannot_call(side: Loaded) -> str:
    """Why a candidate's modules cannot be called one at a time; empty where they can: those of a port in JAX are only
    names of values, and a port may take its arrays in another layout."""
    family: Any = side.family
    if not family.is_own:
        return ""
    take = "leave --isolate modules out"
    if side.backend.seen is not None:
        return (
            f"--isolate modules calls the candidate's modules one by one, and {family.entry.named} is a port in JAX: "
            f"its names are of values, not of modules that could be called; {take}"
        )
    if family.channels_last:
        return (
            f"--isolate modules hands the reference's inputs to the candidate's modules, and those of "
            f"{family.entry.named} have channels last; {take}"
        )
    return ""


def local_modules(side: Loaded, rows: Rows | None = None) -> Modules:
    """The modules of a side of which `cannot_call` has nothing to say.

    Args:
        rows: the order in which the rows of the calls stand; None where it is the side's own.
    """
    family: Any = side.family
    backend: Any = side.backend
    if not family.is_own:
        if backend.eager is not None:
            paths = {path: path for path, _ in backend.module().named_modules() if path}
            return _Alone(backend, paths, rows or backend)
        from parity.paths.jax.local import LocalModules

        return LocalModules(backend, rows=rows)
    paths = {family.named(path): path for path, _ in backend.module().named_modules() if path}
    if backend.eager is not None:
        return _Guarded(family.entry, _Alone(backend, paths, rows or backend), paths)
    from parity.paths.jax.local import LocalModules

    return _Guarded(family.entry, LocalModules(backend, paths, rows), paths)


def operations_of(side: Loaded, call: Call, step: int) -> StepRecords:
    """The operations of a module for a call, run eagerly: records of `MODULE:op.NUMBER.NAME`.

    A reference adds what they give in float64 and perturbed, as branches of their own (`parity.paths.plan.OTHERS`).
    """
    backend: Any = side.backend
    if backend.eager is None:
        from parity.paths.jax.local import LocalModules

        return operation_records(call, step, {"": LocalModules(backend).operations(call)})
    with backend.scope():
        module = backend.model.get_submodule(call.module)
        return reference_operations(module, call, step, side.settings)


def reference_operations(
    module: torch.nn.Module, call: Call, step: int, settings: Settings, stage: str = STAGE
) -> StepRecords:
    """A reference's operations of a module, as they are, in float64 and perturbed."""
    own, exact = (_eager_operations(module, call, dtype) for dtype in (None, torch.float64))
    with perturbed(module, SEED, settings.text("tpu"), inputs=True):
        moved = _eager_operations(module, call, None)
    # Casting to float64 comes before the module's own operations.
    runs = {"": own, "float64": exact[-len(own) :] if own else [], "moved": moved}
    return operation_records(call, step, runs, stage)


def operation_records(
    call: Call, step: int, runs: Mapping[str, Sequence[Operation]], stage: str = STAGE
) -> StepRecords:
    """Records of the operations of a call, of each run under its name as branch."""
    made = (_operation(call, step, b, i, o, stage) for b, run in runs.items() for i, o in enumerate(run))
    return StepRecords(step, tuple(made))


SEED = 104_729


def _eager_operations(module: torch.nn.Module, call: Call, dtype: torch.dtype | None) -> list[Operation]:
    seen = Operations(reduce_torch.reduce)
    with seen.watching():
        rerun(module, call, dtype)
    reduced = reduce_torch.to_host_many([o.reduced for o in seen.found])
    return [replace(o, reduced=sketch) for o, (_, sketch) in zip(seen.found, reduced, strict=True)]


def _operation(call: Call, step: int, branch: str, number: int, found: Operation, stage: str) -> Record:
    g = geometry(found.shape)
    key = Key(stage, step, branch, f"{call.module}:op.{number}.{found.name}", call.number)
    return Record(key, "tensor", found.shape, "", "", (g.rows, g.channels), None, found.reduced)


@dataclass
class _Alone:
    """The modules of a torch port; `like` is in whose order the rows stand."""

    backend: Eager
    paths: Mapping[str, str]
    like: Ordered

    def has(self, module: str) -> bool:
        return module in self.paths

    def records(self, call: Call, step: int, eager: bool = False) -> list[Record]:
        module = self.backend.module().get_submodule(self.paths[call.module])
        with self.backend.scope():
            return observe(self.like, call, rerun(module, call, None), step)


@dataclass
class _Guarded:
    """A port's modules: what they raise, given another module's arguments, becomes one line.

    Raises:
        UsageError: a module cannot be called as the reference's is.
    """

    entry: Entry
    inner: Modules
    paths: Mapping[str, str]

    def has(self, module: str) -> bool:
        return self.inner.has(module)

    def records(self, call: Call, step: int, eager: bool = False) -> list[Record]:
        doing = f"{self.entry.named}: --isolate modules: '{self.paths[call.module]}', called as the reference's is,"
        with failures(doing, self.entry.path):
            return self.inner.records(call, step, eager)
