"""A script's own loop around a tiny Wan: what faults in the glue are put into, a line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import diffusers
import tiny
import torch
from change import Scene, drawn
from vae_faults import wan_vae

STEPS = 3


def euler(**config: Any) -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler(**{"shift": 3.0, **config})


@dataclass(kw_only=True)
class Script:
    """What a generation does around its model; a fault replaces one of these.

    Attributes:
        scheduler, schedule: and what sets its timesteps. scale: of guidance. guided: combines cond and uncond.
        start: the loop's first latents. joined: what the transformer is given beside the latents' channels.
        seed: of what the scheduler draws; None where it draws nothing.
        denormalised: latents as the VAE takes them; None for no VAE. channels: of the transformer's input.
    """

    dtype: torch.dtype
    scheduler: Any = field(default_factory=euler)
    schedule: Callable[[Any], None] = lambda scheduler: scheduler.set_timesteps(STEPS)
    scale: float = 5.0
    guides: bool = True
    guided: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] = lambda cond, uncond, scale: (
        uncond + scale * (cond - uncond)
    )
    start: Callable[[Script], torch.Tensor] = lambda script: drawn(1, 4, 3, 8, 8, seed=7).to(script.dtype)
    joined: Callable[[Script], torch.Tensor] | None = None
    denormalised: Callable[[Any, torch.Tensor], torch.Tensor] | None = None
    seed: int | None = None
    vae: Any = None
    transformer: Any = None

    def __post_init__(self) -> None:
        channels = 4 if self.joined is None else 4 + self.joined(self).shape[1]
        self.transformer = tiny.wan(in_channels=channels).module.to(self.dtype)
        if self.denormalised is not None and self.vae is None:
            self.vae = wan_vae().to(self.dtype)

    def scene(self) -> Scene:
        parts = {"transformer": self.transformer, "scheduler": self.scheduler, "vae": self.vae}
        return Scene(parts={name: x for name, x in parts.items() if x is not None}, go=self.go)

    @torch.no_grad()
    def go(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        self.schedule(self.scheduler)
        drawing = {} if self.seed is None else {"generator": torch.Generator().manual_seed(self.seed)}
        latents = self.start(self)
        cond, uncond = (drawn(1, 16, 32, seed=seed).to(self.dtype) for seed in (1, 9))
        for i, t in enumerate(self.scheduler.timesteps):
            given = latents if self.joined is None else torch.cat([latents, self.joined(self)], dim=1)
            time = t.to(self.dtype).expand(1)
            predicted = self.predict(given, time, cond)
            if self.guides:
                predicted = self.guided(predicted, self.predict(given, time, uncond), self.scale)
            found[f"noise_pred {i}"] = predicted
            # The scheduler works in float32 whatever the model does, and so draws the same noise.
            latents = self.scheduler.step(predicted.float(), t, latents.float(), return_dict=False, **drawing)[0].to(
                self.dtype
            )
            found[f"latents {i}"] = latents
        if self.denormalised is not None:
            found["frames"] = self.vae.decode(self.denormalised(self.vae, latents), return_dict=False)[0]
        return found

    def predict(self, latents: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return self.transformer(latents, timestep=time, encoder_hidden_states=text, return_dict=False)[0]


def moments(vae: Any, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of a VAE's latents, by channel."""
    mean, std = (torch.tensor(x).view(1, -1, 1, 1, 1) for x in (vae.config.latents_mean, vae.config.latents_std))
    return mean.to(like), std.to(like)


def denormalised(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """As Wan's pipeline does it."""
    mean, std = moments(vae, latents)
    return latents * std + mean
