"""The explicit inputs of one path, without a side around it."""

from __future__ import annotations

import torch

from parity.models.family import Family
from parity.models.spec import Case
from parity.paths.inputs import Inputs, draw_noise, require_place
from parity.settings import Settings


def make_inputs(family: Family, case: Case, settings: Settings, *, steps: int = 1, seed: int = 0) -> Inputs:
    """Embeddings that a reference with these settings encodes, and the noise of a seed."""
    require_place(family, case, settings, steps)
    conditions = family.conditions(case, settings, None, torch.device("cpu"))
    return Inputs(conditions, draw_noise(case.latent_shape, seed), steps, seed)
