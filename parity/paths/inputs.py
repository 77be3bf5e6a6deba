"""The explicit inputs: the only things that two paths share.

Weights (a folder), prompt embeddings and masks, initial noise, number of steps. Everything else (schedule, loop,
guidance, kernels) each path computes by itself, so that a mistake in one cannot hide in the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from parity.models.family import Case, Family, require_meaning
from parity.models.feature_cache import require_cache
from parity.settings import Settings

BRANCHES = ("cond", "uncond")


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a generation starts from.

    Attributes:
        conditions: branch -> keyword of the transformer -> CPU tensor.
        noise: float32 CPU tensor of the case's latent shape, drawn from the seed.
        steps: denoising steps. seed: of the noise.
    """

    conditions: Mapping[str, Mapping[str, torch.Tensor]]
    noise: torch.Tensor
    steps: int
    seed: int


def make_inputs(
    family: Family,
    case: Case,
    reference: Settings,
    candidate: Settings,
    *,
    steps: int,
    seed: int,
    stage1: Path | None,
    other: Family | None = None,
) -> tuple[Inputs, Inputs]:
    """Inputs of both sides: the same objects, unless a setting of the text stage makes the candidate's its own.

    Args:
        other: the candidate's family where it is another: a port has a place for the settings that it declares.

    Raises:
        UsageError: what `require_place` says, or a stage-1 file that does not fit the model.
    """
    require_place(family, case, reference, steps)
    require_place(family if other is None else other, case, candidate, steps)
    noise = draw_noise(case.latent_shape, seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ours = family.conditions(case, reference, stage1, device)
    if candidate["text.byt5_dtype"] == reference["text.byt5_dtype"]:
        theirs = ours
    else:
        # The encoders' working dtype stays the reference's: a candidate's dtype must not change what it is given.
        own = reference.replace(text_byt5_dtype=candidate["text.byt5_dtype"])
        theirs = family.conditions(case, own, stage1, device)
    return Inputs(ours, noise, steps, seed), Inputs(theirs, noise, steps, seed)


def require_place(family: Family, case: Case, settings: Settings, steps: int) -> None:
    """Refuse settings that the model or the number of steps has no place for.

    Raises:
        UsageError: naming the setting.
    """
    require_meaning(family, case, settings)
    declares = getattr(family, "declares", None)
    own = declares is not None and declares("cache")
    require_cache(settings, None if own else int(case.config.get("num_layers", 0)), steps)


def draw_noise(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Initial noise as diffusers draws it from a CPU generator with this seed, in float32."""
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float32)
