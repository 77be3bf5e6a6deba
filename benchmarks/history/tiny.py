"""Tiny models of the classes that the changes are in: two blocks, seeded weights, inputs of a few tokens.

Their configs are in `tiny.json`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import torch
from change import Made, drawn, tame

CONFIGS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())


def model(kind: str, seed: int = 1, **changes: Any) -> Any:
    """A model of diffusers.

    Args:
        kind: its class. seed: of its weights. changes: of its config.
    """
    return tame(getattr(diffusers, kind)(**{**CONFIGS[kind], **changes}), seed)


wan_vae = partial(model, "AutoencoderKLWan")
hunyuan_vae = partial(model, "AutoencoderKLHunyuanVideo")
ltx2 = partial(model, "LTX2VideoTransformer3DModel")


def masked(valid: int, length: int = 16, left: bool = False) -> torch.Tensor:
    """A mask of text tokens, 1 for a valid one."""
    mask = (torch.arange(length) < valid).long()[None]
    return mask.flip(1) if left else mask


def inputs(*latents: int, text: int = 16, time: float = 700.0, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    """Latents of this shape, 16 tokens of text of this width, a timestep."""
    words = drawn(1, 16, text, seed=1)
    return {"hidden_states": drawn(*latents), "encoder_hidden_states": words, "timestep": torch.tensor([time]), **more}


def wan(seed: int = 1, **config: Any) -> Made:
    return Made(module=model("WanTransformer3DModel", seed, **config), inputs=inputs(1, 4, 2, 8, 12, text=32))


def ltx() -> Made:
    given = inputs(1, 48, 8, encoder_attention_mask=masked(11, left=True))
    size = {"num_frames": 2, "height": 4, "width": 6}
    return Made(module=model("LTXVideoTransformer3DModel"), inputs=given, static=size)


def hunyuan() -> Any:
    return model("HunyuanVideoTransformer3DModel")


def hunyuan_inputs() -> dict[str, torch.Tensor]:
    given = inputs(1, 4, 2, 8, 8, encoder_attention_mask=masked(12))
    return {**given, "pooled_projections": drawn(1, 8, seed=2), "guidance": torch.tensor([6000.0])}


def made_hunyuan() -> Made:
    return Made(module=hunyuan(), inputs=hunyuan_inputs())


def qwen(valid: int = 11) -> Made:
    given = inputs(1, 24, 16, time=0.7, encoder_hidden_states_mask=masked(valid).bool())
    return Made(module=model("QwenImageTransformer2DModel"), inputs=given, static={"img_shapes": [[(1, 4, 6)]]})


def qwen_unpadded() -> Made:
    return qwen(16)


def flux_inputs(**more: torch.Tensor) -> dict[str, torch.Tensor]:
    ids = torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(6.0))
    return inputs(1, 24, 16, text=32, time=0.7, img_ids=ids, txt_ids=torch.zeros(16, 3), **more)


def flux() -> Made:
    given = flux_inputs(pooled_projections=drawn(1, 24, seed=2))
    return Made(module=model("FluxTransformer2DModel"), inputs=given)


def chroma() -> Made:
    mask = torch.cat([masked(11).bool(), torch.ones(1, 24, dtype=torch.bool)], dim=1)
    return Made(module=model("ChromaTransformer2DModel"), inputs=flux_inputs(attention_mask=mask))


def mochi() -> Made:
    given = inputs(1, 12, 2, 8, 8, encoder_attention_mask=masked(11).bool())
    return Made(module=model("MochiTransformer3DModel"), inputs=given)


def sana(**config: Any) -> Made:
    given = inputs(1, 8, 8, 8, encoder_attention_mask=masked(11))
    return Made(module=model("SanaTransformer2DModel", **config), inputs=given)


def cogview4() -> Made:
    size = torch.tensor([[64.0, 96.0]])
    given = inputs(1, 4, 8, 12, original_size=size, target_size=size, crop_coords=torch.zeros(1, 2))
    return Made(module=model("CogView4Transformer2DModel"), inputs=given)


def prx() -> Made:
    return Made(module=model("PRXTransformer2DModel"), inputs=inputs(1, 4, 8, 12, time=0.7))


def auraflow() -> Made:
    return Made(module=model("AuraFlowTransformer2DModel"), inputs=inputs(1, 4, 8, 8, time=0.7))


def sd3() -> Made:
    given = inputs(1, 4, 8, 8, pooled_projections=drawn(1, 8, seed=2))
    return Made(module=model("SD3Transformer2DModel"), inputs=given)


def cogvideox() -> Made:
    return Made(module=model("CogVideoXTransformer3DModel"), inputs=inputs(1, 4, 4, 8, 12))
