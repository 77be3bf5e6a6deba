"""Scripts to record: diffusers pipelines with random weights, as small as diffusers allows, and a loop of one's own
around a transformer, a scheduler and a VAE, with the mistakes that people make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import numpy as np
import torch

import parity

Call = Callable[[], Any]
Change = Callable[[torch.Tensor], torch.Tensor]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tame(model: Any) -> Any:
    """The same weights every time, of a size that keeps that of what they multiply."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.ndim > 1 or name.endswith("bias"):
                x.copy_(torch.randn(x.shape, generator=generator) * x[0].numel() ** -0.5 * (0.1 if x.ndim == 1 else 1))
    return model.eval()


def recorded(where: Path, call: Call, *pipe: Any, **options: Any) -> Any:
    """What a script computes while it is recorded."""
    with torch.no_grad(), parity.record(where, *pipe, **options):
        return call()


def referenced(where: Path, call: Call, *pipe: Any, **options: Any) -> Any:
    """What a script computes in the first of the runs in which its floors are measured."""
    with torch.no_grad():
        first, *_ = [call() for _ in parity.record(where, *pipe, **options)]
        return first


def split_linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """A linear layer whose sums are added in two halves: another implementation's rounding."""
    half = x.shape[-1] // 2
    return _LINEAR(x[..., :half], weight[:, :half]) + _LINEAR(x[..., half:], weight[:, half:], bias)


_LINEAR = torch.nn.functional.linear

# Pipelines

BOTH = {"prompt": None, "prompt_embeds": drawn(1, 16, 32), "negative_prompt_embeds": drawn(1, 16, 32, seed=9)}
FLUX = {"prompt_embeds": drawn(1, 16, 32), "pooled_prompt_embeds": drawn(1, 32), "height": 16, "width": 16}
FLUX_CONFIG = {
    "patch_size": 1, "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
    "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8),
}  # fmt: skip


def _pipeline(kind: str, call: dict[str, Any], **parts: Any) -> tuple[Any, Call]:
    """A pipeline without text encoders, and what calls it: the frames or images, as arrays."""
    none = dict.fromkeys(("tokenizer", "text_encoder", *(("tokenizer_2", "text_encoder_2") if "Flux" in kind else ())))
    models = {name: part if name == "scheduler" else tame(part) for name, part in parts.items()}
    pipe = getattr(diffusers, kind)(**none, **models)
    pipe.set_progress_bar_config(disable=True)
    given = {"num_inference_steps": 2, "output_type": "np", **call}
    return pipe, lambda: pipe(**given, generator=torch.Generator().manual_seed(0))[0]


def wan() -> tuple[Any, Call]:
    """Two calls a step, and a scheduler that remembers earlier steps."""
    transformer = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=16, out_channels=16,
        text_dim=32, freq_dim=32, ffn_dim=32, num_layers=1, rope_max_seq_len=32,
    )  # fmt: skip
    vae = diffusers.AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
    )
    size = {"height": 16, "width": 16, "num_frames": 5, "num_inference_steps": 3}
    return _pipeline("WanPipeline", {**BOTH, **size}, transformer=transformer, vae=vae, scheduler=scheduler)


def wan_two() -> tuple[Any, Call]:
    """Wan 2.2: the first steps are one transformer's, the others another's."""
    pipe, call = wan()
    pipe.register_modules(transformer_2=tame(diffusers.WanTransformer3DModel(**pipe.transformer.config)))
    pipe.register_to_config(boundary_ratio=0.9)
    return pipe, call


def ltx() -> tuple[Any, Call]:
    """Latents packed to tokens, both branches in a batch."""
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, patch_size=1, patch_size_t=1, num_attention_heads=4, attention_head_dim=8,
        cross_attention_dim=32, num_layers=1, caption_channels=32,
    )  # fmt: skip
    vae = diffusers.AutoencoderKLLTXVideo(
        latent_channels=8, block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4,
        layers_per_block=(1,) * 5, decoder_layers_per_block=(1,) * 5,
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5, upsample_residual=(False,) * 4, upsample_factor=(1,) * 4,
        patch_size=1, patch_size_t=1, encoder_causal=True, decoder_causal=False,
    )  # fmt: skip
    vae.use_framewise_encoding = vae.use_framewise_decoding = False
    masks = dict.fromkeys(("prompt_attention_mask", "negative_prompt_attention_mask"), torch.ones(1, 16).bool())
    size = {"height": 32, "width": 32, "num_frames": 9, "guidance_scale": 3.0}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    return _pipeline("LTXPipeline", {**BOTH, **masks, **size}, transformer=transformer, vae=vae, scheduler=scheduler)


