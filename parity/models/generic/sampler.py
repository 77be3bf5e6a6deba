"""The loop around a transformer without a pipeline: one branch, Euler steps along falling timesteps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from parity.errors import UsageError
from parity.models.sampler import Place, Sampler


class EulerSampler(Sampler):
    """See `parity.models.sampler.Sampler`.

    Sigmas fall evenly from one to zero. A prediction of another shape than the latents' leaves them as they are.

    Args:
        scale: of the timesteps. start_at: latents in place of the noise. timesteps: in place of the even ones.
    """

    guidance_scale = 1.0

    def __init__(
        self, scale: float, start_at: torch.Tensor | None = None, timesteps: torch.Tensor | None = None
    ) -> None:
        self.scale, self.start_at, self.given = scale, start_at, timesteps
        self._sigmas = self.timesteps = torch.empty(0)
        self.state: dict[str, torch.Tensor] = {}
        self.place: Place = lambda x: x

    @property
    def sigmas(self) -> torch.Tensor:
        return self._sigmas

    def fresh(self) -> EulerSampler:
        return EulerSampler(self.scale, self.start_at, self.given)

    def set_schedule(self, steps: int, device: Any, place: Place, dtype: torch.dtype | None) -> None:
        if self.given is not None and len(self.given) != steps:
            raise UsageError(f"--inputs gives {len(self.given)} timesteps for --steps {steps}")
        if self.given is None:
            sigmas = torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float64)
        else:
            sigmas = torch.cat([self.given.double() / self.scale, torch.zeros(1, dtype=torch.float64)])
        sigmas = sigmas.float() if dtype is None else sigmas.to(dtype)
        self.place, self._sigmas = place, place(sigmas)
        self.timesteps = place(sigmas[:-1] * self.scale)

    def start(self, noise: torch.Tensor) -> torch.Tensor:
        return noise if self.start_at is None else self.place(self.start_at).to(noise.dtype)

    def guide(self, predictions: Mapping[str, torch.Tensor], step: int, dtype: torch.dtype | None) -> torch.Tensor:
        return predictions["cond"]

    def step(self, guided: torch.Tensor, latents: torch.Tensor, step: int) -> torch.Tensor:
        if guided.shape != latents.shape:
            return latents
        return latents + (self.sigmas[step + 1] - self.sigmas[step]).to(latents.dtype) * guided
