"""The decoded frames of a kept run that a page shows: those in which the two sides differ most.

`parity run --stages ...,vae --out DIR` keeps three videos: the reference's, the candidate's decoder on the reference's
latents (`candidate`), and the candidate's own (`candidate_in_chain`). What a viewer of the candidate sees is the last.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.files import read_bytes
from parity.report.page.build import Picture

MOST_PICTURE_BYTES = 1 << 23
MOST_PAGE_BYTES = 1 << 21
"""Of all pictures together; the first pair is shown whatever its size."""

PICTURES = 4


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a page.

    Attributes:
        shown: by number. what: which videos they are of. missing: why there are none, where frames were compared.
    """

    shown: Sequence[Picture] = ()
    what: str = ""
    missing: str = ""


def pictures(run: Path, document: dict[str, Any]) -> Frames:
    """The frames with the lowest PSNR that are not the same file on both sides.

    Raises:
        LookupError, TypeError, ValueError: the document has no such frames.
    """
    frames = document["frames"]
    if not frames:
        return Frames()
    chain = all(frame["in_chain"] for frame in frames) and (run / "frames" / "candidate_in_chain").is_dir()
    side = "candidate_in_chain" if chain else "candidate"

    def numbers(frame: dict[str, Any]) -> dict[str, Any]:
        return dict(frame["in_chain"] if chain else frame)

    def psnr(frame: dict[str, Any]) -> float:
        value = float(numbers(frame)["psnr"])
        return -math.inf if math.isnan(value) else value  # a frame that holds NaN is the worst

    shown: list[Picture] = []
    size = equal = 0
    for frame in sorted(frames, key=psnr):
        number = int(frame["frame"])
        pair = [_picture(run, run / "frames" / name / f"{number:04d}.png") for name in ("reference", side)]
        if not all(pair):
            continue
        if pair[0] == pair[1]:
            equal += 1
            continue
        size += sum(map(len, pair))
        if shown and size > MOST_PAGE_BYTES:
            break
        shown.append(Picture(number, pair[0], pair[1], caption=_caption(numbers(frame))))
        if len(shown) == PICTURES:
            break
    what = (
        "Each side's own latents, decoded by its own decoder" if chain else "The reference's latents, by each decoder"
    )
    if not shown:
        why = "its pictures are equal on both sides" if equal else "no pictures are kept beside the run"
        return Frames(missing=f"{len(frames)} frames were compared; {why}.")
    return Frames(sorted(shown, key=lambda picture: picture.frame), f"{what}; the frames that differ most.")


def _caption(numbers: dict[str, Any]) -> str:
    psnr, ssim, ratio = (float(numbers[name]) for name in ("psnr", "ssim", "ratio"))
    texts = [f"PSNR {psnr:.1f} dB" if math.isfinite(psnr) else "", f"SSIM {ssim:.4f}" if math.isfinite(ssim) else ""]
    return ", ".join([text for text in texts if text] + [f"{ratio:.3g}x its floor"] * (not math.isnan(ratio)))


def _picture(run: Path, where: Path) -> str:
    """A PNG as a `data:` URL; empty where there is none in the run's own folder, or none of a size for a page."""
    try:
        if not where.resolve().is_relative_to(run.resolve()):
            return ""
        content = read_bytes(where, MOST_PICTURE_BYTES)
    except (OSError, ValueError):
        return ""
    if not content.startswith(b"\x89PNG"):
        return ""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")
