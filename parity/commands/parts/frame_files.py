"""Decoded frames as files to look at: DIR/0000.png, ... in order, the videos of a batch one after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from parity.compare.detect.frames import frames_of, pictures
from parity.errors import UsageError


def write_frames(folder: Path, video: np.ndarray) -> None:
    """Write a decoded video [B, 3, T, H, W], some -1 to 1.

    NaN is shown as black, values beyond the range as the nearest within.

    Raises:
        UsageError: the folder cannot be written.
    """
    from PIL import Image

    shown = [np.round(np.nan_to_num(pictures(f)) * 255).astype(np.uint8).transpose(1, 2, 0) for f in frames_of(video)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for i, frame in enumerate(shown):
            Image.fromarray(frame).save(folder / f"{i:04d}.png")
    except OSError as error:
        raise UsageError(f"--out: cannot write '{folder}': {error.strerror}") from None
