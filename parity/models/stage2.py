"""The stage-2 file of a port: the final latents of one generation, and the few numbers that identify it.

Written in the convention of the ports' own `stage2_latents.safetensors` (one tensor `latents`, numbers as strings in
the header), so that their stage 3 decodes ours and ours reads theirs. Cost: one write or read of the latents.
"""

from __future__ import annotations

import math
import pathlib

import torch

from parity.errors import UsageError
from parity.models.stage_files import FLOATS, StageFile, write_stage_file

_NUMBERS: dict[str, type[int] | type[float]] = {
    "seed": int,
    "guidance_scale": float,
    "num_frames": int,
    "num_inference_steps": int,
}


def write_stage2(
    path: pathlib.Path,
    latents: torch.Tensor,
    *,
    seed: int,
    guidance_scale: float,
    num_frames: int,
    num_inference_steps: int,
) -> None:
    """Write the latents of a finished generation, atomically.

    Args:
        path: of the file to write or replace.
        latents: [B, C, T, H, W], float32, bfloat16 or float16, on any device; kept in its dtype. NaN is written as it
            is: a broken run is what the file may have to show.
        seed: of the initial noise.
        guidance_scale: that was used.
        num_frames: of the video, not of the latents.
        num_inference_steps: denoising steps done.

    Raises:
        UsageError: latents of another rank or dtype, or the file cannot be written.
    """
    if latents.ndim != 5 or latents.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise UsageError(
            f"{path}: expected latents [B, C, T, H, W] in float32, bfloat16 or float16,"
            f" found {list(latents.shape)} in {latents.dtype}"
        )
    metadata = {
        "seed": str(int(seed)),
        "guidance_scale": str(float(guidance_scale)),
        "num_frames": str(int(num_frames)),
        "num_inference_steps": str(int(num_inference_steps)),
    }
    write_stage_file(path, {"latents": latents}, metadata)


def read_stage2(path: pathlib.Path) -> tuple[torch.Tensor, dict[str, int | float]]:
    """Read a port's latents.

    Returns:
        The latents [B, C, T, H, W] on the CPU, in the dtype the file means, NaN and Inf as they are; and those of
        `seed`, `guidance_scale`, `num_frames` and `num_inference_steps` that the header has, as numbers.

    Raises:
        UsageError: a missing, truncated or foreign file, a missing or misshapen tensor, or a header entry that is no
            number.
    """
    with StageFile(path) as file:
        latents = file.read("latents", ("B", "C", "T", "H", "W"), FLOATS)
        numbers: dict[str, int | float] = {}
        for key, kind in _NUMBERS.items():
            text = file.metadata.get(key)
            if text is None:
                continue
            numbers[key] = _number(path, key, text, kind)
        return latents, numbers


def _number(path: pathlib.Path, key: str, text: str, kind: type[int] | type[float]) -> int | float:
    """Return a header string as a finite number."""
    try:
        number = kind(text)
        if math.isfinite(number):
            return number
    except (ValueError, OverflowError):
        pass  # said below, as for infinity
    raise UsageError(f"{path}: metadata {key}: expected a finite {kind.__name__}, found {text[:80]!r}")
