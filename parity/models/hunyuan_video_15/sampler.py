"""The schedule, guidance and steps of HunyuanVideo-1.5: Euler steps of a flow, combined by the checkpoint's guider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity.models.folder import load_part
from parity.models.sampler import Place, Sampler
from parity.models.spec import GenerationSpec


class FlowMatchSampler(Sampler):
    """See `parity.models.sampler.Sampler`."""

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
