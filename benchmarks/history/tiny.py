"""Tiny models of the classes that the changes are in: two blocks, seeded weights, inputs of a few tokens."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from change import Made, drawn, tame


def masked(valid: int, length: int = 16, left: bool = False) -> torch.Tensor:
    """A mask of text tokens, 1 for a valid one."""
    mask = (torch.arange(length) < valid).long()[None]
    return mask.flip(1) if left else mask


def inputs(*latents: int, text: int = 16, time: float = 700.0, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    """Latents of this shape, 16 tokens of text of this width, a timestep."""
    words = drawn(1, 16, text, seed=1)
    return {"hidden_states": drawn(*latents), "encoder_hidden_states": words, "timestep": torch.tensor([time]), **more}


def wan(seed: int = 1, **config: Any) -> Made:
    sizes: dict[str, Any] = {
        "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4,
        "out_channels": 4, "text_dim": 32, "freq_dim": 32, "ffn_dim": 64, "num_layers": 2, "rope_max_seq_len": 32,
    }  # fmt: skip
    model = tame(diffusers.WanTransformer3DModel(**{**sizes, **config}), seed)
    return Made(module=model, inputs=inputs(1, 4, 2, 8, 12, text=32))


def ltx() -> Made:
    model = diffusers.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=8, cross_attention_dim=32,
        num_layers=2, caption_channels=16,
    )  # fmt: skip
    given = inputs(1, 48, 8, encoder_attention_mask=masked(11, left=True))
    return Made(module=tame(model), inputs=given, static={"num_frames": 2, "height": 4, "width": 6})


def ltx2(**config: Any) -> Any:
    sizes: dict[str, Any] = {
        "in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 16,
        "cross_attention_dim": 32, "audio_in_channels": 4, "audio_out_channels": 4, "audio_num_attention_heads": 2,
        "audio_attention_head_dim": 16, "audio_cross_attention_dim": 32, "num_layers": 1, "caption_channels": 16,
        "vae_scale_factors": (8, 8, 8), "base_height": 64, "base_width": 64,
    }  # fmt: skip
    return tame(diffusers.LTX2VideoTransformer3DModel(**{**sizes, **config}))


def hunyuan() -> Any:
    model = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, patch_size=2, patch_size_t=1, guidance_embeds=True, text_embed_dim=16,
        pooled_projection_dim=8, rope_axes_dim=(2, 4, 4),
    )  # fmt: skip
    return tame(model)


def hunyuan_inputs() -> dict[str, torch.Tensor]:
    pooled, guidance = drawn(1, 8, seed=2), torch.tensor([6000.0])
    return inputs(
        1, 4, 2, 8, 8, encoder_attention_mask=masked(12), pooled_projections=pooled, guidance=guidance
    )  # fmt: skip


def made_hunyuan() -> Made:
    return Made(module=hunyuan(), inputs=hunyuan_inputs())


def qwen(valid: int = 11) -> Made:
    model = diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=3,
        joint_attention_dim=16, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    given = inputs(1, 24, 16, time=0.7, encoder_hidden_states_mask=masked(valid).bool())
    return Made(module=tame(model), inputs=given, static={"img_shapes": [[(1, 4, 6)]]})


def qwen_unpadded() -> Made:
    return qwen(16)


def flux() -> Made:
    model = diffusers.FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=24, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    return Made(module=tame(model), inputs=flux_inputs(pooled_projections=drawn(1, 24, seed=2)))


def flux_inputs(**more: torch.Tensor) -> dict[str, torch.Tensor]:
    ids = torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(6.0))
    return inputs(1, 24, 16, text=32, time=0.7, img_ids=ids, txt_ids=torch.zeros(16, 3), **more)


def chroma() -> Made:
    model = diffusers.ChromaTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=(4, 4, 8), approximator_num_channels=8, approximator_hidden_dim=16,
        approximator_layers=1,
    )  # fmt: skip
    mask = torch.cat([masked(11).bool(), torch.ones(1, 24, dtype=torch.bool)], dim=1)
    return Made(module=tame(model), inputs=flux_inputs(attention_mask=mask))


def mochi() -> Made:
    model = diffusers.MochiTransformer3DModel(
        patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=16,
        in_channels=12, text_embed_dim=16, time_embed_dim=8, max_sequence_length=16,
    )  # fmt: skip
    return Made(module=tame(model), inputs=inputs(1, 12, 2, 8, 8, encoder_attention_mask=masked(11).bool()))


def sana(interpolation_scale: float | None = None) -> Made:
    model = diffusers.SanaTransformer2DModel(
        in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=8, num_layers=2,
        num_cross_attention_heads=4, cross_attention_head_dim=8, cross_attention_dim=32, caption_channels=16,
        sample_size=8, patch_size=1, interpolation_scale=interpolation_scale,
    )  # fmt: skip
    return Made(module=tame(model), inputs=inputs(1, 8, 8, 8, encoder_attention_mask=masked(11)))


def cogview4() -> Made:
    model = diffusers.CogView4Transformer2DModel(
        patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        text_embed_dim=16, time_embed_dim=16, condition_dim=8, pos_embed_max_size=16, sample_size=16,
        rope_axes_dim=(16, 16),
    )  # fmt: skip
    size = torch.tensor([[64.0, 96.0]])
    given = inputs(1, 4, 8, 12, original_size=size, target_size=size, crop_coords=torch.zeros(1, 2))
    return Made(module=tame(model), inputs=given)


def prx() -> Made:
    model = diffusers.PRXTransformer2DModel(
        in_channels=4, patch_size=2, context_in_dim=16, hidden_size=32, num_heads=4, depth=2, axes_dim=[4, 4]
    )
    return Made(module=tame(model), inputs=inputs(1, 4, 8, 12, time=0.7))


def auraflow() -> Made:
    model = diffusers.AuraFlowTransformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=8,
        num_attention_heads=4, joint_attention_dim=16, caption_projection_dim=32, out_channels=4, pos_embed_max_size=64,
    )  # fmt: skip
    return Made(module=tame(model), inputs=inputs(1, 4, 8, 8, time=0.7))


def sd3() -> Made:
    model = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=16, caption_projection_dim=32, pooled_projection_dim=8, out_channels=4,
        pos_embed_max_size=8, qk_norm="rms_norm",
    )  # fmt: skip
    return Made(module=tame(model), inputs=inputs(1, 4, 8, 8, pooled_projections=drawn(1, 8, seed=2)))


def cogvideox() -> Made:
    model = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=8,
        text_embed_dim=16, num_layers=2, sample_width=16, sample_height=16, sample_frames=9, patch_size=2,
        patch_size_t=2, max_text_seq_length=16, use_rotary_positional_embeddings=True, patch_bias=False,
    )  # fmt: skip
    return Made(module=tame(model), inputs=inputs(1, 4, 4, 8, 12))


def wan_vae(**config: Any) -> Any:
    sizes: dict[str, Any] = {
        "base_dim": 4, "z_dim": 4, "dim_mult": [1, 1, 1], "num_res_blocks": 1, "temperal_downsample": [False, True],
        "latents_mean": [0.1, -0.2, 0.3, 0.0], "latents_std": [1.5, 2.0, 0.8, 1.2], "scale_factor_spatial": 4,
        "scale_factor_temporal": 2,
    }  # fmt: skip
    return tame(diffusers.AutoencoderKLWan(**{**sizes, **config}))


def hunyuan_vae(attention: bool = False) -> Any:
    vae = diffusers.AutoencoderKLHunyuanVideo(
        latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4,
        mid_block_add_attention=attention,
    )  # fmt: skip
    return tame(vae)


def mochi_vae() -> Any:
    vae = diffusers.AutoencoderKLMochi(
        encoder_block_out_channels=(32, 32, 32, 32), decoder_block_out_channels=(32, 32, 32, 32), latent_channels=4,
        layers_per_block=(1, 1, 1, 1, 1),
    )  # fmt: skip
    return tame(vae)


def ltx_vae(**config: Any) -> Any:
    sizes: dict[str, Any] = {
        "latent_channels": 4, "block_out_channels": (8, 8, 8, 8), "decoder_block_out_channels": (8, 8, 8, 8),
        "layers_per_block": (1, 1, 1, 1, 1), "decoder_layers_per_block": (1, 1, 1, 1, 1), "patch_size": 2,
    }  # fmt: skip
    return tame(diffusers.AutoencoderKLLTXVideo(**{**sizes, **config}))
