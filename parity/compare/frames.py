"""Pictures against pictures: per-frame and per-region error, PSNR and SSIM of decoded videos. numpy only, in float64.

Relative errors are of the values as decoded; PSNR and SSIM of the pictures as they are shown, cut to 0..1. Cost: a few
passes over one frame at a time (SSIM: ten separable filters of 11 taps).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from parity.compare import metrics
from parity.compare.result import NAN, Cause, FrameDiff, FrameError, Region, measured
from parity.golden.disk.part import chosen
from parity.records import FRAMES, Record, StepRecords
from parity.settings import BITS
from parity.sketch import Geometry, distance, of_the_whole, shown

DECODED = "decode:out"
"""Site of what a script's decoder gave, [batch, frames, ...]."""
WINDOW = 11
SIGMA = 1.5
GRID = 4
"""Regions of a frame: a grid of GRID by GRID."""


def as_shown(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two videos, both as pictures show them where one alone goes beyond that: some decoders cut, some pipelines do."""
    beyond = [bool(np.any(np.abs(x) > 1.0)) for x in (ours, theirs)]
    return (ours, theirs) if beyond[0] == beyond[1] else (shown(ours), shown(theirs))


def frames_of(video: np.ndarray) -> np.ndarray:
    """[B, 3, T, H, W] as frames [B * T, 3, H, W], videos one after the other (a view where it can be one)."""
    return np.moveaxis(video, 2, 1).reshape(-1, video.shape[1], *video.shape[3:])


def pictures(frames: np.ndarray) -> np.ndarray:
    """Decoded values (some -1 to 1) as they are shown: 0 to 1, float64, as diffusers' VideoProcessor cuts them."""
    return np.clip(frames.astype(np.float64) / 2 + 0.5, 0.0, 1.0)


def spread(truth: np.ndarray, other: np.ndarray) -> np.ndarray:
    """||other - truth|| of each frame, float64 [frames], for floors; what is not finite says nothing and gives 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = [float(np.linalg.norm(b.astype(np.float64) - a)) for a, b in zip(truth, other, strict=True)]
    return np.nan_to_num(np.array(apart), nan=0.0, posinf=0.0)


def frame_errors(reference: np.ndarray, candidate: np.ndarray, floors: np.ndarray) -> tuple[FrameError, ...]:
    """The error of each frame.

    Args:
        reference, candidate: [frames, 3, height, width], alike in shape. floors: absolute L2 by frame.
    """
    found = []
    for ours, theirs, floor in zip(reference, candidate, floors, strict=True):
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            apart, scale = b - a, float(np.linalg.norm(a))
            far = metrics.distance(float(np.linalg.norm(apart)), scale, float(floor))
        shown = pictures(a), pictures(b)
        found.append(FrameError(far, psnr(*shown), ssim(*shown), worst_region(apart, scale or 1.0)))
    return tuple(found)


def frame_diffs(by_itself: Sequence[FrameError], in_chain: Sequence[FrameError] | None) -> tuple[FrameDiff, ...]:
    """Every frame with both its errors."""
    chain = in_chain if in_chain is not None else [None] * len(by_itself)
    return tuple(FrameDiff(i, own, other) for i, (own, other) in enumerate(zip(by_itself, chain, strict=True)))


def worst_region(apart: np.ndarray, scale: float) -> Region:
    """The region of a frame's difference [3, H, W] with the largest rms; a NaN is the largest of all.

    Args:
        scale: norm of the reference's frame.
    """
    channels, height, width = apart.shape
    rows, columns = (np.linspace(0, size, min(GRID, size) + 1).astype(int) for size in (height, width))
    with np.errstate(invalid="ignore", over="ignore"):
        squares = np.add.reduceat(np.add.reduceat((apart**2).sum(axis=0), rows[:-1]), columns[:-1], axis=1)
        heights, widths = np.diff(rows), np.diff(columns)
        rms = np.sqrt(squares / (channels * np.outer(heights, widths))) / (scale / math.sqrt(apart.size))
    i, j = np.unravel_index(np.argmax(rms), rms.shape)
    return Region(int(rows[i]), int(columns[j]), int(heights[i]), int(widths[j]), float(rms[i, j]))


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two pictures in 0..1, dB: -10 log10 of the mean squared error; inf for equal ones.

    NaN where a value is not finite.
    """
    error = float(np.mean((a - b) ** 2))
    return math.inf if error == 0.0 else -10.0 * math.log10(error) if math.isfinite(error) else NAN


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Mean structural similarity of two pictures [channels, H, W] in 0..1, the mean over the channels.

    Wang, Bovik, Sheikh, Simoncelli: "Image quality assessment: from error visibility to structural similarity", IEEE
    Transactions on Image Processing 13 (2004), equations 13 to 17: means, variances and covariance under an 11 x 11
    Gaussian window of standard deviation 1.5 that adds up to one, at every place where it lies within the picture;

        SSIM = (2 mx my + c1) (2 sxy + c2) / ((mx^2 + my^2 + c1) (sx^2 + sy^2 + c2)),  c1 = 0.01^2, c2 = 0.03^2.

    NaN where the window does not fit.
    """
    if min(a.shape[-2:]) < WINDOW:
        return NAN
    mx, my = _window(a), _window(b)
    xx, yy, xy = _window(a * a) - mx * mx, _window(b * b) - my * my, _window(a * b) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    return float(np.mean((2 * mx * my + c1) * (2 * xy + c2) / ((mx * mx + my * my + c1) * (xx + yy + c2))))


def _window(x: np.ndarray) -> np.ndarray:
    """The Gaussian window's mean at every place where it lies within [channels, H, W]: the filter is separable."""
    at = np.arange(WINDOW) - WINDOW // 2
    taps = np.exp(-(at**2) / (2 * SIGMA**2))
    taps /= taps.sum()
    for axis in (1, 2):
        x = np.lib.stride_tricks.sliding_window_view(x, WINDOW, axis) @ taps
    return x


LEAST_DARKER, MOST_DARKER = 0.02, 0.65
"""Levels of the mean by which truncated pictures are darker: half of one where none is cut to black or white."""
SAME_FLOATS = 1e-4
"""Relative distance up to which frames as floats agree: a level is 4e-3."""
ONE_LEVEL = 0.15
"""Four standard deviations of a square that is estimated from sketches."""


PROCESSED = 3e-2
"""Share of their spread by which frames may be off what a scale and an offset make of the decoded ones: a processor may
work in bfloat16, whatever dtype it gives. That moves frames made of normal values by 0.5 % where these have a deviation
of 0.4, and by 1.8 % where it is 0.1; flatter ones by no more than two roundings."""


def by_themselves(reference: StepRecords, candidate: StepRecords) -> Iterator[Cause]:
    """Frames that are not what the reference's processor makes of what the candidate decoded: a scale and an offset of
    it, or of what a picture shows of it."""
    sides = [{r.key: r for r in chosen(step.records, _is_of_frames)} for step in (reference, candidate)]
    for key in (key for key in sides[0] if key.site == FRAMES):
        out = replace(key, site=DECODED)
        ways = ([side.get(at) for side in sides for at in (of, key.read)] for of in (out, out.read))
        far, text = min((made for way in ways if (made := _made_of_decoded(*way))), default=(0.0, ""))
        if far > 1.0:
            yield measured(text, "frames", value=far, at=FRAMES)


def _made_of_decoded(*records: Record | None) -> tuple[float, str] | None:
    """How far the candidate's frames are from what the reference's scale and offset make of what it decoded, in what
    rounding moves them by, and that in words; None where the reference's own are made in another way.

    Args:
        records: what the reference decoded, its frames, and the same of the candidate.
    """
    held = [(r, r.moments, r.sketch) for r in records if r and r.moments and r.sketch is not None and not r.nonfinite]
    if len(held) < len(records) or len({r.frame for r, *_ in held}) > 1 or len({r.dtype for r, *_ in held[1::2]}) > 1:
        return None
    decoded, frames, other_decoded, other_frames = (of_the_whole(sketch, Geometry(*r.frame)) for r, _, sketch in held)
    # Each one's minimum, maximum, mean, and that plus a deviation: a scale and an offset move all alike.
    spread = [math.sqrt(max(0.0, m.l2**2 / m.count - m.mean**2)) for _, m, _ in held]
    marks = [np.array([m.min, m.max, m.mean, m.mean + s]) for (_, m, _), s in zip(held, spread, strict=True)]
    many = math.sqrt(held[1][1].count)
    two_roundings = 2.0 ** -BITS["bfloat16"] * held[1][1].l2 / many
    near = max(PROCESSED * spread[1], two_roundings, 1.0 if held[1][0].dtype == "uint8" else 0.0)
    scale = spread[1] / spread[0] if spread[0] else 0.0

    def moved(from_: np.ndarray, to: np.ndarray) -> bool:
        """Whether one's marks are those of the other, by the reference's scale and offset."""
        return bool((np.abs(to - marks[1][2] - scale * (from_ - marks[0][2])) <= near).all())

    if not scale or not moved(marks[0], marks[1]):
        return None
    far = float(np.linalg.norm(other_frames - frames - scale * (other_decoded - decoded)))
    text = f"the frames differ by themselves, by {far / held[1][1].l2:.2g} relative, on what the candidate decodes"
    if far > 0.5 * spread[1] * many and moved(marks[2], marks[3]):  # no rounding is as far as the frames' own spread
        text = "the frames hold what is decoded in another order: look for reversed frames, channels or rows"
    return far / (near * many), text


def truncated(reference: StepRecords, candidate: StepRecords) -> Iterator[Cause]:
    """Frames as they leave the generation: by truncation to uint8 half of the pixels, but for those that are cut to
    black or white, are one level darker than by rounding, and no other differs."""
    theirs = {r.key: r for r in chosen(candidate.records, _is_picture)}
    pairs = [(r, theirs[r.key]) for r in chosen(reference.records, _is_picture) if r.key in theirs]
    if any(a.key.site == DECODED and metrics.sketch_distance(a, b) > SAME_FLOATS for a, b in pairs):
        return  # what was decoded differs already
    for ours, other in pairs:
        if not ours.dtype == other.dtype == "uint8" or ours.moments is None or other.moments is None:
            continue
        darker = ours.moments.mean - other.moments.mean
        if LEAST_DARKER <= abs(darker) <= MOST_DARKER and _one_level(ours, other, darker * ours.moments.count):
            made, how = ("rounded", "truncated"), "darker"
            if darker < 0:
                made, how = ("truncated", "rounded"), "brighter"
            text = f"the frames are {abs(darker):.2g} levels {how}: {made[1]} to uint8 instead of {made[0]}"
            yield measured(text, "frames", *made, darker, at=ours.key.site)


def _is_of_frames(r: Record) -> bool:
    return r.key.site.partition("@")[0] in (DECODED, FRAMES)


def _is_picture(r: Record) -> bool:
    return r.dtype == "uint8" or r.key.site == DECODED


def _one_level(ours: Record, other: Record, sum_: float) -> bool:
    """Whether all that differs does so by one level in one direction: the sum of the differences is that of their
    squares, as far as sketches tell."""
    if ours.sketch is None or other.sketch is None or ours.frame != other.frame:
        return False
    squares = distance(ours.sketch, other.sketch, Geometry(*ours.frame)) ** 2
    return abs(abs(sum_) - squares) <= ONE_LEVEL * squares
