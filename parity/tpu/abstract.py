"""A candidate that is compiled and not run: parity's own without its weights, or a port without its TPU.

Problem. A program is compiled from shapes, dtypes and places, and a full-size checkpoint has tens of gigabytes. A
port's kernels, and the way it splits its weights, are in its own file: parity's candidate says nothing about whether
they compile.

How. The calls are those that `parity.paths.jax.candidate` makes, on arrays of shapes alone. The transformer is made of
its config on torch's meta device; on a mesh of devices that are not here every array is a `ShapeDtypeStruct` with its
sharding (`AbstractDevices.put`). Everything else is the candidate's own code: the settings' patches and the sharding
rules. Inputs are zeros of the sizes that the configs say.

A port is imported and built as for a run, on this machine's CPU, which is as many devices as the topology has. Then
each of its weights becomes a shape, a dtype and a place: where it is split over a mesh of CPUs, the same mesh of the
devices that are not here. Arrays that the port closes over, instead of giving them as `weights`, are constants of the
program. A call that names devices itself (`shard_map` over a mesh of its own) names CPUs: JAX refuses to lower that for
others, and the port's error says so.

Cost. The trace: seconds for a small model, a minute for 54 blocks. No weight of a model is made or read; a port's are
made once, in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parity.errors import UsageError
from parity.hooks.sites import SitePlan
from parity.hooks.torchtools import callable_modules
from parity.models.family import Family
from parity.models.folder import Case, skeleton
from parity.models.patches import DTYPES, as_loaded, setting_dtype
from parity.paths.jax.candidate import TorchaxBackend, adapt
from parity.paths.jax.mesh import Devices
from parity.paths.jax.tracing import scoped, to_jax
from parity.paths.live import load, with_names
from parity.paths.loaded import Inputs, Loaded, batched
from parity.paths.loop import latents_dtype, prepare, shared_arguments
from parity.paths.network import Network, require_meaning
from parity.paths.port.load import Entry
from parity.paths.port.ported import Ported
from parity.records import LOOP_STAGE
from parity.settings import SETTINGS, Reached, Settings


class AbstractDevices(Devices):
    """Devices that are not here: what is put on them is a shape, a dtype and a place."""

    def put(self, x: Any, sharding: NamedSharding) -> jax.Array:
        return cast(jax.Array, jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding))


@dataclass(frozen=True, slots=True)
class Abstract:
    """A candidate whose calls can be lowered and not run.

    Attributes:
        backend: the candidate's own. arguments: of one call, abstract. modules: paths of the model's.
    """

    backend: TorchaxBackend
    arguments: Mapping[str, Any]
    modules: frozenset[str]

    def lowered(self, plan: SitePlan | None = None) -> jax.stages.Lowered:
        """The program of a call, whose operations say of which module they are.

        Args:
            plan: what is observed in it; None for nothing.
        """
        backend, group = self.backend, self.backend.groups[0]
        names, frames = backend.batch(group)
        with backend.scope(), scoped(backend.model):
            forward = backend.forward(names, backend.rules[group[0]], plan)
            found, _ = backend.programs.lowered(forward, backend.params, self.arguments, frames, None)
        return found


def abstract_candidate(family: Family, case: Case, settings: Settings, devices: Sequence[jax.Device]) -> Abstract:
    """A candidate on the first of these devices, as many as its mesh has.

    Raises:
        UsageError: a setting has no meaning for the model, or nothing is compiled with it.
    """
    network = Network(family, case)
    require_meaning(network, settings)
    idle = [s.name for s in SETTINGS if settings.changed(s.name) and not s.applies_in(LOOP_STAGE)]
    if idle:
        raise UsageError(f"{', '.join(idle)} changes nothing in the transformer's program: leave it out")
    placed = abstract_devices(settings, devices)
    dtype = DTYPES[settings.text("dtype")]
    reached = Reached(settings)
    model = as_loaded(skeleton(case.folder, "transformer"), dtype).eval().requires_grad_(False)
    reached.mark("dtype")
    inputs = abstract_inputs(network, settings)
    backend = TorchaxBackend(model, network, inputs, reached, placed)
    # The settings' patches ask where the weights are and of which dtype: one stands for all of them.
    first = next(iter(backend.params))
    adapt(backend, inputs, {first: jnp.zeros((), dtype=jnp.dtype(settings.text("dtype")))})
    side = Loaded(network, inputs, backend, {})
    return Abstract(backend, _arguments(side, backend), frozenset(callable_modules(model)))


def abstract_devices(settings: Settings, devices: Sequence[jax.Device]) -> AbstractDevices:
    """The mesh of the settings, on the first of these devices.

    Raises:
        UsageError: nothing is compiled with these settings.
    """
    if not settings["jit"]:
        raise UsageError("jit=false compiles no program: leave it out")
    return AbstractDevices.of(settings, devices[: math.prod(settings.mesh_shape)])


def abstract_inputs(network: Network, settings: Settings) -> Inputs:
    """One step's inputs: embeddings of zeros and masks of ones, as large as the configs say."""
    case, noise = network.case, torch.zeros(network.case.latent_shape)
    if not network.family.streams:
        return Inputs(network.family.conditions(case, settings, None, torch.device("cpu")), noise, 1, 0)
    dtype = DTYPES[settings.text("dtype")]
    one: dict[str, torch.Tensor] = {}
    for stream in network.family.streams:
        tokens = stream.tokens(case.spec)
        one[stream.argument] = torch.zeros((1, tokens, int(case.config[stream.width])), dtype=dtype)
        if stream.masked:
            one[stream.mask_argument] = torch.ones((1, tokens), dtype=dtype)
    return Inputs({branch: dict(one) for group in network.batches for branch in group}, noise, 1, 0)


