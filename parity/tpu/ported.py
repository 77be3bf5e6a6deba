"""A port without its TPU: built here as it is, its calls traced for devices that are not here.

Problem. A port's kernels, and the way it splits its weights, are in its own file: parity's candidate says nothing about
whether they compile.

How. The port is imported and built as for a run, on this machine's CPU, which is as many devices as the topology has.
Then each of its weights becomes a shape, a dtype and a place: where it is split over a mesh of CPUs, the same
mesh of the devices that are not here. Arrays that the port closes over, instead of giving them as `weights`, are
constants of the program. A call that names devices itself (`shard_map` over a mesh of its own) names CPUs: JAX refuses
to lower that for others, and the port's error says so.

Cost. Building the port: its weights, once, in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parity.errors import UsageError
from parity.models.family import Family
from parity.models.spec import Case
from parity.paths.families import candidate_of, with_names
from parity.paths.jax.candidate import TorchaxBackend
from parity.paths.jax.mesh import Devices
from parity.paths.loop import prepare
from parity.paths.port.load import Entry
from parity.settings import Settings
from parity.tpu.abstract import Abstract, AbstractDevices, abstract, abstract_devices, abstract_inputs


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
    ported, load = candidate_of(family, case, entry, None)
    inputs = abstract_inputs(ported, case, settings)
    loaded = load(case, settings, inputs)
    modules = with_names(prepare(loaded)).side.modules  # what a port in JAX taps is known once it is traced
    backend = loaded.backend
    if not isinstance(backend, TorchaxBackend):
        raise UsageError(f"{entry.named} runs in torch: no program of it is compiled for a TPU")
    there = [_on(x.sharding, devices) for x in jax.tree.leaves(backend.params)]
    own = next((cast(Mesh, sharding.mesh) for sharding in there if sharding is not None), placed.mesh)
    backend.devices = PortDevices(placed.mesh, placed.rules, own)
    backend.params = _elsewhere(backend.params, there, backend.devices)
    backend.frames = jax.tree.map(lambda x: backend.devices.put(x, backend.devices.replicated), backend.frames)
    return replace(abstract(backend, ported, case, inputs, ("", *modules)), scoped=backend.model)


def _elsewhere(weights: Any, there: Sequence[NamedSharding | None], devices: Devices) -> Any:
    """The weights as shapes at these places, one for each of them in order; None: whole on each device."""
    leaves, structure = jax.tree.flatten(weights)
    put = [devices.put(x, sharding or devices.replicated) for x, sharding in zip(leaves, there, strict=True)]
    return jax.tree.unflatten(structure, put)


def _on(sharding: Any, devices: Sequence[jax.Device]) -> NamedSharding | None:
    """A sharding over several devices as one over a mesh of the same axes, of other devices; None for any other."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
        return None
    mesh = sharding.mesh
    if mesh.size > len(devices):
        raise UsageError(f"the port splits a weight over {mesh.size} devices: choose a --topology with as many")
    over = np.array(devices[: mesh.size]).reshape(tuple(mesh.shape.values()))
    return NamedSharding(Mesh(over, mesh.axis_names, axis_types=mesh.axis_types), sharding.spec)
