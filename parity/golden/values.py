"""Records of values that are held whole: the loop's own, or a stage's output. numpy only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parity.golden.records import READ, Key, Moments, Record
from parity.golden.sketch import geometry, sketch


def value_record(key: Key, value: np.ndarray, dtype: str) -> Record:
    """A record of a value that is held whole: the loop's own, or a stage's output."""
    finite = value[np.isfinite(value)].astype(np.float64)
    moments = Moments(
        count=value.size,
        nan=int(np.isnan(value).sum()),
        inf=int(np.isinf(value).sum()),
        min=float(finite.min(initial=np.inf)) if finite.size else 0.0,
        max=float(finite.max(initial=-np.inf)) if finite.size else 0.0,
        mean=float(finite.mean()) if finite.size else 0.0,
        l2=float(np.linalg.norm(finite)),
    )
    g = geometry(value.shape)
    return Record(key, "tensor", value.shape, dtype, "", (g.rows, g.channels), moments, sketch(value), value)


def shown(frames: np.ndarray) -> np.ndarray:
    """What a picture shows of frames, some -1 to 1: pipelines cut them there, and some decoders do already."""
    return np.clip(frames, -1.0, 1.0)


def shown_record(whole: Record, frames: np.ndarray) -> Record:
    """The record, beside that of whole frames, of what a picture shows of them; without its values."""
    key = replace(whole.key, site=f"{whole.key.site}@{READ}")
    return replace(value_record(key, shown(frames), whole.dtype), value=None)
