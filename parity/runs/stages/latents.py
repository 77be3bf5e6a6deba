"""Before a decode: are the latents laid out and scaled as the VAE takes them? Pure functions on numbers.

Ports lose days here: latents handed on as [B, T, C, H, W] decode without an error where sizes happen to fit, and a
scaling factor applied twice, or never, gives a picture that is only a little too grey.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from parity.compare.result import Check

SCALE_MATCH = 0.01
"""How near the gain between two sides' latents must be to the scaling factor (or its inverse) to be called it."""


def latent_checks(config: Mapping[str, Any], reference: np.ndarray, candidate: np.ndarray) -> tuple[Check, ...]:
    """Check latents [B, C, T, H, W] against the VAE's config, and the two sides' against each other.

    Args:
        config: of the VAE. reference, candidate: what each side's decode is to start from.
    """
    factor = _factor(config)
    scale = float(config["scaling_factor"]) if factor.verdict == "pass" else 1.0
    return _layout(config, reference, candidate), factor, _statistics(scale, reference, candidate)


def _layout(config: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> Check:
    name, channels = "latents layout", int(config["latent_channels"])
    for side, x in (("reference", a), ("candidate", b)):
        if x.ndim != 5 or x.shape[1] != channels:
            other = " (they are laid out [B, T, C, H, W])" if x.ndim == 5 and x.shape[2] == channels else ""
            detail = f"the {side}'s latents are {list(x.shape)}, not [B, {channels}, T, H, W] as the VAE takes them"
            return Check(name, "fail", detail + other)
    if a.shape != b.shape:
        return Check(name, "fail", f"{list(a.shape)} against {list(b.shape)}")
    return Check(name, "pass", f"[B, C, T, H, W] = {list(a.shape)} on both sides")


def _factor(config: Mapping[str, Any]) -> Check:
    name, factor = "scaling factor", config.get("scaling_factor")
    if not isinstance(factor, (int, float)) or not math.isfinite(factor) or factor <= 0:
        return Check(name, "fail", f"the VAE's config says {factor!r}, not a positive number")
    return Check(name, "pass", f"{factor} in the VAE's config; the latents are divided by it on both sides")


def _statistics(factor: float, a: np.ndarray, b: np.ndarray) -> Check:
    """Finite, not constant, and not apart by the scaling factor alone."""
    name = "latents statistics"
    for side, x in (("reference", a), ("candidate", b)):
        bad = int((~np.isfinite(x)).sum())
        if bad:
            return Check(name, "fail", f"the {side}'s latents hold {bad} NaN or Inf of {x.size}")
        if float(x.std()) == 0.0:
            return Check(name, "fail", f"the {side}'s latents are constant ({float(x.flat[0]):g})")
    detail = f"mean {_both(a.mean(), b.mean())}, standard deviation {_both(a.std(), b.std())}"
    if a.shape != b.shape:
        return Check(name, "pass", detail)
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    gain, cosine = float(x @ y / (x @ x)), float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    for what, value in (("divided by", 1 / factor), ("multiplied by", factor)):
        close = abs(gain - value) < SCALE_MATCH * abs(value - 1)
        if close and cosine > 1 - abs(value - 1) * SCALE_MATCH:
            detail = f"the candidate's latents are the reference's {what} the scaling factor already (gain {gain:.5f})"
            return Check(name, "fail", detail)
    return Check(name, "pass", detail)


def _both(a: float, b: float) -> str:
    return f"{a:.4g}" if f"{a:.4g}" == f"{b:.4g}" else f"{a:.4g} against {b:.4g}"
