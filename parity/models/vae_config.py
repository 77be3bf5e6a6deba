"""What is known of a VAE from its config alone. Imports neither torch nor jax."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.models.folder import read_config

DIVIDES: Mapping[str, bool] = {"AutoencoderKLHunyuanVideo15": True, "AutoencoderKLCogVideoX": False}
"""Class -> whether its pipeline divides the latents by the scaling factor, or multiplies by its inverse."""


def vae_config(folder: Path) -> dict[str, Any]:
    """The config of a checkpoint's VAE.

    Raises:
        UsageError: its class is not known, or its config has what the pipelines do not do.
    """
    config = read_config(folder, "vae")
    name = str(config.get("_class_name", ""))
    if name not in DIVIDES:
        known = ", ".join(DIVIDES)
        raise UsageError(
            f"'{folder}' holds a VAE '{name}', which no stage decodes yet (known: {known}); give both decoders as "
            "ports, with latents as the reference's inputs (--reference-port, --port)"
        )
    other = [k for k in ("shift_factor", "latents_mean", "latents_std", "use_post_quant_conv") if config.get(k)]
    if other:
        raise UsageError(f"the VAE of '{folder}' has a {other[0]}, which its pipeline leaves out; not decoded yet")
    return config


def expected_frames(config: Mapping[str, Any], latent_frames: int) -> int:
    """How many frames a VAE makes of so many latent ones.

    The first latent frame holds one. CogVideoX decodes pairs, and treats a first frame apart only where the number is
    odd; its published sizes are all odd.
    """
    time = int(config["temporal_compression_ratio"])
    paired = config.get("_class_name") == "AutoencoderKLCogVideoX" and latent_frames % 2 == 0
    return latent_frames * time if paired else (latent_frames - 1) * time + 1
