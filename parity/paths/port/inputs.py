"""The family of a reference port that no checkpoint stands behind: its own inputs, one branch, Euler steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.models.generic.family import Generic
from parity.models.generic.inputs import LATENT, TIMESTEP, Made, Signature, read_inputs
from parity.models.spec import Case, GenerationSpec
from parity.paths.port.load import Entry
from parity.port import Port
from parity.settings import Capability, Settings


class PortInputs(Generic):
    """See `parity.models.family.Family`; made by `inputs_of`."""

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


def inputs_of(entry: Entry, port: Port, file: Path | None) -> PortInputs:
    """The family of a reference port.

    Args:
        file: of the user's (`--inputs`), whose tensors take precedence.

    Raises:
        UsageError: no latents among the inputs, or something that is no array.
    """
    given = {name: _tensor(entry, name, value) for name, value in port.inputs.items()}
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
    return _family(entry.path.name, given)


def from_tensors(model: str, given: Mapping[str, torch.Tensor]) -> tuple[Case, PortInputs]:
    """Case and family of a reference port that runs elsewhere, from its inputs.

    Args:
        model: the port, `FILE:FUNCTION`.
    """
    file = Path(model.rpartition(":")[0])
    family = _family(file.name, given)
    spec = GenerationSpec()
    return Case(model, file.resolve().parent, {}, spec, family.latent_shape(file, spec)), family


def _family(name: str, given: Mapping[str, torch.Tensor]) -> PortInputs:
    timesteps = given.get(TIMESTEP)
    scale = float(timesteps[0]) if timesteps is not None and timesteps.ndim == 1 and timesteps[0] > 0 else 1000.0
    return PortInputs(Signature(name, {}, (), tuple(given), scale), given, Made(given, {}))


def _tensor(entry: Entry, name: str, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return torch.from_numpy(np.array(value))
    raise UsageError(f"{entry.named}: the input '{name}' is of type {type(value).__name__}, not an array")
