"""A script's own loop around a tiny Wan or LTX-2: what faults of the loop are put into, a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import diffusers
import tiny
import torch
from change import Scene, drawn

STEPS = 3

Guided = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(cond, uncond, step of this stage) -> the guided prediction."""


def euler(**config: Any) -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler(**{"shift": 3.0, **config})


def guidance(scale: float) -> Guided:
    return lambda cond, uncond, step: uncond + scale * (cond - uncond)


def noise(seed: int = 7) -> torch.Tensor:
    return drawn(1, 4, 3, 8, 8, seed=seed)


def stepped(scheduler: Any, predicted: torch.Tensor, t: torch.Tensor, latents: torch.Tensor, **more: Any) -> Any:
    return scheduler.step(predicted, t, latents, return_dict=False, **more)[0]


@dataclass(kw_only=True)
class Script:
    """What a generation does around its model, in stages; a row replaces some of these.

    Attributes:
        schedule: sets the scheduler's timesteps for a stage. start: the first latents of a stage, from the script,
            whose `latents` are what the stage before came to. joined: what the transformer is given beside them.
        time: a timestep as the transformer takes it. guided: combines its predictions; None for no guidance.
        step: of the scheduler. seed: of what that draws; None if it draws nothing.
        stages: how many. skipped: timesteps that each leaves out for every one before it.
        after: what is made of the last latents. computes: the transformer's dtype, where it is not the loop's.
        weights: their seed.
    """

    scheduler: Any = field(default_factory=euler)
    schedule: Callable[[Any, int], None] = lambda scheduler, stage: scheduler.set_timesteps(STEPS)
    start: Callable[[Any], torch.Tensor] = lambda script: noise(7 + script.stage)
    joined: Callable[[], torch.Tensor] | None = None
    time: Callable[[torch.Tensor], torch.Tensor] = lambda t: t.expand(1)
    guided: Guided | None = field(default_factory=lambda: guidance(5.0))
    step: Callable[..., torch.Tensor] = stepped
    seed: int | None = None
    stages: int = 1
    skipped: int = 0
    after: Callable[[torch.Tensor], Any] = lambda latents: None
    vae: Any = None
    computes: torch.dtype | None = None
    weights: int = 1

    def scene(self, dtype: torch.dtype = torch.float32) -> Scene:
        self.dtype, self.computes = dtype, self.computes or dtype
        if self.vae is not None:
            self.vae.to(dtype)
        self.transformer = self.model().to(self.computes)
        parts = {"transformer": self.transformer, "scheduler": self.scheduler, "vae": self.vae}
        return Scene(parts={name: x for name, x in parts.items() if x is not None}, go=self.go)

    def model(self) -> Any:
        joined = 0 if self.joined is None else self.joined().shape[1]
        return tiny.wan(self.weights, in_channels=4 + joined).module

    @torch.no_grad()
    def go(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        drawing = {} if self.seed is None else {"generator": torch.Generator().manual_seed(self.seed)}
        for stage in range(self.stages):
            self.stage = stage
            self.schedule(self.scheduler, stage)
            self.latents = self.start(self).to(self.dtype)
            for i, t in enumerate(self.scheduler.timesteps[stage * self.skipped :]):
                given = self.latents
                if self.joined is not None:
                    given = torch.cat([given, self.joined().to(self.dtype)], dim=1)
                predicted = self.predict(given, t, 1)
                if self.guided is not None:
                    predicted = self.guided(predicted, self.predict(given, t, 9), i)
                found[f"noise_pred {i}"] = predicted
                # The scheduler works in float32 even where the model does in float64, and so draws the same noise.
                sample = self.latents
                if self.dtype == torch.float64:
                    predicted, sample = predicted.float(), sample.float()
                self.latents = self.step(self.scheduler, predicted, t, sample, **drawing)
                if self.dtype == torch.float64:
                    self.latents = self.latents.double()
                found[f"latents {i}"] = self.latents
        frames = self.after(self.latents)
        return found if frames is None else {**found, "frames": frames}

    def predict(self, latents: torch.Tensor, t: torch.Tensor, words: int) -> torch.Tensor:
        given = {"timestep": self.time(t), "encoder_hidden_states": drawn(1, 16, 32, seed=words)}
        given = {name: x.to(self.computes) for name, x in given.items()}
        return self.transformer(latents.to(self.computes), return_dict=False, **given)[0]


@dataclass(kw_only=True)
class Ltx(Script):
    """Around a tiny LTX-2: video of 2 x 4 x 6 tokens, four frames of audio, no guidance.

    Attributes:
        config: of the transformer. arguments: of each call, beside the latents and the text; takes (t, transformer).
    """

    start: Callable[[Any], torch.Tensor] = lambda script: drawn(1, 48, 4, seed=7)
    guided: Guided | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    arguments: Callable[[torch.Tensor, Any], Mapping[str, Any]] = lambda t, model: {}

    def model(self) -> Any:
        return tiny.ltx2(**self.config)

    def predict(self, latents: torch.Tensor, t: torch.Tensor, words: int) -> torch.Tensor:
        given: dict[str, Any] = {
            "timestep": t.expand(1), "num_frames": 2, "height": 4, "width": 6, "fps": 24.0, "audio_num_frames": 4,
            "encoder_hidden_states": drawn(1, 8, 16, seed=1), "audio_encoder_hidden_states": drawn(1, 8, 16, seed=2),
            "hidden_states": latents, "audio_hidden_states": drawn(1, 4, 4, seed=8),
            **self.arguments(t, self.transformer),
        }  # fmt: skip
        return self.transformer(return_dict=False, **given)[0]


def moments(vae: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of a VAE's latents, by channel."""
    mean, std = (torch.tensor(x).view(1, -1, 1, 1, 1) for x in (vae.config.latents_mean, vae.config.latents_std))
    return mean.to(vae.dtype), std.to(vae.dtype)


def decoded(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """As Wan's pipeline does it."""
    mean, std = moments(vae)
    return vae.decode(latents * std + mean, return_dict=False)[0]
