"""A family that stands on another: what it does not do itself is the other's, member by member.

Every member of `parity.models.family.Family` that does not concern the transformer's own code is listed here, so that a
type checker sees what a port takes over and a new member of `Family` is decided on here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from parity.hooks.rows import PairedRule, RowFrame
from parity.models.family import Condition, Family, Said
from parity.models.sampler import Sampler
from parity.models.spec import Case, GenerationSpec
from parity.models.stage_files import Conditions, Stream
from parity.models.text import TextStage
from parity.settings import Capability, Settings


@dataclass
class Over(Family):
    """See the module's docstring.

    Attributes:
        base: the family that it stands on.
    """

    base: Family

    @property
    def title(self) -> str:
        return self.base.title

    @property
    def batches(self) -> tuple[tuple[str, ...], ...]:
        return self.base.batches

    @property
    def streams(self) -> tuple[Stream, ...]:
        return self.base.streams

    def lacks(self, config: Mapping[str, Any]) -> Mapping[Capability, str]:
        return self.base.lacks(config)

    def without(self, config: Mapping[str, Any]) -> Mapping[str, str]:
        return self.base.without(config)

    def remarks(self, case: Case) -> str:
        return self.base.remarks(case)

    def checks(self, case: Case, role: str) -> tuple[Said, ...]:
        return self.base.checks(case, role)

    def tensors(self) -> Mapping[str, torch.Tensor]:
        return self.base.tensors()

    def output_shape(self, case: Case) -> tuple[int, ...] | None:
        return self.base.output_shape(case)

    def latent_shape(self, folder: Path, spec: GenerationSpec) -> tuple[int, ...]:
        return self.base.latent_shape(folder, spec)

    def token_grid(self, case: Case) -> tuple[int, int, int] | None:
        return self.base.token_grid(case)

    def conditions(self, case: Case, settings: Settings, stage1: Path | None, device: torch.device) -> Conditions:
        return self.base.conditions(case, settings, stage1, device)

    def text(self, case: Case) -> TextStage:
        return self.base.text(case)

    def write_stage1(self, path: Path, conditions: Mapping[str, Condition]) -> bool:
        return self.base.write_stage1(path, conditions)

    def sampler(self, case: Case, seed: int) -> Sampler:
        return self.base.sampler(case, seed)

    def stage2(self, case: Case, latents: torch.Tensor) -> torch.Tensor:
        return self.base.stage2(case, latents)

    def model_arguments(
        self, case: Case, settings: Settings, latents: torch.Tensor, timestep: torch.Tensor, dtype: torch.dtype
    ) -> dict[str, Any]:
        return self.base.model_arguments(case, settings, latents, timestep, dtype)

    def row_rule(self, case: Case, settings: Settings, condition: Condition) -> PairedRule:
        return self.base.row_rule(case, settings, condition)

    def frames(self, case: Case, settings: Settings, condition: Condition) -> dict[str, RowFrame]:
        return self.base.frames(case, settings, condition)
