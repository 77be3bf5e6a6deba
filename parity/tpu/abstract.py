"""The candidate without its weights: the same calls as `parity.paths.jax.candidate` makes, on arrays of shapes alone.

Problem. A program is compiled from shapes, dtypes and places, and a full-size checkpoint has tens of gigabytes.

How. The transformer is made of its config on torch's meta device; on a mesh of devices that are not here every array
is a `ShapeDtypeStruct` with its sharding (`AbstractDevices.put`). Everything else is the candidate's own code: the
settings' patches and the sharding rules. Inputs are zeros of the sizes that the configs say.

Cost. The trace: seconds for a small model, a minute for 54 blocks. No weight is made or read.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import torch
from jax.sharding import NamedSharding

from parity.errors import UsageError
from parity.hooks.torchtools import callable_modules
from parity.models.family import Family, require_meaning
from parity.models.folder import skeleton
from parity.models.patches import DTYPES, as_loaded, setting_dtype
from parity.models.spec import Case
from parity.models.stage1 import Conditions
from parity.paths.inputs import Inputs
from parity.paths.jax.candidate import TorchaxBackend, adapt
from parity.paths.jax.mesh import Devices, make_mesh, rules_of
from parity.paths.jax.tracing import scoped, to_jax
from parity.paths.loaded import batched
from parity.paths.plan import LOOP_STAGE
from parity.reached import Reached
from parity.settings import SETTINGS, Settings

_OF_DEVICES = ("mesh", "sharding")
"""Settings that say where any program lies."""


class AbstractDevices(Devices):
    """Devices that are not here: what is put on them is a shape, a dtype and a place."""

    def put(self, x: Any, sharding: NamedSharding) -> jax.Array:
        return cast(jax.Array, jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding))


@dataclass(frozen=True, slots=True)
class Abstract:
    """A candidate whose calls can be lowered and not run.

    Attributes:
        backend: the candidate's own. arguments: of one call, abstract. frames: by the names of the batch.
        names: of the branches in the call's batch; `("",)` for one of any. modules: paths of the model's.
        scoped: the module whose operations are to say whose they are, if the backend does not see to it.
    """

    backend: TorchaxBackend
    arguments: Mapping[str, Any]
    frames: Mapping[str, Any]
    names: tuple[str, ...]
    modules: frozenset[str]
    scoped: torch.nn.Module | None = None

    @property
    def devices(self) -> int:
        """How many the program is for."""
        return self.backend.devices.size

    def lowered(self) -> jax.stages.Lowered:
        """The program of a call."""
        backend = self.backend
        rule = backend.rules[backend.groups[0][0]]
        with backend.scope(), contextlib.nullcontext() if self.scoped is None else scoped(self.scoped):
            forward = backend.forward(self.names, rule, None)
            found, _ = backend.programs.lowered(forward, backend.params, self.arguments, self.frames, None)
        return found


def _require_program(settings: Settings) -> None:
    """Refuse settings that change nothing in the transformer's program.

    Raises:
        UsageError: there are some.
    """
    idle = [s.name for s in SETTINGS if settings.changed(s.name) and not s.applies_in(LOOP_STAGE)]
    idle = [name for name in idle if name not in _OF_DEVICES]
    if idle:
        raise UsageError(f"{', '.join(idle)} changes nothing in the transformer's program: leave it out")


def abstract_candidate(family: Family, case: Case, settings: Settings, devices: Sequence[jax.Device]) -> Abstract:
    """A candidate on the first of these devices, as many as its mesh has.

    Raises:
        UsageError: a setting has no meaning for the model, or nothing is compiled with it.
    """
    require_meaning(family, case, settings)
    _require_program(settings)
    placed = abstract_devices(settings, devices)
    dtype = DTYPES[settings.text("dtype")]
    reached = Reached(settings)
    model = as_loaded(skeleton(case.folder, "transformer"), dtype).eval().requires_grad_(False)
    reached.mark("dtype")
    inputs = abstract_inputs(family, case, settings)
    backend = TorchaxBackend(model, family, case, inputs, reached, placed)
    # The settings' patches ask where the weights are and of which dtype: one stands for all of them.
    first = next(iter(backend.params))
    adapt(backend, family, case, inputs, {first: jnp.zeros((), dtype=jnp.dtype(settings.text("dtype")))})
    return abstract(backend, family, case, inputs, callable_modules(model))


def abstract_devices(settings: Settings, devices: Sequence[jax.Device]) -> AbstractDevices:
    """The mesh of the settings, on the first of these devices.

    Raises:
        UsageError: nothing is compiled with these settings.
    """
    if not settings["jit"]:
        raise UsageError("jit=false compiles no program: leave it out")
    return AbstractDevices(make_mesh(settings, devices[: math.prod(settings.mesh_shape)]), rules_of(settings))


def abstract_inputs(family: Family, case: Case, settings: Settings) -> Inputs:
    """One step's inputs: zeros of the sizes that the configs say."""
    return Inputs(_conditions(family, case, settings), torch.zeros(case.latent_shape), 1, 0)


def abstract(backend: TorchaxBackend, family: Family, case: Case, inputs: Inputs, modules: Iterable[str]) -> Abstract:
    """A candidate whose backend is on devices that are not here."""
    group = backend.groups[0]
    names = group if len(group) > 1 else ("",)
    frames = dict(zip(names, (backend.frames[b] for b in group), strict=True))
    return Abstract(backend, _arguments(backend, family, case, inputs), frames, names, frozenset(modules))


def _conditions(family: Family, case: Case, settings: Settings) -> Conditions:
    """Branch -> argument -> embeddings of zeros and masks of ones, as long as the configs say."""
    lengths = family.text_lengths(case)
    if not lengths:
        return family.conditions(case, settings, None, torch.device("cpu"))
    dtype = DTYPES[settings.text("dtype")]
    one: dict[str, torch.Tensor] = {}
    for stream in family.streams:
        tokens = lengths[stream.argument]
        one[stream.argument] = torch.zeros((1, tokens, int(case.config[stream.width])), dtype=dtype)
        if stream.masked:
            one[stream.mask_argument] = torch.ones((1, tokens), dtype=dtype)
    branches = [branch for group in family.batches for branch in group]
    return {branch: dict(one) for branch in branches}


def _arguments(backend: TorchaxBackend, family: Family, case: Case, inputs: Inputs) -> dict[str, Any]:
    """What the loop gives the transformer at its first step, placed; `parity.paths.loop` in torch alone."""
    settings = backend.reached.settings
    sampler = family.sampler(case, inputs.seed)
    sampler.set_schedule(inputs.steps, "cpu", lambda x: x, setting_dtype(settings, "schedule_dtype"))
    noise = inputs.noise.to(setting_dtype(settings, "latents_dtype") or backend.dtype)
    latents, timestep = sampler.model_input(sampler.start(noise), 0)
    narrow = setting_dtype(settings, "timestep_dtype")
    shared = family.model_arguments(
        case, settings, latents, timestep if narrow is None else timestep.to(narrow), backend.dtype
    )
    given = batched([inputs.conditions[branch] for branch in backend.groups[0]], shared)
    placed = backend.devices
    return {k: None if x is None else placed.put(to_jax(x), placed.batch(tuple(x.shape))) for k, x in given.items()}
