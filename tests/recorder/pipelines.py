"""Tiny pipelines of other families, with random weights and embeddings in place of text encoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch

Made = tuple[Any, Callable[[], Any]]
"""A pipeline, and what calls it: the frames or images, as arrays."""


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tame(model: Any) -> Any:
    """Weights that keep the size of what they multiply, whatever the class initialises to zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for x in model.parameters():
            if x.ndim > 1:
                x.copy_(torch.randn(x.shape, generator=generator) * x[0].numel() ** -0.5)
    return model.eval()


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def wan() -> Made:
    """Two calls a step, and a scheduler that remembers earlier steps."""
    transformer = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=16, out_channels=16,
        text_dim=32, freq_dim=32, ffn_dim=32, num_layers=2, rope_max_seq_len=32,
    )  # fmt: skip
    vae = diffusers.AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
    )
    pipe = diffusers.WanPipeline(
        tokenizer=None, text_encoder=None, transformer=tame(transformer), vae=vae.eval(), scheduler=scheduler
    )
    given = {"prompt_embeds": drawn(1, 16, 32), "negative_prompt_embeds": drawn(1, 16, 32, seed=9), "prompt": None}
    size = {"height": 16, "width": 16, "num_frames": 9, "num_inference_steps": 3}
    return pipe, lambda: pipe(**given, **size, generator=seeded(), output_type="np").frames


def ltx() -> Made:
    """Latents packed to tokens, both branches in a batch."""
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, patch_size=1, patch_size_t=1, num_attention_heads=4, attention_head_dim=8,
        cross_attention_dim=32, num_layers=2, caption_channels=32,
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
    pipe = diffusers.LTXPipeline(
        tokenizer=None, text_encoder=None, transformer=tame(transformer), vae=vae.eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip
    mask = torch.ones(1, 16, dtype=torch.bool)
    given = {
        "prompt": None, "prompt_embeds": drawn(1, 16, 32), "prompt_attention_mask": mask,
        "negative_prompt_embeds": drawn(1, 16, 32, seed=9), "negative_prompt_attention_mask": mask,
    }  # fmt: skip
    size = {"height": 32, "width": 32, "num_frames": 9, "num_inference_steps": 3, "guidance_scale": 3.0}
    return pipe, lambda: pipe(**given, **size, generator=seeded(), output_type="np").frames


def flux() -> Made:
    """One branch: guidance is an input of the model."""
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    vae = diffusers.AutoencoderKL(
        block_out_channels=(4, 4), layers_per_block=1, latent_channels=4, norm_num_groups=1, sample_size=32,
        use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    pipe = diffusers.FluxPipeline(
        tokenizer=None, text_encoder=None, tokenizer_2=None, text_encoder_2=None, transformer=tame(transformer),
        vae=vae.eval(), scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    )  # fmt: skip
    given = {"prompt_embeds": drawn(1, 16, 32), "pooled_prompt_embeds": drawn(1, 32), "height": 16, "width": 16}
    return pipe, lambda: pipe(**given, num_inference_steps=3, generator=seeded(), output_type="np").images


def cogvideox_image() -> Made:
    """Latents of an image beside the noise, encoded by the pipeline's VAE."""
    import PIL.Image

    transformer = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=8, out_channels=4, time_embed_dim=2,
        text_embed_dim=32, num_layers=1, sample_width=8, sample_height=8, sample_frames=9, patch_size=2,
        temporal_compression_ratio=4, max_text_seq_length=16, use_rotary_positional_embeddings=True,
        use_learned_positional_embeddings=True,
    )  # fmt: skip
    vae = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4, up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8), latent_channels=4, layers_per_block=1, norm_num_groups=2,
    )  # fmt: skip
    pipe = diffusers.CogVideoXImageToVideoPipeline(
        tokenizer=None, text_encoder=None, transformer=tame(transformer), vae=tame(vae),
        scheduler=diffusers.CogVideoXDDIMScheduler(),
    )  # fmt: skip
    image = PIL.Image.fromarray((drawn(64, 64, 3).sigmoid() * 255).byte().numpy())
    given = {"prompt_embeds": drawn(1, 16, 32), "negative_prompt_embeds": drawn(1, 16, 32, seed=9), "prompt": None}
    size = {"height": 64, "width": 64, "num_frames": 9, "num_inference_steps": 2, "image": image}
    return pipe, lambda: pipe(**given, **size, generator=seeded(), output_type="np").frames


def flux_control() -> Made:
    """A control image that the pipeline encodes in its call, packed beside the noise."""
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=32, out_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    base, _ = flux()
    pipe = diffusers.FluxControlPipeline(
        tokenizer=None, text_encoder=None, tokenizer_2=None, text_encoder_2=None, transformer=tame(transformer),
        vae=tame(base.vae), scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip
    given = {"prompt_embeds": drawn(1, 16, 32), "pooled_prompt_embeds": drawn(1, 32), "height": 16, "width": 16}
    control = drawn(1, 3, 16, 16, seed=4).sigmoid()
    size = {"num_inference_steps": 2, "control_image": control}
    return pipe, lambda: pipe(**given, **size, generator=seeded(), output_type="np").images


def wan_two() -> Made:
    """Wan 2.2: the first steps are one transformer's, the others another's."""
    pipe, call = wan()
    transformer = diffusers.WanTransformer3DModel(**{**pipe.transformer.config, "num_layers": 1})
    pipe.register_modules(transformer_2=tame(transformer))
    pipe.register_to_config(boundary_ratio=0.9)
    return pipe, call


def flux_controlnet() -> Made:
    """Another model beside the transformer, which is called in each step."""
    config = {
        "patch_size": 1, "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8),
    }  # fmt: skip
    base, _ = flux()
    pipe = diffusers.FluxControlNetPipeline(
        tokenizer=None, text_encoder=None, tokenizer_2=None, text_encoder_2=None, transformer=base.transformer,
        vae=tame(base.vae), scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        controlnet=tame(diffusers.FluxControlNetModel(**config)),
    )  # fmt: skip
    given = {"prompt_embeds": drawn(1, 16, 32), "pooled_prompt_embeds": drawn(1, 32), "height": 16, "width": 16}
    control = {"control_image": drawn(1, 3, 16, 16, seed=4).sigmoid(), "controlnet_conditioning_scale": 0.7}
    return pipe, lambda: pipe(**given, **control, num_inference_steps=3, generator=seeded(), output_type="np").images
