"""The explicit inputs: the only things that two paths share.

Weights (a folder), prompt embeddings and masks, initial noise, number of steps. Everything else (schedule, loop,
guidance, kernels) each path computes by itself, so that a mistake in one cannot hide in the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from parity.models.family import Family, require_meaning
from parity.models.feature_cache import require_cache
from parity.models.spec import Case
from parity.settings import Settings

BRANCHES = ("cond", "uncond")


Conditions = Mapping[str, Mapping[str, torch.Tensor]]
"""Branch -> keyword of the transformer -> CPU tensor."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Embeddings that a side's own text stage made.

    Attributes:
        own: what the side is given. beside: what the runs made that measured the text stage's floors, by name, and
            `float32`, the truth: the loop's runs of the same names go on from them.
        tokens: what both sides encoded, by name.
    """

    own: Conditions
    beside: Mapping[str, Conditions]
    tokens: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a generation starts from.

    Attributes:
        conditions: branch -> keyword of the transformer -> CPU tensor.
        noise: float32 CPU tensor of the case's latent shape, drawn from the seed.
        steps: denoising steps. seed: of the noise.
        encoded: where the conditions come from, if it is the side's own text stage.
    """

    conditions: Conditions
    noise: torch.Tensor
    steps: int
    seed: int
    encoded: Encoded | None = None

    def of(self, name: str) -> Inputs:
        """Those of a run of the reference that rounds otherwise: with the embeddings of its own text stage, if any."""
        if self.encoded is None or name not in self.encoded.beside:
            return self
        return replace(self, conditions=self.encoded.beside[name])


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
    encoded: tuple[Encoded, Encoded] | None = None,
) -> tuple[Inputs, Inputs]:
    """Inputs of both sides: the same objects, unless a setting of the text stage makes the candidate's its own.

    Args:
        other: the candidate's family where it is another: a port has a place for the settings that it declares.
        encoded: each side's own embeddings, where the text stage has made them.

    Raises:
        UsageError: what `require_place` says, or a stage-1 file that does not fit the model.
    """
    require_place(family, case, reference, steps)
    require_place(family if other is None else other, case, candidate, steps)
    noise = draw_noise(case.latent_shape, seed)
    if encoded is not None:
        ours, theirs = (Inputs(side.own, noise, steps, seed, side) for side in encoded)
        return ours, theirs
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made = family.conditions(case, reference, stage1, device)
    if candidate["text.byt5_dtype"] == reference["text.byt5_dtype"]:
        changed = made
    else:
        # The encoders' working dtype stays the reference's: a candidate's dtype must not change what it is given.
        own = reference.replace(text_byt5_dtype=candidate["text.byt5_dtype"])
        changed = family.conditions(case, own, stage1, device)
    return Inputs(made, noise, steps, seed), Inputs(changed, noise, steps, seed)


def require_place(family: Family, case: Case, settings: Settings, steps: int) -> None:
    """Refuse settings that the model or the number of steps has no place for.

    Raises:
        UsageError: naming the setting.
    """
    require_meaning(family, case, settings)
    require_cache(settings, None if family.declares("cache") else int(case.config.get("num_layers", 0)), steps)


def draw_noise(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Initial noise as diffusers draws it from a CPU generator with this seed, in float32."""
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float32)
