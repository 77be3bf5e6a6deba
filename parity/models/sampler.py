"""What differs between families in the denoising loop: schedule, guidance and step, as their pipelines do them.

The loop (`parity.paths.loop`) is written once; a sampler holds diffusers' own scheduler (and guider) of one side and
calls them as the family's pipeline does. It keeps their state, so each side, and each variant of one, has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from parity.models.folder import load_part
from parity.models.spec import GenerationSpec

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
    def end(self) -> float: ...

    @property
    def step_index(self) -> int | None: ...

    def fresh(self) -> Sampler:
        """The same, with objects of its own that have not stepped."""
        ...

    def set_schedule(self, steps: int, device: Any, place: Place, dtype: torch.dtype | None) -> None:
        """Set the schedule anew, rounded to `dtype` where one is given, and forget every step."""
        ...

    def start(self, noise: torch.Tensor) -> torch.Tensor:
        """The initial latents from the initial noise."""
        ...

    def model_input(self, latents: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents and timestep [B] as the transformer is given them."""
        ...

    def guide(self, predictions: Mapping[str, torch.Tensor], step: int, dtype: torch.dtype | None) -> torch.Tensor:
        """The branches' predictions combined, in `dtype` where one is given; in the pipeline's own dtype."""
        ...

    def step(self, guided: torch.Tensor, latents: torch.Tensor, step: int) -> torch.Tensor:
        """The latents after a step, in the scheduler's dtype."""
        ...

    def stand_before(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """Put the scheduler before a step, with what the step before it left."""
        ...


class FlowMatchSampler:
    """HunyuanVideo-1.5: Euler steps of a flow, combined by the checkpoint's guider."""

    def __init__(self, scheduler: Any, guider: Any) -> None:
        self.scheduler, self.guider = scheduler, guider
        self.guidance_scale = float(guider.config.get("guidance_scale", 1.0))
        self.timesteps = torch.empty(0)
        self.state: dict[str, torch.Tensor] = {}

    @staticmethod
    def load(folder: Any, spec: GenerationSpec) -> FlowMatchSampler:
        """The checkpoint's scheduler and guider; the spec's scale takes the place of the guider's own."""
        guider = load_part(folder, "guider")
        if spec.guidance_scale is not None:
            guider = type(guider).from_config({**guider.config, "guidance_scale": spec.guidance_scale})
        return FlowMatchSampler(load_part(folder, "scheduler"), guider)

    @property
    def sigmas(self) -> torch.Tensor:
        sigmas: torch.Tensor = self.scheduler.sigmas
        return sigmas

    @property
    def end(self) -> float:
        return 0.0

    @property
    def step_index(self) -> int | None:
        index: int | None = self.scheduler.step_index
        return index

    def fresh(self) -> FlowMatchSampler:
        scheduler, guider = (type(x).from_config(x.config) for x in (self.scheduler, self.guider))
        return FlowMatchSampler(scheduler, guider)

    def set_schedule(self, steps: int, device: Any, place: Place, dtype: torch.dtype | None) -> None:
        # The pipeline's own sigmas (HunyuanVideo15Pipeline.__call__, step 4).
        self.scheduler.set_timesteps(sigmas=np.linspace(1.0, 0.0, steps + 1)[:-1], device=device)
        if dtype is not None:
            self.scheduler.sigmas = self.scheduler.sigmas.to(dtype)
            self.scheduler.timesteps = self.scheduler.timesteps.to(dtype)
        self.timesteps = self.scheduler.timesteps

    def start(self, noise: torch.Tensor) -> torch.Tensor:
        return noise

    def model_input(self, latents: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return latents, self.timesteps[step].expand(latents.shape[0])

    def guide(self, predictions: Mapping[str, torch.Tensor], step: int, dtype: torch.dtype | None) -> torch.Tensor:
        parts = {b: x if dtype is None else x.to(dtype) for b, x in predictions.items()}
        count = len(self.timesteps)
        self.guider.set_state(step=step, num_inference_steps=count, timestep=self.timesteps[step])
        guided: torch.Tensor = self.guider.forward(parts["cond"], parts["uncond"]).pred
        return guided.to(predictions["cond"].dtype)

    def step(self, guided: torch.Tensor, latents: torch.Tensor, step: int) -> torch.Tensor:
        stepped: torch.Tensor = self.scheduler.step(guided, self.timesteps[step], latents, return_dict=False)[0]
        return stepped

    def stand_before(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        self.scheduler._step_index = step  # its own counter; there is no public way to set it