def flux_vae() -> Any:
    return diffusers.AutoencoderKL(
        block_out_channels=(4, 4), layers_per_block=1, latent_channels=4, norm_num_groups=1, sample_size=32,
        use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip


def zimage() -> tuple[Any, Call]:
    """A transformer that takes lists, one tensor for each of a batch, and gives a list."""
    transformer = diffusers.ZImageTransformer2DModel(
        in_channels=4, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=32,
        axes_dims=[4, 4, 8], axes_lens=[64, 16, 16],
    )  # fmt: skip
    text = {"prompt": None, "prompt_embeds": [drawn(16, 32)], "negative_prompt_embeds": [drawn(12, 32, seed=9)]}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    call = {**text, "height": 32, "width": 32, "guidance_scale": 4.0}
    return _pipeline("ZImagePipeline", call, transformer=transformer, vae=flux_vae(), scheduler=scheduler)


def flux() -> tuple[Any, Call]:
    """One branch: guidance is an input of the model."""
    transformer = diffusers.FluxTransformer2DModel(**FLUX_CONFIG)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    return _pipeline("FluxPipeline", FLUX, transformer=transformer, vae=flux_vae(), scheduler=scheduler)


def flux_controlnet() -> tuple[Any, Call]:
    """Another model beside the transformer, which is called in each step."""
    control = {"control_image": drawn(1, 3, 16, 16, seed=4).sigmoid(), "controlnet_conditioning_scale": 0.7}
    return _pipeline(
        "FluxControlNetPipeline", {**FLUX, **control}, vae=flux_vae(),
        transformer=diffusers.FluxTransformer2DModel(**FLUX_CONFIG),
        controlnet=diffusers.FluxControlNetModel(**FLUX_CONFIG),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip


def cogvideox_image() -> tuple[Any, Call]:
    """Latents of an image beside the noise, encoded by the pipeline's VAE."""
    import PIL.Image

    vae = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4, up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8), latent_channels=4, layers_per_block=1, norm_num_groups=2,
    )  # fmt: skip
    image = PIL.Image.fromarray((drawn(64, 64, 3).sigmoid() * 255).byte().numpy())
    size = {"height": 64, "width": 64, "num_frames": 9, "image": image}
    transformer = cogvideox(
        in_channels=8, use_learned_positional_embeddings=True, use_rotary_positional_embeddings=True
    )
    return _pipeline(
        "CogVideoXImageToVideoPipeline", {**BOTH, **size}, transformer=transformer, vae=vae,
        scheduler=diffusers.CogVideoXDDIMScheduler(),
    )  # fmt: skip


def cogvideox(**config: Any) -> Any:
    """A transformer of one block."""
    own = {
        "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "time_embed_dim": 2,
        "text_embed_dim": 32, "num_layers": 1, "sample_width": 8, "sample_height": 8, "sample_frames": 9,
        "patch_size": 2, "temporal_compression_ratio": 4, "max_text_seq_length": 16,
    }  # fmt: skip
    return tame(diffusers.CogVideoXTransformer3DModel(**{**own, **config}))


# A loop of one's own


class Vae(torch.nn.Module):
    """Latents [B, 4, T, H, W] to frames [B, 3, T, H, W]; a frame sees the mean of those up to it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.out = torch.nn.Linear(4, 64), torch.nn.Linear(64, 3)
        self.config = {"scaling_factor": 0.48}

    def decode(self, z: torch.Tensor, return_dict: bool = True) -> Any:
        x = torch.nn.functional.silu(self.mix(z.movedim(1, -1)))
        seen = x.cumsum(dim=1) / torch.ones_like(x).cumsum(dim=1)
        frames = self.out(seen).movedim(-1, 1)
        return SimpleNamespace(sample=frames) if return_dict else (frames,)


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
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=5.0)
    texts = (drawn(1, 16, 32, seed=seed).to(dtype) for seed in (3, 4))
    return Parts(cogvideox().to(dtype), Vae().to(dtype), scheduler, *texts)


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
    interrupt: Callable[[float], object] = lambda step: None,
) -> np.ndarray:
    """The script; everything beside `steps` and `interrupt` is a mistake.

    Args:
        interrupt: called with the step's number before the transformer's call, and with a half more after it.
    """
    transformer, scheduler, vae = parts.transformer, parts.scheduler, parts.vae
    latents = noise(drawn(1, 3, 4, 8, 8, seed=5)).to(parts.embeds.dtype)
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
            interrupt(i + 0.5)
            uncond, cond = out.chunk(2)
            guided = rescale * (uncond + scale * (cond - uncond))
            latents = scheduler.step(guided, t, latents, return_dict=False)[0]
        z = latents.permute(0, 2, 1, 3, 4)
        frames = vae.decode(z / vae.config["scaling_factor"] if divided else z).sample
    levels = (frames.float() / 2 + 0.5).clamp(0, 1) * 255
    video: np.ndarray = parity.tap("video", (levels.round() if rounded else levels).to(torch.uint8).numpy())
    return video
