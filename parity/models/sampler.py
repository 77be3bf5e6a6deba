"""What differs between families in the denoising loop: schedule, guidance and step, as their pipelines do them.

The loop (`parity.paths.loop`) is written once; a sampler holds diffusers' own scheduler (and guider) of one side and
calls them as the family's pipeline does. It keeps their state, so each side, and each variant of one, has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

Place = Callable[[torch.Tensor], torch.Tensor]
"""Moves a CPU tensor to where the path computes, dtype kept."""


class Sampler(Protocol):
    """One side's schedule, guidance and scheduler.

    Attributes:
        guidance_scale: in use. timesteps: [steps], once the schedule is set.
        sigmas: [steps + 1], the standard deviation of the noise in the latents before each step and after the last.
        end: what the last sigma should be. step_index: the scheduler's own counter; None where it has none or has not
            stepped.
        state: what it carries from step to step beside the latents, by name; empty before the first.
    """

    guidance_scale: float
    timesteps: torch.Tensor
    state: dict[str, torch.Tensor]

    @property
    def sigmas(self) -> torch.Tensor: ...

    @property
    def end(self) -> float:
        return 0.0

    @property
    def step_index(self) -> int | None:
        return None

    def fresh(self) -> Sampler:
        """The same, with objects of its own that have not stepped."""
        ...

    def set_schedule(self, steps: int, device: Any, place: Place, dtype: torch.dtype | None) -> None:
        """Set the schedule anew, rounded to `dtype` where one is given, and forget every step."""
        ...

    def start(self, noise: torch.Tensor) -> torch.Tensor:
        """The initial latents from the initial noise."""
        return noise

    def model_input(self, latents: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents and timestep [B] as the transformer is given them."""
        return latents, self.timesteps[step].expand(latents.shape[0])

    def guide(self, predictions: Mapping[str, torch.Tensor], step: int, dtype: torch.dtype | None) -> torch.Tensor:
        """The branches' predictions combined, in `dtype` where one is given; in the pipeline's own dtype."""
        ...

    def step(self, guided: torch.Tensor, latents: torch.Tensor, step: int) -> torch.Tensor:
        """The latents after a step, in the scheduler's dtype."""
        ...

    def stand_before(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """Put the scheduler before a step, with what the step before it left."""
        self.state = dict(state)
