"""The tiny CogVideoX checkpoints: 1.0 in the form of the 2B model (added positions, DDIM), 1.5 (rotary, two frames to a
patch, DPM)."""

from __future__ import annotations

import pathlib
from typing import Any

from parity.models.tiny import text
from parity.models.tiny.make import TRANSFORMER_RULES, VAE_RULES, fill, save, text_rules

_SCHEDULE: dict[str, Any] = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": True,
    "set_alpha_to_one": True,
    "timestep_spacing": "trailing",
}
"""What the published checkpoints' schedulers have in common."""

_HEIGHT, _WIDTH, _FRAMES, _TEXT = 64, 96, 9, 32


def make_10(folder: pathlib.Path) -> None:
    """Write `tiny-cogvideox-1.0` into the empty `folder`."""
    import diffusers

    scheduler = diffusers.CogVideoXDDIMScheduler(**_SCHEDULE, snr_shift_scale=3.0)
    sizes = {"sample_height": _HEIGHT // 8, "sample_width": _WIDTH // 8, "sample_frames": _FRAMES}
    _make(folder, scheduler, {**sizes, "use_rotary_positional_embeddings": False})


def make_15(folder: pathlib.Path) -> None:
    """Write `tiny-cogvideox-1.5` into the empty `folder`."""
    import diffusers

    scheduler = diffusers.CogVideoXDPMScheduler(**_SCHEDULE, snr_shift_scale=1.0)
    # Larger than the video, as in the published checkpoint, so that its rotary tables are cut out of larger ones.
    sizes = {"sample_height": 10, "sample_width": 16, "sample_frames": 17}
    options = {"use_rotary_positional_embeddings": True, "patch_size_t": 2, "patch_bias": False}
    _make(folder, scheduler, {**sizes, **options})


def _make(folder: pathlib.Path, scheduler: Any, options: dict[str, Any]) -> None:
    import diffusers

    tokenizer = text.make_t5_tokenizer()
    encoder = text.make_t5(len(tokenizer))
    fill(encoder, "text_encoder", text_rules(0.65))  # 0.65 * 0.65 * sqrt(16) = 1.7
    transformer = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=16,
        out_channels=16,
        time_embed_dim=64,
        text_embed_dim=encoder.config.d_model,
        num_layers=4,
        patch_size=2,
        max_text_seq_length=_TEXT,
        **options,
    )
    fill(transformer, "transformer", TRANSFORMER_RULES)
    vae = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(16, 16, 32, 32),
        layers_per_block=1,
        norm_num_groups=8,
        sample_height=_HEIGHT,
        sample_width=_WIDTH,
    )
    fill(vae, "vae", VAE_RULES)
    defaults = {
        "tokenizer_max_length": _TEXT,
        "height": _HEIGHT,
        "width": _WIDTH,
        "num_frames": _FRAMES,
        "prompt": "A red panda holds a paper sign while snow falls slowly on the street",
        "negative_prompt": "text on a static background",
    }
    save(diffusers.CogVideoXPipeline(tokenizer, encoder, vae, transformer, scheduler), defaults, folder)
