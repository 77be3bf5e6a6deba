"""A stage on the candidate's path: through torchax, each call of its trunk one program compiled by jax.jit.

What is around the trunk (scaling, tiles and their blending, chunks and their cache; cropping of a prompt's template)
runs in the torchax environment call by call, as in a port. Programs are kept by the shapes of their arguments, so all
whole tiles of a picture share one; the hooks fire while one is traced, its reductions are extra outputs, and the sites'
call numbers go on from call to call.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import torch
import torchax
from torchax import interop

from parity.hooks.attach import attached
from parity.hooks.methods import replaced
from parity.hooks.reduce.on_jax import BatchingReducer, array_of, jax_records, split
from parity.hooks.reduce.on_torch import widen16
from parity.hooks.sites import SitePlan
from parity.hooks.tap import Entry, Tap, counted_on, require_fired
from parity.hooks.torchtools import module_tree, named_tensors
from parity.paths.jax.mesh import make_devices, use_compilation_cache
from parity.paths.jax.program import InTorchax, Programs, Shell, apart, holding
from parity.paths.jax.tracing import to_jax
from parity.paths.plan import Array
from parity.paths.stage import STEP, Inputs, Seen, Stage
from parity.reached import Reached
from parity.records import Record
from parity.settings import Settings


@dataclass(frozen=True, slots=True)
class Rest:
    """What a call of the trunk leaves that is no array.

    Attributes:
        entries: the static half of what it observes. calls: how often each module was called in it.
        out: what the trunk returns, but for its tensors.
    """

    entries: tuple[Entry, ...]
    calls: Counter[str]
    out: Shell


class TorchaxStage(InTorchax):
    """A stage through torchax; see `parity.paths.stage.TorchStage`.

    Raises:
        UsageError: the mesh is larger than the devices.
    """

    def __init__(self, stage: Stage, settings: Settings) -> None:
        use_compilation_cache()
        self.stage, self.env, self.devices = stage, torchax.default_env(), make_devices(settings)
        self.reached = Reached(settings, stage.place or stage.name)
        self.jit = bool(settings["jit"])
        self.root = stage.load(settings, self.reached, traced=True)
        self.modules = module_tree(self.root)
        self.params = {name: self.devices.place(name, to_jax(x)) for name, x in named_tensors(self.root)}
        self.programs = Programs(self.jit)

    def run(self, inputs: Inputs, plan: SitePlan | None, branch: str = "") -> Seen:
        given = {k: self.tensor(x) for k, x in inputs.items()}
        frames = {name: (self.put(f.index), self.put(f.weight)) for name, f in self.stage.frames(inputs).items()}
        outer = _Outer(self.stage, plan, branch, frames)
        with self.scope(), self._routed(outer):
            outer.see({f"in.{name}": x for name, x in given.items()})
            out = self.root(**given)
            outer.see({"out": next(iter(out.values())) if len(out) == 1 else tuple(out.values())})
        if plan is not None and plan.choice != "blocks":
            # Of the default sites, which the reference has seen, a silent one is a finding: one side skips it.
            sites = {r.key.site for r in outer.records}
            require_fired(plan, plan.must_fire, outer.calls, sites, f"{self.stage.name} stage")
        arrays = {k: array_of(x) for k, x in out.items()}
        held = {k: Array(widen16(np.asarray(x)), str(x.dtype)) for k, x in arrays.items()}
        return self.stage.seen(held, branch, outer.records)

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        return ((name, widen16(np.asarray(x))) for name, x in self.params.items())

    @contextlib.contextmanager
    def _routed(self, outer: _Outer) -> Iterator[None]:
        """Within it, a call of the trunk, which holds all weights of the stage, runs its program."""
        trunk = self.root.get_submodule(self.stage.trunk)
        own = trunk.forward
        if not self.jit:
            self.reached.mark("jit")

        def routed(*args: Any, **kwargs: Any) -> Any:
            given, shell = apart((args, kwargs))
            tensors = [jax.device_put(array_of(x), self.devices.replicated) for x in given]
            (out, reduced), rest = self.programs.run(
                (outer.plan, shell.key), self._call(trunk, own, shell, outer.plan), self.params, tensors, outer.frames
            )
            outer.add(rest, reduced)
            return rest.out.filled(interop.torch_view(out))

        with replaced(trunk, "forward", routed):
            yield

    def _call(
        self, trunk: torch.nn.Module, own: Callable[..., Any], shell: Shell, plan: SitePlan | None
    ) -> Callable[[Any, list[jax.Array], Any], tuple[tuple[list[jax.Array], Any], Rest]]:
        """A call of the trunk on jax arrays, traced or not: (weights, tensors, row frames) -> (outputs, reductions).

        Args:
            own: the trunk's forward, in whose place its program stands.
        """

        def run(weights: Any, tensors: list[jax.Array], frames: Any) -> tuple[tuple[list[jax.Array], Any], Rest]:
            args, kwargs = shell.filled(interop.torch_view(tensors))
            reducer = BatchingReducer()
            tap = None if plan is None else Tap(plan, reducer, self.stage.rule, ("",), {"": interop.torch_view(frames)})
            with (
                replaced(trunk, "forward", own),
                holding(self.root, weights, self.env, self.devices),
                contextlib.nullcontext() if tap is None else attached(self.root, tap),
            ):
                out, left = apart(trunk(*args, **kwargs))
                static, reduced = ((), ([], [])) if tap is None else split(tap, reducer)
            rest = Rest(static, Counter({} if tap is None else tap.calls), left)
            return ([array_of(x) for x in out], reduced), rest

        return run


class _Outer:
    """What one run of a stage observes: the stage's own ports, and the calls of its trunk one after the other."""

    def __init__(self, stage: Stage, plan: SitePlan | None, branch: str, frames: Any) -> None:
        self.stage, self.plan, self.branch, self.frames = stage, plan, branch, frames
        self.records: list[Record] = []
        self.calls: Counter[str] = Counter()

    def see(self, values: Mapping[str, Any]) -> None:
        """The module's inputs or outputs, by the ports that its own hook would give them."""
        if self.plan is None or not self.plan.wants_module(""):
            return
        self.calls[""] = 1
        reducer = BatchingReducer()
        tap = Tap(self.plan, reducer, self.stage.rule, (self.branch,), {self.branch: interop.torch_view(self.frames)})
        for port, value in values.items():
            tap.see("", 0, port, value)
        entries, reduced = split(tap, reducer)
        self.records += jax_records(entries, reduced, STEP, self.stage.name)

    def add(self, rest: Rest, reduced: Any) -> None:
        """The records of one call of the trunk, their call numbers after those of the calls before."""
        entries = tuple(replace(counted_on(e, self.calls), branch=self.branch) for e in rest.entries)
        self.records += jax_records(entries, reduced, STEP, self.stage.name)
        self.calls.update(rest.calls)
