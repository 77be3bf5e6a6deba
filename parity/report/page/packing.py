"""Numbers as bytes as text, as `1_data.js` unpacks them: 24 bits a number, a byte a distance."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np


def numbers_bytes(values: Sequence[float]) -> bytes:
    """Three bytes a number, the lowest first: the upper 24 bits of a float32 after its sign, rounded."""
    with np.errstate(over="ignore"):
        largest = float(np.finfo(np.float32).max)
        wide = np.asarray(values, dtype=np.float64)
        narrow = np.where(np.isfinite(wide), np.clip(np.abs(wide), 0, largest * 0.9999), wide).astype(np.float32)
    bits = (np.where(np.isnan(narrow), np.float32(np.nan), np.abs(narrow)).view(np.uint32) & 0x7FFFFFFF) + 64 >> 7
    return bits.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()


def distances(places: Sequence[int]) -> bytes:
    """How far each place is from the one before (LEB128), so that a full table takes a byte a cell."""
    out, before = bytearray(), -1
    for place in places:
        rest, before = place - before, place
        while rest > 127:
            out.append(rest & 127 | 128)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def number(value: object) -> float:
    """A number of the documents, which spell NaN and infinities as strings.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number")
    return float(value)
