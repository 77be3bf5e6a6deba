"""The two models of docs/full-size.md, as folders of configs: no weight and no tokenizer.

Sources. HunyuanVideo-1.5 720p, text to video: the defaults of diffusers' `HunyuanVideo15Transformer3DModel` (54 blocks,
16 heads of 128) with the checkpoint's `target_size` and task, those of its VAE, and the lengths that its pipeline has
in its code (1,000 + 256 + 729 tokens of text). CogVideoX-1.5-5B: what diffusers' conversion script gives the class (42
blocks, 48 heads of 64, 81 frames of 768 x 1360).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model of full size.

    Attributes:
        title: of it. blocks: of its transformer. transformer: its config. others: file -> config of its other parts.
        spec: the folder's `parity.json`.
    """

    title: str
    blocks: int
    transformer: Config
    others: Mapping[str, Config]
    spec: Config

    def write(self, folder: Path, blocks: int) -> Path:
        """The folder, its transformer with that many blocks."""
        files = {
            **self.others,
            "transformer/config.json": {**self.transformer, "num_layers": blocks},
            "parity.json": self.spec,
        }
        for name, config in files.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        return folder


MODELS: Mapping[str, Model] = {
    "hunyuan-video-1.5": Model(
        title="HunyuanVideo-1.5, 121 frames of 720 x 1280",
        blocks=54,
        transformer={
            "_class_name": "HunyuanVideo15Transformer3DModel", "attention_head_dim": 128, "image_embed_dim": 1152,
            "in_channels": 65, "mlp_ratio": 4.0, "num_attention_heads": 16, "num_refiner_layers": 2,
            "out_channels": 32, "patch_size": 1, "patch_size_t": 1, "qk_norm": "rms_norm",
            "rope_axes_dim": [16, 56, 56], "rope_theta": 256.0, "target_size": 960, "task_type": "t2v",
            "text_embed_2_dim": 1472, "text_embed_dim": 3584, "use_meanflow": False,
        },
        others={
            "vae/config.json": {
                "_class_name": "AutoencoderKLHunyuanVideo15", "block_out_channels": [128, 256, 512, 1024, 1024],
                "latent_channels": 32, "layers_per_block": 2, "scaling_factor": 1.03682,
                "spatial_compression_ratio": 16, "temporal_compression_ratio": 4,
            },
            "scheduler/scheduler_config.json": {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 9.0},
            "guider/guider_config.json": {"_class_name": "ClassifierFreeGuidance", "guidance_scale": 6.0},
        },
        spec={"height": 720, "width": 1280, "num_frames": 121, "prompt": "a red panda holds a sign"},
    ),
    "cogvideox-1.5-5b": Model(
        title="CogVideoX-1.5-5B, 81 frames of 768 x 1360",
        blocks=42,
        transformer={
            "_class_name": "CogVideoXTransformer3DModel", "activation_fn": "gelu-approximate", "attention_bias": True,
            "attention_head_dim": 64, "in_channels": 16, "max_text_seq_length": 226, "num_attention_heads": 48,
            "out_channels": 16, "patch_bias": False, "patch_size": 2, "patch_size_t": 2, "sample_frames": 81,
            "sample_height": 96, "sample_width": 170, "temporal_compression_ratio": 4, "text_embed_dim": 4096,
            "time_embed_dim": 512, "use_learned_positional_embeddings": False,
            "use_rotary_positional_embeddings": True,
        },
        others={
            "vae/config.json": {
                "_class_name": "AutoencoderKLCogVideoX", "block_out_channels": [128, 256, 256, 512],
                "latent_channels": 16, "scaling_factor": 0.7, "temporal_compression_ratio": 4,
            },
            "scheduler/scheduler_config.json": {
                "_class_name": "CogVideoXDPMScheduler", "beta_end": 0.012, "beta_schedule": "scaled_linear",
                "beta_start": 0.00085, "prediction_type": "v_prediction", "rescale_betas_zero_snr": True,
                "set_alpha_to_one": True, "snr_shift_scale": 1.0, "timestep_spacing": "trailing",
            },
        },
        spec={"prompt": "a red panda holds a sign"},
    ),
}  # fmt: skip
"""By name; the fewest files that say all sizes."""
