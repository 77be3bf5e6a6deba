"""Tiny transformers of classes that no family of parity knows, by class and config alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIGS: dict[str, dict[str, Any]] = {
    "wan": {
        "_class_name": "WanTransformer3DModel",
        "num_attention_heads": 2,
        "attention_head_dim": 24,
        "in_channels": 4,
        "out_channels": 4,
        "text_dim": 32,
        "freq_dim": 32,
        "ffn_dim": 64,
        "num_layers": 2,
        "rope_max_seq_len": 32,
    },
    "ltx": {
        "_class_name": "LTXVideoTransformer3DModel",
        "in_channels": 8,
        "out_channels": 8,
        "num_attention_heads": 4,
        "attention_head_dim": 8,
        "cross_attention_dim": 32,
        "num_layers": 2,
        "caption_channels": 16,
    },
    "flux": {
        "_class_name": "FluxTransformer2DModel",
        "in_channels": 16,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 24,
        "axes_dims_rope": [4, 4, 8],
    },
    "qwen": {  # complex rotary tables; its time embedding multiplies by 1000
        "_class_name": "QwenImageTransformer2DModel",
        "patch_size": 2,
        "in_channels": 16,
        "out_channels": 4,
        "num_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 3,
        "joint_attention_dim": 16,
        "axes_dims_rope": [8, 4, 4],
    },
    "skyreels": {  # frequencies of its time embedding in float64
        "_class_name": "SkyReelsV2Transformer3DModel",
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "in_channels": 4,
        "out_channels": 4,
        "text_dim": 16,
        "freq_dim": 256,
        "ffn_dim": 32,
        "num_layers": 2,
        "rope_max_seq_len": 32,
    },
    "mochi": {
        "_class_name": "MochiTransformer3DModel",
        "patch_size": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 8,
        "num_layers": 2,
        "pooled_projection_dim": 16,
        "in_channels": 12,
        "text_embed_dim": 16,
        "time_embed_dim": 8,
        "max_sequence_length": 16,
    },
}


def make(folder: Path, name: str, **changes: Any) -> Path:
    """Write a config alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIGS[name], **changes}))
    return folder
