"""A script's own loop, around a tiny Wan and around a tiny LTX-2 with audio: what the pitfalls are put into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import diffusers
import tiny
import torch
from change import drawn, tame
from pitfall import Side

STEPS = 3

Guided = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(cond, uncond, step of this stage) -> the guided prediction."""


def euler(**config: Any) -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler(**{"shift": 3.0, **config})


def guided(cond: torch.Tensor, uncond: torch.Tensor, step: int) -> torch.Tensor:
    return uncond + 4.0 * (cond - uncond)


def noise(seed: int = 7) -> torch.Tensor:
    return drawn(1, 4, 3, 8, 8, seed=seed)


@dataclass(kw_only=True)
class Wan:
    """A loop of stages around a tiny Wan.

    Attributes:
        schedule: sets the scheduler for a stage. start: what a stage begins with, from what the one before came to.
        time: a timestep as the transformer takes it. stages: how many. skipped: timesteps that the second leaves out.
        after: what is made of the last latents.
    """

    dtype: torch.dtype = torch.float32
    scheduler: Any = field(default_factory=euler)
    schedule: Callable[[Any, int], None] = lambda scheduler, stage: scheduler.set_timesteps(STEPS)
    start: Callable[[int, torch.Tensor | None], torch.Tensor] = lambda stage, before: noise(7 + stage)
    time: Callable[[torch.Tensor], torch.Tensor] = lambda t: t.expand(1)
    guided: Guided = guided
    stages: int = 1
    skipped: int = 0
    after: Callable[[torch.Tensor], object] = lambda latents: None
    seed: int = 1
    step: Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = (
        lambda scheduler, predicted, t, latents: scheduler.step(predicted, t, latents, return_dict=False)[0]
    )
    parts: Mapping[str, Any] = field(default_factory=dict)
    transformer: Any = None

    def side(self) -> Side:
        model = tiny.wan().module
        self.transformer = (model if self.seed == 1 else tame(model, self.seed)).to(self.dtype)
        return Side(parts={"transformer": self.transformer, "scheduler": self.scheduler, **self.parts}, go=self.go)

    @torch.no_grad()
    def go(self) -> None:
        latents: torch.Tensor | None = None
        for stage in range(self.stages):
            self.schedule(self.scheduler, stage)
            latents = self.start(stage, latents)
            for i, t in enumerate(self.scheduler.timesteps[stage * self.skipped :]):
                cond, uncond = (self.predict(latents, t, seed) for seed in (1, 9))
                latents = self.step(self.scheduler, self.guided(cond, uncond, i), t, latents)
        assert latents is not None
        self.after(latents)

    def predict(self, latents: torch.Tensor, t: torch.Tensor, seed: int) -> torch.Tensor:
        text = drawn(1, 16, 32, seed=seed).to(self.dtype)
        time = self.time(t).to(self.dtype)
        return self.transformer(latents.to(self.dtype), timestep=time, encoder_hidden_states=text, return_dict=False)[0]


def ltx2(**config: Any) -> Any:
    sizes: dict[str, Any] = {
        "in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 16,
        "cross_attention_dim": 32, "audio_in_channels": 4, "audio_out_channels": 4, "audio_num_attention_heads": 2,
        "audio_attention_head_dim": 16, "audio_cross_attention_dim": 32, "num_layers": 1, "caption_channels": 16,
        "vae_scale_factors": (8, 8, 8), "base_height": 64, "base_width": 64,
    }  # fmt: skip
    return tame(diffusers.LTX2VideoTransformer3DModel(**{**sizes, **config}))


@dataclass(kw_only=True)
class Ltx:
    """A loop around a tiny LTX-2: video of 2 x 4 x 6 tokens, four frames of audio, no guidance.

    Attributes:
        config: of the transformer. arguments: of each call, beside the latents and the text; takes (t, transformer).
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    arguments: Callable[[torch.Tensor, Any], Mapping[str, Any]] = lambda t, model: {}

    def side(self) -> Side:
        self.transformer, self.scheduler = ltx2(**self.config), euler()
        return Side(parts={"transformer": self.transformer, "scheduler": self.scheduler}, go=self.go)

    @torch.no_grad()
    def go(self) -> None:
        self.scheduler.set_timesteps(STEPS)
        latents, audio = drawn(1, 48, 4, seed=7), drawn(1, 4, 4, seed=8)
        size = {"num_frames": 2, "height": 4, "width": 6, "fps": 24.0, "audio_num_frames": 4}
        words = {
            "encoder_hidden_states": drawn(1, 8, 16, seed=1),
            "audio_encoder_hidden_states": drawn(1, 8, 16, seed=2),
        }
        for t in self.scheduler.timesteps:
            given = {"timestep": t.expand(1), **size, **words, **self.arguments(t, self.transformer)}
            predicted, _ = self.transformer(
                hidden_states=latents, audio_hidden_states=audio, return_dict=False, **given
            )
            latents = self.scheduler.step(predicted, t, latents, return_dict=False)[0]
