"""The candidate path: torchax on JAX (TPU where there is one, else the CPU), as a real port runs it.

The weights become jax arrays placed on a mesh; the transformer is one program compiled by jax.jit that takes the
weights as arguments; schedule, guidance and scheduler run in the torchax environment around it. Observing happens
inside the compiled program: hooks fire while it is traced, their reductions are returned as extra outputs.

Compiled programs are kept in the cache folder between runs (JAX's persistent compilation cache).

Of a stage outside the loop each call of its trunk is one program. What is around the trunk (scaling, tiles and their
blending, chunks and their cache; cropping of a prompt's template) runs in the torchax environment call by call, as in a
port. Programs are kept by the shapes of their arguments, so all whole tiles of a picture share one; the sites' call
numbers go on from call to call.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torchax
from torch.nn import Module
from torch.nn.utils import stateless
from torchax import interop

from parity.hooks.attach import attached
from parity.hooks.methods import replaced
from parity.hooks.reduce.on_jax import BatchingReducer, array_of, jax_records, on_host, split
from parity.hooks.reduce.on_tpu import reduce_on_mesh
from parity.hooks.rows import RowRule
from parity.hooks.sites import SitePlan
from parity.hooks.tap import Entry, Tap, counted_on, require_fired
from parity.hooks.torchtools import named_tensors, uncached
from parity.models.feature_cache import Kept, calling, given_at
from parity.paths.jax.emulated import products
from parity.paths.jax.mended import attention_of, is_torchax_own, mended
from parity.paths.jax.mesh import Devices, make_devices, port_devices, use_compilation_cache
from parity.paths.jax.program import Programs, Shell, apart, holding
from parity.paths.jax.tracing import InsideJitError, TracedTap, bounded, inlining, to_jax
from parity.paths.loaded import BRANCHES, Arguments, Base, Inputs, Loaded, Predicted, StepCalls
from parity.paths.network import Network
from parity.paths.reference import mark_text_settings, silenced
from parity.paths.stage import Stage
from parity.records import OUTSIDE, Record
from parity.settings import Reached, Settings

Returned = tuple[jax.Array, Kept, Any]
"""What a call gives: prediction, kept features, reductions."""

Forward = Callable[[Any, Mapping[str, Any], Mapping[str, Any], Kept | None], tuple[Returned, tuple[Entry, ...]]]
"""(weights, arguments, row frames, kept features) -> what it gives, and the static half of what it observes."""


class TorchaxBackend(Base):
    """Calls a transformer through torchax, compiled or eagerly; see `parity.paths.reference.TorchBackend`.

    Args:
        params: its weights where they lie; None to place those of the model.

    Attributes:
        bounds: whether modules wait for the reductions before them. unequal: sites of which devices hold other values.
        safe_attention: whether torchax's defects are mended; a port runs with what it has installed, or not.
    """

    name = "torchax"
    device = "jax"

    def __init__(
        self, model: Module, network: Network, inputs: Inputs, reached: Reached, devices: Devices, params: Any = None
    ) -> None:
        self.env, self.model, self.devices = torchax.default_env(), model, devices
        self.params, self.unequal = self._on_mesh(reached) if params is None else params, list[str]()
        super().__init__(network, inputs, reached, self.put)
        if params is None and devices.mesh.shape["dp"] > 1:
            self.groups = (tuple(branch for group in network.batches for branch in group),)
        self.jit, on_tpu = bool(reached.settings["jit"]), devices.platform == "tpu"
        self.programs = Programs(self.jit, network.compiling, packed=lambda key: on_tpu and key[1] is not None)
        # A CPU computes in the order of the trace, and what it fuses across blocks stays as it is.
        self.bounds = on_tpu and not network.runs_as_it_is
        self.safe_attention = not network.runs_as_it_is and is_torchax_own(self.env)

    def _on_mesh(self, reached: Reached) -> dict[str, jax.Array]:
        """The model's weights on the mesh, by its rules."""
        self.placement = self.devices.placement((n, tuple(x.shape)) for n, x in named_tensors(self.model))
        reached.mark("mesh")
        reached.mark("sharding")
        return {n: self.devices.place(n, to_jax(x)) for n, x in named_tensors(self.model)}

    def put(self, x: np.ndarray) -> jax.Array:
        """An array, whole on every device."""
        return self.devices.put(jnp.asarray(x), self.devices.replicated)

    def tensor(self, x: torch.Tensor) -> torch.Tensor:
        """A CPU tensor moved to where it is computed, dtype kept."""
        return interop.torch_view(self.devices.put(to_jax(x), self.devices.replicated))

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """The context in which everything is computed: torchax's environment, precision, no gradients."""
        settings = self.reached.settings
        own = mended(self.env) if self.safe_attention else contextlib.nullcontext()
        with self.env, torch.no_grad(), products(settings.text("matmul_precision")), own:
            self.reached.mark("matmul_precision")
            yield

    def host(self, x: torch.Tensor) -> np.ndarray:
        return on_host(array_of(x))

    def call(self, calls: StepCalls, plan: SitePlan | None) -> Predicted:
        predictions: dict[str, torch.Tensor] = {}
        records: list[Record] = []
        if not self.jit:
            self.reached.mark("jit")
        for group in self.groups:
            names, rows = self.batch(group)
            kept = given_at(self.reached.settings, calls.step, calls.features, group)
            forward = self.forward(names, self.rules[group[0]], plan)
            (out, after, reduced), entries = self.programs.run(
                (len(group), plan), forward, self.params, self.placed(calls.of(group)), rows, kept
            )
            # Placed as every call is given them, whichever program they came from.
            calls.features[group] = tuple(self.devices.put(x, self.devices.tokens(x.shape)) for x in after)
            for i, branch in enumerate(group):
                predictions[branch] = interop.torch_view(out[i : i + 1])
            entries = entries if len(group) > 1 else tuple(replace(e, branch=group[0]) for e in entries)
            records += jax_records(entries, reduced, calls.step, lost=self.unequal)
        return predictions, records

    @property
    def idle(self) -> tuple[str, ...]:
        lost = [
            f"devices hold different values of {site}, shown as NaN: a psum or an all_gather is missing before it, and "
            "nothing behind it is judged by itself"
            for site in self.unequal[:1]
        ]
        return (*super().idle, *lost)

    def batch(self, group: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The names of the branches in a call, `("",)` for one of any, and their row frames."""
        names = group if len(group) > 1 else ("",)
        return names, {name: self.frames[b] for name, b in zip(names, group, strict=True)}

    def forward(self, names: tuple[str, ...], rule: RowRule, plan: SitePlan | None) -> Forward:
        """One call of the model on jax arrays, traced or not; they may be abstract.

        Args:
            names: of the branches in its batch (`batch`).
            plan: what to observe; None for nothing.
        """

        def forward(
            params: Any, arguments: Mapping[str, Any], frames: Mapping[str, Any], kept: Kept | None
        ) -> tuple[Returned, tuple[Entry, ...]]:
            if plan is None:
                return (*self._predicted(params, arguments, kept), ()), ()
            for inlined in (False, True):
                tap = self.tap(TracedTap, plan, self._reducer(), rule, names, interop.torch_view(frames))
                tap.may_inline, tap.attention = not inlined, lambda: attention_of(self.env)
                with contextlib.suppress(InsideJitError), inlining() if inlined else contextlib.nullcontext():
                    out, after = self._predicted(params, arguments, kept, tap)
                    break
            with self.env:
                static, reduced = split(tap)
            return (out, after, reduced), static

        return forward

    def _predicted(
        self, params: Any, arguments: Mapping[str, Any], kept: Kept | None, tap: TracedTap | None = None
    ) -> tuple[jax.Array, Kept]:
        """The prediction of a call, and the features kept of it.

        Args:
            tap: what observes it.

        Raises:
            InsideJitError: something to be observed is inside another trace, which may be inlined still.
        """
        with (
            uncached(self.model),
            holding(self.model, params, self.env, self.devices),
            calling(interop.torch_view(kept)) as cached,
            self.network.running(),
            contextlib.nullcontext() if tap is None else attached(self.model, tap),
            bounded(self.model, tap.reducer) if tap is not None and self.bounds else contextlib.nullcontext(),
        ):
            out = self.network.predict(self.model, interop.torch_view(arguments))
        if tap is not None:
            if tap.plan.choice != "blocks" and not self.network.may_be_silent and kept is None:
                # Of the default sites, which the reference has seen, a silent one is a finding: one side skips it.
                expected = tap.plan.must_fire - silenced(self.reached.settings)
                require_fired(tap.plan, expected, tap.calls, {e.site for e in tap.entries})
            self.ran |= tap.ran()
        return array_of(out), tuple(map(array_of, cached.kept))

    def _reducer(self) -> BatchingReducer:
        if not self.bounds:
            return BatchingReducer()
        mesh = self.devices.mesh
        return BatchingReducer(lambda x, start, stop, n: reduce_on_mesh(x, start, stop, mesh=mesh, items=n))

    def weights(self) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
        names = self.network.parameters(self.params)
        for name, x in self.params.items():
            yield names[name], str(x.dtype), functools.partial(on_host, x)

    def describe(self) -> tuple[str, ...]:
        return self.devices.describe()

    def placed(self, arguments: Arguments) -> dict[str, jax.Array | None]:
        """A call's arguments where the program takes them."""
        arrays = {k: None if x is None else array_of(x) for k, x in arguments.items()}
        return {k: None if x is None else self.devices.put(x, self.devices.batch(x.shape)) for k, x in arrays.items()}


def load_candidate(network: Network, settings: Settings, inputs: Inputs) -> Loaded:
    """Load the candidate path.

    Raises:
        UsageError: the mesh is larger than the devices.
    """
    devices = (port_devices if network.runs_as_it_is else make_devices)(settings).ruled_by(network.shard)
    use_compilation_cache()
    reached = network.reached(settings)
    model = network.load(settings)
    reached.mark("dtype")
    kind = TorchaxStage if isinstance(network, Stage) else TorchaxBackend
    backend = kind(model, network, inputs, reached, devices)
    adapt(backend, inputs, backend.params)
    mark_text_settings(reached, inputs)
    return Loaded(network, inputs, backend, network.modules(model))


def adapt(backend: TorchaxBackend, inputs: Inputs, weights: Any) -> None:
    """Apply the settings to a loaded model, with these weights in it, and place its activations on the mesh."""
    model, network, devices = backend.model, backend.network, backend.devices
    with backend.scope(), stateless._reparametrize_module(model, interop.torch_view(weights)):
        network.adapt(model, backend.reached, traced=True, first=inputs.conditions.get(BRANCHES[0]))
    if backend.reached.settings.changed("mesh"):
        network.constrain(model, lambda x: _constrained(x, devices))


def _constrained(x: torch.Tensor, devices: Devices) -> torch.Tensor:
    return interop.torch_view(jax.lax.with_sharding_constraint(array_of(x), devices.tokens(tuple(x.shape))))


# --- a stage outside the loop


Left = tuple[tuple[Entry, ...], Counter[str], Shell]
"""What a call of the trunk leaves that is no array: the static half of what it observes, how often each module was
called in it, and what it returns, but for its tensors."""


class TorchaxStage(TorchaxBackend):
    """Runs a stage through torchax."""

    network: Stage

    def _on_mesh(self, reached: Reached) -> dict[str, jax.Array]:
        return {name: self.devices.place(name, to_jax(x)) for name, x in named_tensors(self.model)}

    def call(self, calls: StepCalls, plan: SitePlan | None) -> Predicted:
        ((branch, given),) = calls.branches.items()
        trunk, frames = self.model.get_submodule(self.network.trunk), self.frames[branch]
        own, inside, called = trunk.forward, list[Record](), Counter[str]()
        if not self.jit:
            self.reached.mark("jit")

        def routed(*args: Any, **kwargs: Any) -> Any:
            """The trunk, which holds all weights of the stage, by its program; call numbers go on from call to call."""
            tensors, shell = apart((args, kwargs))
            placed = [jax.device_put(array_of(x), self.devices.replicated) for x in tensors]
            run = functools.partial(self._run, trunk, own, plan, shell)
            (out, reduced), (entries, counts, left) = self.programs.run(
                (plan, shell.key), run, self.params, placed, frames
            )
            counted = tuple(replace(counted_on(e, called), branch=branch) for e in entries)
            inside.extend(jax_records(counted, reduced, OUTSIDE, self.network.stage))
            called.update(counts)
            return left.filled(interop.torch_view(out))

        with replaced(trunk, "forward", routed):
            before = self._own(plan, branch, {f"in.{name}": x for name, x in given.items()})
            out = self.network.predict(self.model, given)
            records = [*before, *inside, *self._own(plan, branch, {"out": out})]
        if plan is not None and plan.choice != "blocks":
            # Of the default sites, which the reference has seen, a silent one is a finding: one side skips it.
            sites = {r.key.site for r in records}
            require_fired(plan, plan.must_fire, {"", *called}, sites, f"{self.network.stage} stage")
        return {branch: out}, records

    def _own(self, plan: SitePlan | None, branch: str, values: Mapping[str, Any]) -> list[Record]:
        """Records of the stage's own inputs or outputs, by the ports that its module's hook would give them."""
        if plan is None or not plan.wants_module(""):
            return []
        tap = self._tap(plan, branch, self.frames[branch])
        for port, value in values.items():
            tap.see("", 0, port, value)
        return jax_records(*split(tap), OUTSIDE, self.network.stage)

    def _tap(self, plan: SitePlan, branch: str, frames: Any) -> Tap:
        return Tap(plan, BatchingReducer(), self.network.rule, (branch,), {branch: interop.torch_view(frames)})

    def _run(
        self, trunk: Module, own: Any, plan: SitePlan | None, shell: Shell, weights: Any, tensors: Any, frames: Any
    ) -> tuple[tuple[list[jax.Array], Any], Left]:
        """A call of the trunk on jax arrays, traced or not: its outputs and reductions, and what it leaves.

        Args:
            own: the trunk's forward, in whose place its program stands. shell: of its arguments, and their tensors.
        """
        args, kwargs = shell.filled(interop.torch_view(tensors))
        tap = None if plan is None else self._tap(plan, "", frames)
        with (
            replaced(trunk, "forward", own),
            holding(self.model, weights, self.env, self.devices),
            contextlib.nullcontext() if tap is None else attached(self.model, tap),
        ):
            out, left = apart(trunk(*args, **kwargs))
            static, reduced = ((), ([], [])) if tap is None else split(tap)
        return ([array_of(x) for x in out], reduced), (static, Counter({} if tap is None else tap.calls), left)
