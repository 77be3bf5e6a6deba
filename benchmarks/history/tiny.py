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


def wan(**config: Any) -> Made:
    sizes: dict[str, Any] = {
        "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4,
        "out_channels": 4, "text_dim": 32, "freq_dim": 32, "ffn_dim": 64, "num_layers": 2, "rope_max_seq_len": 32,
    }  # fmt: skip
    model = diffusers.WanTransformer3DModel(**{**sizes, **config})
    inputs = {"hidden_states": drawn(1, 4, 2, 8, 12), "encoder_hidden_states": drawn(1, 16, 32, seed=1)}
    return Made(module=tame(model), inputs={**inputs, "timestep": torch.tensor([700.0])})


def ltx() -> Made:
    model = diffusers.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=8, cross_attention_dim=32,
        num_layers=2, caption_channels=16,
    )  # fmt: skip
    inputs = {
        "hidden_states": drawn(1, 48, 8), "encoder_hidden_states": drawn(1, 16, 16, seed=1),
        "encoder_attention_mask": masked(11, left=True), "timestep": torch.tensor([700.0]),
    }  # fmt: skip
    return Made(module=tame(model), inputs=inputs, static={"num_frames": 2, "height": 4, "width": 6})


def hunyuan() -> Any:
    model = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, patch_size=2, patch_size_t=1, guidance_embeds=True, text_embed_dim=16,
        pooled_projection_dim=8, rope_axes_dim=(2, 4, 4),
    )  # fmt: skip
    return tame(model)


def hunyuan_inputs(valid: int = 12) -> dict[str, torch.Tensor]:
    return {
        "hidden_states": drawn(1, 4, 2, 8, 8), "encoder_hidden_states": drawn(1, 16, 16, seed=1),
        "encoder_attention_mask": masked(valid), "pooled_projections": drawn(1, 8, seed=2),
        "guidance": torch.tensor([6000.0]), "timestep": torch.tensor([700.0]),
    }  # fmt: skip


def qwen(valid: int = 11) -> Made:
    model = diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=3,
        joint_attention_dim=16, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    inputs = {
        "hidden_states": drawn(1, 24, 16), "encoder_hidden_states": drawn(1, 16, 16, seed=1),
        "encoder_hidden_states_mask": masked(valid).bool(), "timestep": torch.tensor([0.7]),
    }  # fmt: skip
    return Made(module=tame(model), inputs=inputs, static={"img_shapes": [[(1, 4, 6)]]})


def flux() -> Made:
    model = diffusers.FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=24, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    ids = torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(6.0))
    inputs = {
        "hidden_states": drawn(1, 24, 16), "encoder_hidden_states": drawn(1, 16, 32, seed=1),
        "pooled_projections": drawn(1, 24, seed=2), "timestep": torch.tensor([0.7]), "img_ids": ids,
        "txt_ids": torch.zeros(16, 3),
    }  # fmt: skip
    return Made(module=tame(model), inputs=inputs)


def mochi() -> Made:
    model = diffusers.MochiTransformer3DModel(
        patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=16,
        in_channels=12, text_embed_dim=16, time_embed_dim=8, max_sequence_length=16,
    )  # fmt: skip
    inputs = {
        "hidden_states": drawn(1, 12, 2, 8, 8), "encoder_hidden_states": drawn(1, 16, 16, seed=1),
        "encoder_attention_mask": masked(11).bool(), "timestep": torch.tensor([700.0]),
    }  # fmt: skip
    return Made(module=tame(model), inputs=inputs)


def sana(interpolation_scale: float | None) -> Made:
    model = diffusers.SanaTransformer2DModel(
        in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=8, num_layers=2,
        num_cross_attention_heads=4, cross_attention_head_dim=8, cross_attention_dim=32, caption_channels=16,
        sample_size=8, patch_size=1, interpolation_scale=interpolation_scale,
    )  # fmt: skip
    inputs = {
        "hidden_states": drawn(1, 8, 8, 8), "encoder_hidden_states": drawn(1, 16, 16, seed=1),
        "encoder_attention_mask": masked(11), "timestep": torch.tensor([700.0]),
    }  # fmt: skip
    return Made(module=tame(model), inputs=inputs)