def _arguments(side: Loaded, backend: TorchaxBackend) -> dict[str, Any]:
    """What the loop gives the transformer at its first step, placed on devices that are not here."""
    inputs = side.inputs
    sampler = side.network.sampler(inputs.seed)
    sampler.set_schedule(inputs.steps, "cpu", lambda x: x, setting_dtype(side.settings, "schedule_dtype"))
    latents = sampler.start(inputs.noise.to(latents_dtype(side)))
    shared = shared_arguments(side, sampler, latents, 0)
    given = batched([inputs.conditions[branch] for branch in backend.groups[0]], shared)
    placed = backend.devices
    return {k: None if x is None else placed.put(to_jax(x), placed.batch(tuple(x.shape))) for k, x in given.items()}


@dataclass(frozen=True)
class PortDevices(AbstractDevices):
    """Devices that are not here, of a port that may have a mesh of its own.

    Attributes:
        own: the mesh that it splits its weights over; what it does not split is whole on each of its devices.
    """

    own: Mesh

    @property
    def size(self) -> int:
        return int(self.own.size)

    def put(self, x: Any, sharding: NamedSharding) -> jax.Array:
        return super().put(x, sharding if sharding.mesh == self.own else NamedSharding(self.own, PartitionSpec()))


def abstract_port(
    entry: Entry, family: Family, case: Case, settings: Settings, devices: Sequence[jax.Device]
) -> Abstract:
    """A port, on as many of these devices as it splits its weights over.

    Args:
        family: of the model that it ports. settings: the port's.

    Raises:
        UsageError: what the port's code raises; it runs in torch, or splits a weight over more devices than there are.
    """
    placed = abstract_devices(settings, devices)
    ported = Ported(family, case, entry, "candidate", runs_as_it_is=True)
    loaded = load(ported, settings, abstract_inputs(ported, settings))
    modules = with_names(prepare(loaded)).side.modules  # what a port in JAX taps is known once it is traced
    backend = loaded.backend
    if not isinstance(backend, TorchaxBackend):
        raise UsageError(f"{entry.named} runs in torch: no program of it is compiled for a TPU")
    weights, structure = jax.tree.flatten(backend.params)
    there = [_on(x.sharding, devices) for x in weights]
    own = next((cast(Mesh, sharding.mesh) for sharding in there if sharding is not None), placed.mesh)
    backend.devices = elsewhere = PortDevices(placed.mesh, placed.rules, own)
    whole = elsewhere.replicated
    moved = [elsewhere.put(x, sharding or whole) for x, sharding in zip(weights, there, strict=True)]
    backend.params = jax.tree.unflatten(structure, moved)
    backend.frames = jax.tree.map(lambda x: elsewhere.put(x, whole), backend.frames)
    return Abstract(backend, _arguments(loaded, backend), frozenset(("", *modules)))


def _on(sharding: Any, devices: Sequence[jax.Device]) -> NamedSharding | None:
    """A sharding over several devices as one over a mesh of the same axes, of other devices; None for any other."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
        return None
    mesh = sharding.mesh
    if mesh.size > len(devices):
        raise UsageError(f"the port splits a weight over {mesh.size} devices: choose a --topology with as many")
    over = np.array(devices[: mesh.size]).reshape(tuple(mesh.shape.values()))
    return NamedSharding(Mesh(over, mesh.axis_names, axis_types=mesh.axis_types), sharding.spec)
