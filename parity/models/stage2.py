"""The stage-2 file of a port: the final latents of one generation, and the few numbers that identify it.

Written in the convention of the ports' own `stage2_latents.safetensors` (one tensor `latents`, numbers as strings in
the header), so that their stage 3 decodes ours and ours reads theirs. Cost: one write or read of the latents.
"""

from __future__ import annotations

import pathlib

import torch

from parity.errors import UsageError
from parity.models.stage_files import FLOATS, StageFile, write_stage_file


def write_stage2(path: pathlib.Path, latents: torch.Tensor, **numbers: float) -> None:
    """Write the latents of a finished generation, atomically.

    Args:
        path: of the file to write or replace.
        latents: [B, C, T, H, W], float32, bfloat16 or float16, on any device; kept in its dtype. NaN is written as it
            is: a broken run is what the file may have to show.
        numbers: that identify the run, as the ports' header has them: `seed`, `guidance_scale`, `num_frames` and
            `num_inference_steps`.

    Raises:
        UsageError: latents of another rank or dtype, or the file cannot be written.
    """
    if latents.ndim != 5 or latents.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise UsageError(
            f"{path}: expected latents [B, C, T, H, W] in float32, bfloat16 or float16,"
            f" found {list(latents.shape)} in {latents.dtype}"
        )
    write_stage_file(path, {"latents": latents}, {name: str(number) for name, number in numbers.items()})


def read_stage2(path: pathlib.Path) -> torch.Tensor:
    """Read a port's latents.

    Returns:
        [B, C, T, H, W] on the CPU, in the dtype the file means, NaN and Inf as they are.

    Raises:
        UsageError: a missing, truncated or foreign file, or a missing or misshapen tensor.
    """
    return StageFile(path).read("latents", ("B", "C", "T", "H", "W"), FLOATS)