def cogview4() -> Made:
    model = diffusers.CogView4Transformer2DModel(
        patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        text_embed_dim=16, time_embed_dim=16, condition_dim=8, pos_embed_max_size=16, sample_size=16,
        rope_axes_dim=(16, 16),
    )  # fmt: skip
    size = torch.tensor([[64.0, 96.0]])
    inputs = {
        "hidden_states": drawn(1, 4, 8, 12), "encoder_hidden_states": drawn(1, 16, 16, seed=1),
        "timestep": torch.tensor([700.0]), "original_size": size, "target_size": size,
        "crop_coords": torch.zeros(1, 2),
    }  # fmt: skip
    return Made(module=tame(model), inputs=inputs)


def prx() -> Made:
    model = diffusers.PRXTransformer2DModel(
        in_channels=4, patch_size=2, context_in_dim=16, hidden_size=32, num_heads=4, depth=2, axes_dim=[4, 4]
    )
    inputs = {
        "hidden_states": drawn(1, 4, 8, 12), "encoder_hidden_states": drawn(1, 16, 16, seed=1),
        "timestep": torch.tensor([0.7]),
    }  # fmt: skip
    return Made(module=tame(model), inputs=inputs)


def chroma() -> Made:
    model = diffusers.ChromaTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=(4, 4, 8), approximator_num_channels=8, approximator_hidden_dim=16,
        approximator_layers=1,
    )  # fmt: skip
    ids = torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(6.0))
    mask = torch.cat([masked(11).bool(), torch.ones(1, 24, dtype=torch.bool)], dim=1)
    inputs = {
        "hidden_states": drawn(1, 24, 16), "encoder_hidden_states": drawn(1, 16, 32, seed=1),
        "timestep": torch.tensor([0.7]), "img_ids": ids, "txt_ids": torch.zeros(16, 3), "attention_mask": mask,
    }  # fmt: skip
    return Made(module=tame(model), inputs=inputs)


def auraflow() -> Made:
    model = diffusers.AuraFlowTransformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=8,
        num_attention_heads=4, joint_attention_dim=16, caption_projection_dim=32, out_channels=4, pos_embed_max_size=64,
    )  # fmt: skip
    inputs = {
        "hidden_states": drawn(1, 4, 8, 8), "encoder_hidden_states": drawn(1, 16, 16, seed=1),
        "timestep": torch.tensor([0.7]),
    }  # fmt: skip
    return Made(module=tame(model), inputs=inputs)


def sd3() -> Made:
    model = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=16, caption_projection_dim=32, pooled_projection_dim=8, out_channels=4,
        pos_embed_max_size=8, qk_norm="rms_norm",
    )  # fmt: skip
    inputs = {
        "hidden_states": drawn(1, 4, 8, 8), "encoder_hidden_states": drawn(1, 16, 16, seed=1),
        "pooled_projections": drawn(1, 8, seed=2), "timestep": torch.tensor([700.0]),
    }  # fmt: skip
    return Made(module=tame(model), inputs=inputs)


def cogvideox() -> Made:
    model = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=8,
        text_embed_dim=16, num_layers=2, sample_width=16, sample_height=16, sample_frames=9, patch_size=2,
        patch_size_t=2, max_text_seq_length=16, use_rotary_positional_embeddings=True, patch_bias=False,
    )  # fmt: skip
    inputs = {
        "hidden_states": drawn(1, 4, 4, 8, 12), "encoder_hidden_states": drawn(1, 16, 16, seed=1),
        "timestep": torch.tensor([700.0]),
    }  # fmt: skip
    return Made(module=tame(model), inputs=inputs)
