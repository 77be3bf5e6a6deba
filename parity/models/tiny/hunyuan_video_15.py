"""The tiny HunyuanVideo-1.5."""

from __future__ import annotations

import pathlib

import transformers

from parity.models.tiny import text
from parity.models.tiny.make import TRANSFORMER_RULES, VAE_RULES, fill, save, text_rules


def make(folder: pathlib.Path) -> None:
    """Write `tiny-hunyuan-video-1.5` into the empty `folder`."""
    import diffusers  # here, as importing it takes seconds that a run with an existing checkpoint need not pay twice

    tokenizer = text.make_qwen_tokenizer()
    encoder, encoder_2 = text.make_qwen(len(tokenizer)), text.make_t5(384, width=48, head=12)
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
        "crop_start": text.template_prefix_length(tokenizer, pipeline.system_message),
        "height": 64,
        "width": 96,
        "num_frames": 9,
        "prompt": 'A red panda holds a paper sign that says "OPEN" while snow falls slowly on the stone street',
        "negative_prompt": "",
    }
    save(pipeline, defaults, folder)
