"""Records of values that are held whole: the loop's own, or a stage's output. numpy only."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from parity.golden.records import READ, Key, Moments, Record
from parity.golden.sketch import AT_ONCE, geometry, sketch


def moments_of(x: np.ndarray) -> Moments:
    """The moments of an array of any shape and real dtype, computed in float64."""
    flat = x.reshape(-1)
    nan = inf = finite = 0
    total = squares = 0.0
    low, high = np.inf, -np.inf
    for at in range(0, flat.size, AT_ONCE):
        piece = flat[at : at + AT_ONCE].astype(np.float64)
        nan, inf = nan + int(np.isnan(piece).sum()), inf + int(np.isinf(piece).sum())
        kept = piece[np.isfinite(piece)]
        finite, total = finite + kept.size, total + float(kept.sum())
        squares += float(np.dot(kept, kept))
        low, high = min(low, float(kept.min(initial=np.inf))), max(high, float(kept.max(initial=-np.inf)))
    if not finite:
        return Moments(flat.size, nan, inf, 0.0, 0.0, 0.0, 0.0)
    return Moments(flat.size, nan, inf, low, high, total / finite, math.sqrt(squares))


def value_record(key: Key, value: np.ndarray, dtype: str) -> Record:
    """A record of a value that is held whole: the loop's own, or a stage's output."""
    g = geometry(value.shape)
    return Record(key, "tensor", value.shape, dtype, "", (g.rows, g.channels), moments_of(value), sketch(value), value)


def shown(frames: np.ndarray) -> np.ndarray:
    """What a picture shows of frames, some -1 to 1: pipelines cut them there, and some decoders do already."""
    return np.clip(frames, -1.0, 1.0)


def shown_record(whole: Record, frames: np.ndarray) -> Record:
    """The record, beside that of whole frames, of what a picture shows of them; without its values."""
    key = replace(whole.key, site=f"{whole.key.site}@{READ}")
    return replace(value_record(key, shown(frames), whole.dtype), value=None)
