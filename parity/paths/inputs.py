"""The explicit inputs: the only things that two paths share.

Weights (a folder), prompt embeddings and masks, initial noise, number of steps. Everything else (schedule, loop,
guidance, kernels) each path computes by itself, so that a mistake in one cannot hide in the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from parity.errors import UsageError
from parity.hooks.reduce.transfer import to_numpy
from parity.models.family import Family, require_meaning
from parity.models.feature_cache import require_cache
from parity.models.spec import Case
from parity.paths.plan import Array
from parity.settings import Settings

BRANCHES = ("cond", "uncond")


Conditions = Mapping[str, Mapping[str, torch.Tensor]]
"""Branch -> keyword of the transformer -> CPU tensor."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a generation starts from.

    Attributes:
        conditions: branch -> keyword of the transformer -> CPU tensor.
        noise: float32 CPU tensor of the case's latent shape, drawn from the seed.
        steps: denoising steps. seed: of the noise.
        beside: what the runs made that measured the text stage's floors, by name, and `float32`, the truth: the loop's
            runs of the same names go on from them. tokens: what that stage encoded, by name. Both are empty where the
            conditions are not those of the side's own text stage.
        start: the initial latents as they are, in place of the noise.
    """

    conditions: Conditions
    noise: torch.Tensor
    steps: int
    seed: int
    beside: Mapping[str, Conditions] = field(default_factory=dict)
    tokens: Mapping[str, torch.Tensor] = field(default_factory=dict)
    start: torch.Tensor | None = None

    def of(self, name: str) -> Inputs:
        """Those of a run of the reference that rounds otherwise: with the embeddings of its own text stage, if any."""
        return replace(self, conditions=self.beside.get(name, self.conditions))


def require_place(family: Family, case: Case, settings: Settings, steps: int) -> None:
    """Refuse settings that the model or the number of steps has no place for.

    Raises:
        UsageError: naming the setting.
    """
    require_meaning(family, case, settings)
    require_cache(settings, None if family.declares("cache") else int(case.config.get("num_layers", 0)), steps)


def require_fit(family: Family, case: Case, conditions: Conditions, start: torch.Tensor) -> None:
    """Refuse a golden's embeddings and noise that are not of this model's sizes.

    Raises:
        UsageError: naming the first that does not fit.
    """
    if tuple(start.shape) != tuple(case.latent_shape):
        raise UsageError(
            f"--inputs: the golden's noise has shape {list(start.shape)}, the latents of '{case.name}' "
            f"{list(case.latent_shape)}: it was recorded with another model or size; give --model, or record it again"
        )
    branches = {branch for group in family.batches for branch in group}
    if set(conditions) != branches:
        raise UsageError(
            f"--inputs: the golden holds embeddings of {', '.join(sorted(conditions)) or 'no branch'}, "
            f"'{case.name}' takes {', '.join(sorted(branches))}: it was recorded with another model"
        )
    for stream in family.streams:
        width = int(case.config[stream.width])
        for branch, given in conditions.items():
            found = given.get(stream.argument)
            if found is None or found.ndim != 3 or found.shape[-1] != width:
                shape = "none" if found is None else str(list(found.shape))
                raise UsageError(
                    f"--inputs: '{branch}.{stream.argument}' must be [1, L, {width}] for '{case.name}', found {shape}"
                )


def draw_noise(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Initial noise as diffusers draws it from a CPU generator with this seed, in float32."""
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float32)


def array(x: torch.Tensor) -> Array:
    """A tensor's values on the host; 16-bit floats widened, which loses nothing."""
    return Array(to_numpy(x), str(x.dtype).removeprefix("torch."))


def tensor(x: Array) -> torch.Tensor:
    """The tensor on the CPU, of its own dtype."""
    dtype: torch.dtype = getattr(torch, x.dtype)
    return torch.from_numpy(x.values.copy()).to(dtype)
