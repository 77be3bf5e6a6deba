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
import torch
from torchax import interop

from parity.hooks.attach import attached
from parity.hooks.methods import replaced
from parity.hooks.reduce.on_jax import BatchingReducer, array_of, jax_records, split
from parity.hooks.sites import SitePlan
from parity.hooks.tap import Entry, Tap, counted_on, require_fired
from parity.hooks.torchtools import named_tensors
from parity.paths.jax.candidate import TorchaxBackend
from parity.paths.jax.program import Shell, apart, holding
from parity.paths.jax.tracing import to_jax
from parity.paths.loaded import Predicted, StepCalls
from parity.paths.plan import STAGES_STEP
from parity.paths.stage import Stage
from parity.records import Record
from parity.settings import Reached


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


class TorchaxStage(TorchaxBackend):
    """Runs a stage through torchax."""

    family: Stage

    def _on_mesh(self, reached: Reached) -> dict[str, jax.Array]:
        return {name: self.devices.place(name, to_jax(x)) for name, x in named_tensors(self.model)}

    def call(self, calls: StepCalls, plan: SitePlan | None) -> Predicted:
        ((branch, given),) = calls.branches.items()
        outer = _Outer(self.family, plan, branch, self.frames[branch])
        with self._routed(outer):
            outer.see({f"in.{name}": x for name, x in given.items()})
            out = self.family.predict(self.model, given)
            outer.see({"out": out})
        if plan is not None and plan.choice != "blocks":
            # Of the default sites, which the reference has seen, a silent one is a finding: one side skips it.
            sites = {r.key.site for r in outer.records}
            require_fired(plan, plan.must_fire, outer.calls, sites, f"{self.family.stage} stage")
        return {branch: out}, outer.records

    @contextlib.contextmanager
    def _routed(self, outer: _Outer) -> Iterator[None]:
        """Within it, a call of the trunk, which holds all weights of the stage, runs its program."""
        trunk = self.model.get_submodule(self.family.trunk)
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
            tap = (
                None if plan is None else Tap(plan, reducer, self.family.rule, ("",), {"": interop.torch_view(frames)})
            )
            with (
                replaced(trunk, "forward", own),
                holding(self.model, weights, self.env, self.devices),
                contextlib.nullcontext() if tap is None else attached(self.model, tap),
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
        self.records += jax_records(entries, reduced, STAGES_STEP, self.stage.stage)

    def add(self, rest: Rest, reduced: Any) -> None:
        """The records of one call of the trunk, their call numbers after those of the calls before."""
        entries = tuple(replace(counted_on(e, self.calls), branch=self.branch) for e in rest.entries)
        self.records += jax_records(entries, reduced, STAGES_STEP, self.stage.stage)
        self.calls.update(rest.calls)
