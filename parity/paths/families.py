"""What a side stands on: the family of its model, a port in place of the family's transformer, and the loaded path.

A reference port that no checkpoint stands behind has a family of its own: its own inputs, one branch, Euler steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from parity.errors import UsageError
from parity.hooks.torchtools import nearest, to_torch
from parity.models.family import Family
from parity.models.folder import Case, GenerationSpec
from parity.models.generic.family import Generic
from parity.models.generic.inputs import LATENT, TIMESTEP, Made, Signature, read_inputs
from parity.paths.loaded import Inputs, Loaded
from parity.paths.loop import Loop, step_calls
from parity.paths.port.load import Entry
from parity.paths.port.ported import Ported, built
from parity.paths.reference import load_reference
from parity.paths.stage import Stage
from parity.paths.worker.extras import check_extras
from parity.settings import Capability, Settings


def load(family: Family, case: Case, settings: Settings, inputs: Inputs) -> Loaded:
    """Load a path: a candidate's own port as its `runs` says, parity's own candidate in torchax, or in torch on a
    device that is named, as a reference is."""
    if isinstance(family, Ported) and family.runs_as_it_is:
        return _load_port(family, case, settings, inputs)
    return (load_reference if settings.backend == "torch" else _load_compiled)(family, case, settings, inputs)


def _load_compiled(family: Family, case: Case, settings: Settings, inputs: Inputs) -> Loaded:
    try:
        # jax and torchax, only from here on
        from parity.paths.jax.candidate import TorchaxBackend, TorchaxStage, load_candidate
    except RuntimeError as error:
        raise UsageError(
            f"torchax cannot be imported here: {error}; `-c device=NAME` runs the candidate in torch, "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading another backend"
        ) from None

    kind = TorchaxStage if isinstance(family, Stage) else TorchaxBackend
    return load_candidate(family, case, settings, inputs, kind)


def _load_port(family: Ported, case: Case, settings: Settings, inputs: Inputs) -> Loaded:
    port = family.build(case, settings)
    if port.runs != "torch":
        check_extras()
    if port.runs == "jax":
        from parity.paths.port.jax_port import load_jax_port

        return load_jax_port(family, case, settings, inputs, port)
    family.prepared = port
    side = (load_reference if port.runs == "torch" else _load_compiled)(family, case, settings, inputs)
    modules = {family.named(m): family.named(above) if above else "" for m, above in side.modules.items()}
    return dataclasses.replace(side, modules=modules)


def with_names(loop: Loop) -> Loop:
    """A loop whose side knows the names that it will be observed under; those that a JAX port taps show in a trace."""
    side, backend = loop.side, loop.side.backend
    if backend.heard is None:
        return loop
    with backend.scope():
        backend.hear(step_calls(loop, 0))
    paths = dict.fromkeys([*side.modules, *sorted(backend.heard)], "")
    return dataclasses.replace(loop, side=dataclasses.replace(side, modules={p: nearest(p, paths) for p in paths if p}))


class PortInputs(Generic):
    """See `parity.models.family.Family`; made by `from_tensors`."""

    title = "a port with inputs of its own"

    def lacks(self, config: Mapping[str, Any]) -> Mapping[Capability, str]:
        return {}

    def model_arguments(
        self, case: Case, settings: Settings, latents: torch.Tensor, timestep: torch.Tensor, dtype: torch.dtype
    ) -> dict[str, Any]:
        if TIMESTEP not in self.given:
            return {LATENT: latents.to(dtype)}
        if not settings.changed("timestep_dtype"):
            timestep = timestep.to(dtype)  # with all other inputs; a plain module has nothing that would cast it
        return {LATENT: latents.to(dtype), TIMESTEP: timestep}


def reference_case(entry: Entry, settings: Settings, file: Path | None) -> tuple[Case, PortInputs]:
    """Case and family of a reference port without a model: it is built once to be asked for its inputs.

    Args:
        file: of the user's (`--inputs`), whose tensors take precedence.

    Raises:
        UsageError: no latents among the inputs, or something that is no array.
    """
    nothing = Case(entry.text, entry.path.parent, {}, GenerationSpec(), ())
    port, _ = built(entry, "reference", nothing, settings, {})
    for name, x in port.inputs.items():
        if not hasattr(x, "__array__"):
            raise UsageError(f"{entry.named}: the input '{name}' is of type {type(x).__name__}, not an array")
    given = {name: to_torch(x).cpu() for name, x in port.inputs.items()}
    names = tuple(given)
    if file is not None:
        given |= read_inputs(file, None)
    if LATENT not in given:
        raise UsageError(
            f"{entry.named}: without --model a reference needs inputs: its port's `inputs` must hold '{LATENT}' (the "
            f"latents), found {', '.join(names) or 'none'}; or give them with --inputs FILE.safetensors"
        )
    if given[LATENT].ndim < 3 or given[LATENT].shape[0] != 1:
        raise UsageError(f"{entry.named}: '{LATENT}' must be [1, ...], found {list(given[LATENT].shape)}")
    timesteps = given.get(TIMESTEP)
    if timesteps is not None and timesteps.ndim == 0:
        given[TIMESTEP] = timesteps[None]
    return from_tensors(entry.text, entry.path, given)


def from_tensors(text: str, file: Path, given: Mapping[str, torch.Tensor]) -> tuple[Case, PortInputs]:
    """Case and family of a reference port, wherever it runs, from its inputs.

    Args:
        text: the port, `FILE:FUNCTION`.
    """
    timesteps, spec = given.get(TIMESTEP), GenerationSpec()
    scale = float(timesteps[0]) if timesteps is not None and timesteps.ndim == 1 and timesteps[0] > 0 else 1000.0
    family = PortInputs(Signature(file.name, {}, (), tuple(given), scale), given, Made(given, {}))
    return Case(text, file.resolve().parent, {}, spec, family.latent_shape(file, spec)), family
