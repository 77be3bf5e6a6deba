"""The calls of a transformer through torchax, compiled by `torchax.compile` or run operation by operation.

A compiled module calls no hooks once it is traced. So beside its own program one is compiled of the same function with
the same options, with the reductions as further outputs. Reading a value can move what XLA fuses, and with it the last
bits: the first call of each program runs both, and where they differ in a bit the script's own goes on to give the
result, at twice the time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import torch
import torchax
from torch.utils import _pytree as pytree
from torchax import interop

from parity.hooks.attach import attached
from parity.hooks.methods import replaced
from parity.hooks.reduce.on_jax import BatchingReducer, array_of, jax_records, on_host, split, whole
from parity.hooks.tap import Entry, Reducer, Tap
from parity.hooks.torchtools import uncached, uncompiled
from parity.recorder.steps import names_of
from parity.recorder.torch_calls import Calls, Kind
from parity.records import LOOP_STAGE, Record


class InTorchax(Kind):
    """Torchax's tensors; see `parity.recorder.torch_calls.Kind`."""

    def reducer(self) -> Reducer:
        return BatchingReducer()

    def records(self, tap: Tap, step: int) -> list[Record]:
        return jax_records(*split(tap), step, LOOP_STAGE)

    def host(self, x: torch.Tensor) -> Any:
        return on_host(whole(array_of(x)))

    def devices(self, x: torch.Tensor) -> tuple[str, ...]:
        found = list(array_of(x).devices())
        return (f"{found[0].device_kind} x {len(found)}",)

    def is_traced(self, x: torch.Tensor) -> bool:
        return isinstance(x, torchax.tensor.Tensor) and isinstance(array_of(x), jax.core.Tracer)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        env: contextlib.AbstractContextManager[Any] = torchax.default_env()
        return env


class CompiledCalls(Calls):
    """Watches a module that `torchax.compile` wrapped."""

    def __post_init__(self) -> None:
        self.compiled: Any = self.model
        self.model = uncompiled(self.model)
        self.programs: dict[Any, Any] = {}
        self.same: dict[Any, bool] = {}
        super().__post_init__()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        own = self.compiled.jittable_call

        def call(method: str, *args: Any, **kwargs: Any) -> Any:
            if method != "forward" or self.busy or not self.recording.wanted() or self.traced((args, kwargs)):
                return own(method, *args, **kwargs)
            rows: tuple[str, ...] = ()
            with self.recording.guard():
                rows = self.branches.of(args, kwargs)
            if not rows:
                return own(method, *args, **kwargs)
            return self._observed(rows, args, kwargs, lambda: own(method, *args, **kwargs))

        with self.branches.listening(self.model), replaced(self.compiled, "jittable_call", call):
            yield

    def _observed(
        self, rows: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], own: Callable[[], Any]
    ) -> Any:
        """The script's call; what was seen in it is recorded.

        Args:
            own: makes it by the script's own program.
        """
        branches = names_of(rows)
        several = tuple(str(branches.index(branch)) if branch else "" for branch in rows)
        key = (several, _signature(args, kwargs))
        if key not in self.programs:
            traced: list[tuple[Entry, ...]] = []

            def run(params: Any, buffers: Any, *given: Any, **named: Any) -> Any:
                tap = self.tap(several)
                with uncached(self.model), attached(self.model, tap):
                    # A call, and not of `forward` by its name, where the top module's own hooks would not fire.
                    out = self.compiled.functional_call(torch.nn.Module.__call__, params, buffers, *given, **named)
                    static, reduced = split(tap)
                traced[:] = [static]
                return out, interop.torch_view(reduced)

            # What the script's own program may eat, it needs after this one.
            options = {n: x for n, x in self.compiled._extra_jit_args.items() if not n.startswith("donate")}
            self.programs[key] = interop.jax_jit(run, kwargs_for_jax_jit=options), traced
        program, traced = self.programs[key]
        result: tuple[Any, Any] | None = None
        with self.recording.guard():
            result = program(self.compiled.params, self.compiled.buffers, *args, **kwargs)
        if result is None:  # it may need more memory than the script's
            return own()
        out, reduced = result
        with self.recording.guard():
            entries = tuple(replace(e, branch=branches[int(e.branch)]) for e in traced[0])
            step = self.steps.number
            self.steps.part += self.placed(jax_records(entries, interop.jax_view(reduced), step, LOOP_STAGE))
            self.steps.part += self.predictions(rows, out)
        if self.same.get(key):
            return out
        given = own()
        if key not in self.same:
            self.same[key] = _equal(given, out)
            if not self.same[key]:
                self.tell("observing this compiled program moves its last bits: the script's own runs beside it")
        return given


def _equal(x: Any, y: Any) -> bool:
    """Whether all arrays of two results have the same bits."""
    leaves = zip(jax.tree.leaves(whole(interop.jax_view(x))), jax.tree.leaves(whole(interop.jax_view(y))), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in leaves)


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[object, ...]:
    """Shapes, dtypes and constants of a call: what a program is traced for."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    return (str(structure), *map(_traced_for, leaves))


def _traced_for(x: Any) -> object:
    if isinstance(x, torch.Tensor):
        return tuple(x.shape), x.dtype
    return type(x) if type(x) in (int, float) else repr(x)
