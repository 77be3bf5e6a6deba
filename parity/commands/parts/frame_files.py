"""Decoded frames as files to look at: PNGs always (Pillow comes with diffusers), an mp4 where an encoder is there.

DIR/0000.png, DIR/0001.png, ...       frames in order, the videos of a batch one after the other
DIR.mp4                               with imageio-ffmpeg's or the system's ffmpeg; nothing is installed for it
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np

from parity.compare.detect.frames import frames_of, pictures
from parity.errors import UsageError

FPS = 8


def write_frames(folder: Path, video: np.ndarray) -> str:
    """Write a decoded video [B, 3, T, H, W], some -1 to 1.

    NaN is shown as black, values beyond the range as the nearest within.

    Returns:
        What could not be written, in one sentence; empty where all was.

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
    encoder = find_encoder()
    if encoder is None:
        return "no mp4 was written: neither imageio-ffmpeg nor an ffmpeg is there; the frames are PNGs"
    return _encode(encoder, folder, shown)


def find_encoder() -> str | None:
    """The ffmpeg to use: imageio-ffmpeg's own, else the system's."""
    if importlib.util.find_spec("imageio_ffmpeg") is not None:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    return shutil.which("ffmpeg")


def _encode(encoder: str, folder: Path, frames: list[np.ndarray]) -> str:
    height, width, _ = frames[0].shape
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(FPS), "-i", "-"]
    target = f"{folder}.mp4"
    command = [encoder, "-y", "-loglevel", "error", *source, "-pix_fmt", "yuv420p", target]
    data = b"".join(frame.tobytes() for frame in frames)
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return f"no mp4 was written: {encoder} failed: {said[-1] if said else done.returncode}"
    return ""
