"""What a cause is in words, and what to change: one sentence a person can act on for each setting."""

from __future__ import annotations

from collections.abc import Mapping

ADVICE: Mapping[str, tuple[str, str]] = {
    "dtype": ("parameters and activations are {value}", "run the transformer in the reference's dtype"),
    "matmul_precision": (
        "float32 products round their operands (precision {value})",
        "set jax_default_matmul_precision to highest",
    ),
    "attention.mask": (
        "padded text is kept out of the joint attention by '{value}', not by the exact mask",
        "mask the logits (segment ids or an additive mask), or rescale zeroed keys by their log-sum-exp",
    ),
    "refiner.mask": (
        "the text refiner attends to padding (its mask is {value})",
        "hand the prompt mask to the refiner and its pooled mean",
    ),
    "attention.block_padding": (
        "keys that fill the last block are {value}",
        "mask the keys beyond the sequence, or choose a block size that divides it",
    ),
    "attention.k_smooth": ("the mean key is subtracted", "it changes nothing in exact arithmetic"),
    "attention.softmax_dtype": ("the softmax is in {value}", "compute the softmax in float32"),
    "text.reorder": (
        "text tokens stand in the order '{value}'",
        "put the valid tokens first, and their mask with them",
    ),
    "text.byt5_dtype": ("the ByT5 encoder runs in {value}", "run it in the reference's dtype"),
    "vision_states": ("the vision states are '{value}'", "pass what the reference passes"),
    "timestep_dtype": ("timesteps are rounded to {value}", "pass them in float32"),
    "latents_dtype": ("latents are kept in {value} between steps", "keep them in float32"),
    "schedule_dtype": ("sigmas and timesteps are in {value}", "keep the schedule in float32"),
    "guidance_dtype": ("the branches are combined in {value}", "combine them in float32"),
    "norm_dtype": ("norms compute in {value}", "compute statistics in float32"),
    "rope_dtype": ("the rotary tables are in {value}", "keep them in float32"),
    "scheduler.warmup_steps": ("warm-up calls moved the scheduler", "reset the scheduler after warming up"),
    "noise.device": ("the initial noise is drawn elsewhere ({value})", "hand both sides the same noise"),
    "cache": ("features are cached ({value})", "switch the cache off, or accept its price"),
}


def sentence(setting: str, value: str) -> str:
    """What it is."""
    what, _ = ADVICE.get(setting, ("{setting} is {value}", ""))
    return what.format(setting=setting, value=value)


def remedy(setting: str) -> str:
    """What to change."""
    return ADVICE.get(setting, ("", "give it the reference's value"))[1]
