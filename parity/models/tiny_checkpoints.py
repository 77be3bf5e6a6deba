"""The tiny models: HunyuanVideo-1.5, and CogVideoX in the form of the 2B model of 1.0 (added positions, DDIM) and of
1.5 (rotary, two frames to a patch, DPM)."""

from __future__ import annotations

import pathlib
from typing import Any

import transformers

from parity.models import tiny_text
from parity.models.tiny import TRANSFORMER_RULES, VAE_RULES, fill, save, text_rules


def make_hunyuan_video_15(folder: pathlib.Path) -> None:
    """Write `tiny-hunyuan-video-1.5` into the empty `folder`."""
    import diffusers  # here, as importing it takes seconds that a run with an existing checkpoint need not pay twice

    tokenizer = tiny_text.make_qwen_tokenizer()
    encoder, encoder_2 = tiny_text.make_qwen(len(tokenizer)), tiny_text.make_t5(384, width=48, head=12)
    fill(encoder, "text_encoder", text_rules(1.3))
    fill(encoder_2, "text_encoder_2", text_rules(0.7))  # 0.7 * 0.7 * sqrt(12) = 1.7
    transformer = diffusers.HunyuanVideo15Transformer3DModel(
        in_channels=65,
        out_channels=32,
        num_attention_heads=4,
        attention_head_dim=32,
        num_layers=4,
        num_refiner_layers=2,
        mlp_ratio=4.0,
        patch_size=1,
        patch_size_t=1,
        text_embed_dim=encoder.config.hidden_size,
        text_embed_2_dim=encoder_2.config.d_model,
        image_embed_dim=32,
        rope_axes_dim=(8, 12, 12),
        target_size=640,
        task_type="t2v",
    )
    fill(transformer, "transformer", TRANSFORMER_RULES)
    vae = diffusers.AutoencoderKLHunyuanVideo15(
        latent_channels=32, block_out_channels=(16, 16, 32, 32, 64), layers_per_block=1
    )
    fill(vae, "vae", VAE_RULES)
    pipeline = diffusers.HunyuanVideo15Pipeline(
        text_encoder=encoder,
        tokenizer=tokenizer,
        transformer=transformer,
        vae=vae,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=encoder_2,
        tokenizer_2=transformers.ByT5Tokenizer(),
        guider=diffusers.ClassifierFreeGuidance(guidance_scale=6.0),
    )
    defaults = {
        "tokenizer_max_length": 64,
        "tokenizer_2_max_length": 32,
        "vision_num_semantic_tokens": 16,
        "crop_start": tiny_text.template_prefix_length(tokenizer, pipeline.system_message),
        "height": 64,
        "width": 96,
        "num_frames": 9,
        "prompt": 'A red panda holds a paper sign that says "OPEN" while snow falls slowly on the stone street',
        "negative_prompt": "",
    }
    save(pipeline, defaults, folder)


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


def make_cogvideox_10(folder: pathlib.Path) -> None:
    """Write `tiny-cogvideox-1.0` into the empty `folder`."""
    import diffusers

    scheduler = diffusers.CogVideoXDDIMScheduler(**_SCHEDULE, snr_shift_scale=3.0)
    sizes = {"sample_height": _HEIGHT // 8, "sample_width": _WIDTH // 8, "sample_frames": _FRAMES}
    _make_cogvideox(folder, scheduler, {**sizes, "use_rotary_positional_embeddings": False})


def make_cogvideox_15(folder: pathlib.Path) -> None:
    """Write `tiny-cogvideox-1.5` into the empty `folder`."""
    import diffusers

    scheduler = diffusers.CogVideoXDPMScheduler(**_SCHEDULE, snr_shift_scale=1.0)
    # Larger than the video, as in the published checkpoint, so that its rotary tables are cut out of larger ones.
    sizes = {"sample_height": 10, "sample_width": 16, "sample_frames": 17}
    options = {"use_rotary_positional_embeddings": True, "patch_size_t": 2, "patch_bias": False}
    _make_cogvideox(folder, scheduler, {**sizes, **options})


def _make_cogvideox(folder: pathlib.Path, scheduler: Any, options: dict[str, Any]) -> None:
    import diffusers

    tokenizer = tiny_text.make_t5_tokenizer()
    encoder = tiny_text.make_t5(len(tokenizer))
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
