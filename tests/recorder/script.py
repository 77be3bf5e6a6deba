"""A script of somebody's own: a loop around a transformer, a scheduler and a VAE, with mistakes that people make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLCogVideoX, CogVideoXTransformer3DModel, FlowMatchEulerDiscreteScheduler

from parity.models.registry import resolve_model
from parity.port import tap


@dataclass
class Parts:
    """What the script loads."""

    transformer: Any
    vae: Any
    scheduler: Any
    embeds: torch.Tensor
    negative: torch.Tensor

    @property
    def named(self) -> dict[str, Any]:
        return {"transformer": self.transformer, "vae": self.vae, "scheduler": self.scheduler}


def load(dtype: torch.dtype = torch.float32) -> Parts:
    folder = resolve_model("tiny-cogvideox-1.0")
    transformer = CogVideoXTransformer3DModel.from_pretrained(folder / "transformer", torch_dtype=dtype).eval()
    vae = AutoencoderKLCogVideoX.from_pretrained(folder / "vae", torch_dtype=dtype).eval()
    g = torch.Generator().manual_seed(3)
    width = transformer.config.text_embed_dim
    rows = transformer.config.max_text_seq_length
    embeds, negative = (torch.randn(1, rows, width, generator=g).to(dtype) for _ in range(2))
    return Parts(transformer, vae, FlowMatchEulerDiscreteScheduler(shift=5.0), embeds, negative)


Change = Callable[[torch.Tensor], torch.Tensor]


def generate(
    parts: Parts,
    *,
    steps: int = 2,
    scale: float = 6.0,
    rescale: float = 1.0,
    swapped: bool = False,
    noise: Change = lambda x: x,
    shifted_again: float = 1.0,
    late: int = 0,
    divided: bool = True,
    rounded: bool = True,
    interrupt: Callable[[int], None] = lambda step: None,
) -> np.ndarray:
    """The script; everything beside `steps` is a mistake."""
    transformer, scheduler, vae = parts.transformer, parts.scheduler, parts.vae
    config, dtype = transformer.config, transformer.dtype
    size = (1, 2, config.in_channels, config.sample_height // 2, config.sample_width // 2)
    latents = noise(torch.randn(size, generator=torch.Generator().manual_seed(5))).to(dtype)
    scheduler.set_timesteps(steps, device=latents.device)
    if shifted_again != 1.0:
        sigmas = scheduler.sigmas[:-1]
        sigmas = shifted_again * sigmas / (1 + (shifted_again - 1) * sigmas)
        scheduler.sigmas = torch.cat([sigmas, torch.zeros(1)])
        scheduler.timesteps = sigmas * 1000
    timesteps = scheduler.timesteps
    if late:
        scheduler.set_begin_index(late)
    both = [parts.negative, parts.embeds]
    prompts = torch.cat(both[::-1] if swapped else both)
    with torch.no_grad():
        for i, t in enumerate(timesteps[: steps - late]):
            interrupt(i)
            out = transformer(
                hidden_states=torch.cat([latents] * 2),
                encoder_hidden_states=prompts,
                timestep=t.expand(2),
                return_dict=False,
            )[0]
            uncond, cond = out.chunk(2)
            guided = rescale * (uncond + scale * (cond - uncond))
            latents = scheduler.step(guided, t, latents, return_dict=False)[0]
        z = latents.permute(0, 2, 1, 3, 4)
        frames = vae.decode(z / vae.config.scaling_factor if divided else z).sample
    levels = (frames.float() / 2 + 0.5).clamp(0, 1) * 255
    video: np.ndarray = tap("video", (levels.round() if rounded else levels).to(torch.uint8).numpy())
    return video


def split_linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """A linear layer whose sums are added in two halves: another implementation's rounding."""
    half = x.shape[-1] // 2
    return _LINEAR(x[..., :half], weight[:, :half]) + _LINEAR(x[..., half:], weight[:, half:], bias)


_LINEAR = torch.nn.functional.linear
