"""Tiny checkpoints: real folders in diffusers layout, small enough for a laptop and wild enough to show a fault.

A tool that compares two programs needs a model that everybody has. These are made once, from seeds, without network,
and are then loaded with `from_pretrained` exactly as a user's own checkpoint is: nothing behind this module knows that
the weights are random. They are not what a fresh network starts from: that is so tame (gates at zero, uniform
attention, biases at zero) that most faults would leave no trace. `benchmarks/tameness.py` measures what was reached.

Weights are pinned by a test, so that figures measured on them stay comparable. To keep the pin on every machine they
are uniform numbers, scaled and shifted: integers over 2^24 and one IEEE rounding per operation, where a normal
generator's bytes depend on the CPU's vector unit. Each tensor has a seed of its own, taken from its name, so that
neither the order of construction nor an added tensor moves the others.

Cost: `ensure_tiny` takes a few seconds and about 42 MB of disk (CogVideoX: 15) the first time, and nothing afterwards.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from parity.cache import cache_dir
from parity.errors import UsageError
from parity.models import tiny_text
from parity.models.tiny_cogvideox import make_cogvideox_10, make_cogvideox_15
from parity.models.tiny_weights import Rule, fill

# Part of the folder's name: raise it whenever a byte of a checkpoint changes, so that no run mixes two of them.
_VERSION = 1


# Logits of unit-rms queries and keys over the square root of the head dimension have standard deviation
# mean(norm_q) * mean(norm_k): 1.3 * 1.3 = 1.7, attention that is neither uniform nor one-hot.
_TRANSFORMER_RULES = (
    Rule(r"norm_(added_)?[qk]\.weight$", mean=1.3, std=0.2),
    Rule(r"norm[^.]*\.linear\.weight$", std=0.8, fan_in=True),
    Rule(r"norm[^.]*\.linear\.bias$", std=0.5),
    Rule(r"norm[^.]*\.weight$", mean=1.0, std=0.2),
    Rule(r"norm[^.]*\.bias$", std=0.2),
    Rule(r"refiner_blocks\.\d+\.attn\.to_[qk]\.weight$", std=1.3, fan_in=True),
    Rule(r"x_embedder\.proj\.weight$", std=1.4, fan_in=True),  # half of the 65 input channels are zero
    # Half of what others get: two exact backends' sines of a timestep near 1000 differ by some 3e-6, which guidance
    # amplifies, and float32 paths have to stay well below 1e-5. What the timestep loses in size the bias makes up for.
    Rule(r"timestep_embedder\.linear_2\.weight$", std=0.8, fan_in=True),
    Rule(r"timestep_embedder\.linear_2\.bias$", std=0.6),
    Rule(r"(linear_2|linear_3|net\.2)\.weight$", std=1.6, fan_in=True),  # behind an activation that shrinks
    Rule(r"cond_type_embed\.weight$", std=0.7),
    Rule(r"\.weight$", std=1.0, fan_in=True),
    Rule(r"\.bias$", std=0.2),
)

_VAE_RULES = (
    Rule(r"\.gamma$", mean=1.0, std=0.2),
    Rule(r"decoder\.conv_out\.conv\.weight$", std=0.5, fan_in=True),
    Rule(r"\.weight$", std=1.0, fan_in=True),
    Rule(r"\.bias$", std=0.1),
)

_QWEN_RULES = (
    Rule(r"embed_tokens\.weight$", std=1.0),
    Rule(r"norm[^.]*\.weight$", mean=1.0, std=0.2),
    Rule(r"[qk]_proj\.weight$", std=1.3, fan_in=True),
    Rule(r"down_proj\.weight$", std=1.6, fan_in=True),
    Rule(r"\.weight$", std=1.0, fan_in=True),
    Rule(r"\.bias$", std=0.2),
)

# T5 does not divide its logits by the root of the head dimension (12): 0.7 * 0.7 * sqrt(12) = 1.7.
_BYT5_RULES = (
    Rule(r"(shared|embed_tokens)\.weight$", std=1.0),
    Rule(r"layer_norm\.weight$", mean=1.0, std=0.2),
    Rule(r"relative_attention_bias\.weight$", std=0.5),
    Rule(r"SelfAttention\.[qk]\.weight$", std=0.7, fan_in=True),
    Rule(r"DenseReluDense\.wo\.weight$", std=1.6, fan_in=True),
    Rule(r"\.weight$", std=1.0, fan_in=True),
)


def _make_hunyuan_video_15(folder: pathlib.Path) -> None:
    """Write `tiny-hunyuan-video-1.5` into the empty `folder`."""
    import diffusers  # here, as importing it takes seconds that a run with an existing checkpoint need not pay twice

    tokenizer = tiny_text.make_qwen_tokenizer()
    encoder, encoder_2 = tiny_text.make_qwen(len(tokenizer)), tiny_text.make_byt5()
    fill(encoder, "text_encoder", _QWEN_RULES)
    fill(encoder_2, "text_encoder_2", _BYT5_RULES)
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
    fill(transformer, "transformer", _TRANSFORMER_RULES)
    vae = diffusers.AutoencoderKLHunyuanVideo15(
        latent_channels=32, block_out_channels=(16, 16, 32, 32, 64), layers_per_block=1
    )
    fill(vae, "vae", _VAE_RULES)
    pipeline = diffusers.HunyuanVideo15Pipeline(
        text_encoder=encoder,
        tokenizer=tokenizer,
        transformer=transformer,
        vae=vae,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=encoder_2,
        tokenizer_2=tiny_text.make_byt5_tokenizer(),
        guider=diffusers.ClassifierFreeGuidance(guidance_scale=6.0),
    )
    pipeline.save_pretrained(folder)
    defaults: dict[str, Any] = {
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
    (folder / "parity.json").write_text(json.dumps(defaults, indent=2) + "\n", encoding="utf-8")


_MAKERS: dict[str, Callable[[pathlib.Path], None]] = {
    "tiny-hunyuan-video-1.5": _make_hunyuan_video_15,
    "tiny-cogvideox-1.0": make_cogvideox_10,
    "tiny-cogvideox-1.5": make_cogvideox_15,
}

TINY_MODELS: tuple[str, ...] = tuple(_MAKERS)
"""Names that `ensure_tiny` takes."""


def ensure_tiny(name: str) -> pathlib.Path:
    """Return the folder of a tiny checkpoint, making it first where it is not in the cache.

    It is built in a temporary folder and renamed into place, so a killed or a concurrent run never leaves or sees half
    a checkpoint. The caller's torch random state is left as it was.

    Args:
        name: one of `TINY_MODELS`.

    Returns:
        `cache_dir()/models/<name>-v<N>`, a complete checkpoint in diffusers layout with a `parity.json`.

    Raises:
        UsageError: no tiny model has this name, or the cache cannot be written.
    """
    if name not in _MAKERS:
        raise UsageError(f"unknown tiny model {name!r}; there are: {', '.join(TINY_MODELS)}")
    folder = cache_dir() / "models" / f"{name}-v{_VERSION}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise UsageError(
            f"cannot write the cache folder {folder.parent}: {error.strerror}; set PARITY_CACHE to another"
        ) from error
    try:
        with torch.random.fork_rng(devices=[]):
            _MAKERS[name](building)
        building.chmod(0o755)  # mkdtemp's 0700 would keep a shared cache from being shared
        try:
            os.rename(building, folder)
        except OSError:
            # Another process was faster: its folder is the same, byte for byte.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder
