"""The sketch: a linear fingerprint from which the distance between two tensors can be estimated.

Problem. Two machines must compare tensors of gigabytes without moving them. A *linear* map S into few numbers does
it: S(x) - S(y) = S(x - y), and the norm of a random S estimates the norm of what it is applied to.

How. A tensor is viewed as (rows, channels): its last axis and all others. Consecutive rows form up to 2,048 slots,
slots form up to 64 bins. Each element gets a sign from a hash of its *global* index and is added to two counters:

- one of 1,536 *total* counters, `(slot * width + channel) mod 1536` with `width` the least number from `channels`
  on that is prime to 1,536. The skew by such a width sends one channel of many rows, and one row of many channels,
  to as many counters as there are, so that errors of such shapes are estimated as well as noise is.
- one of 8 counters of its *bin*, `(slot_in_bin * width + channel) mod 8`, to place a difference.

This is a count sketch (Charikar, Chen, Farach-Colton 2002) in the AMS estimator's use (Alon, Matias, Szegedy 1996):
E[sum of squared counters] = ||x||^2, with a relative standard deviation of the norm of sqrt(1/(2 * counters)):
1.8 % from the total counters, 25 % from one bin's; rows that are multiples of each other add the spread of their
slots' sums, sqrt(1/(2 * 2048)), and come to 2.4 %. `tests/test_sketch.py` checks both bounds for independent
noise, one channel, one row, one element, rank one, constant and shifted rows. A tensor of at most 2,048 elements
is its own sketch, exactly.

Cost. 8 KB a tensor; one read of it. The sign of an element is the product of a sign per row and an entry of a
(32, channels) tile, so no table is as large as the tensor. The function here is the definition, written for
clarity; `parity.hooks` has the versions for torch and jax, tested against it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.records import Key, Moments, Record

TOTAL = 1536
"""Counters of the whole tensor."""
BINS = 64
"""Row bins at most."""
PER_BIN = 8
"""Counters of each row bin."""
SLOTS = 2048
"""Runs of consecutive rows at most; a multiple of BINS."""
TILE = 32
"""Rows of the sign tile."""
EXACT = TOTAL + BINS * PER_BIN
"""A tensor of at most this many elements is kept whole; also the length of a sketch at most."""
AT_ONCE = 1 << 22
"""Elements that the definition looks at together: some 60 bytes of each are held, and a film's frames are billions."""
ROW_SALT, TILE_SALT = 0x9E3779B9, 0x7F4A7C15


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a (rows, channels) view is cut.

    Attributes:
        rows, channels: of the view.
    """

    rows: int
    channels: int

    @property
    def exact(self) -> bool:
        """Whether the sketch is the values themselves."""
        return self.rows * self.channels <= EXACT

    @property
    def rows_per_slot(self) -> int:
        return max(1, -(-self.rows // SLOTS))

    @property
    def slots(self) -> int:
        return -(-self.rows // self.rows_per_slot)

    @property
    def slots_per_bin(self) -> int:
        return max(1, -(-self.slots // BINS))

    @property
    def rows_per_bin(self) -> int:
        return self.rows_per_slot * self.slots_per_bin

    @property
    def bins(self) -> int:
        """Row bins in use, at most 64."""
        return -(-self.rows // self.rows_per_bin)

    @property
    def width(self) -> int:
        """The stride from one slot to the next in the fold: the least n >= channels prime to TOTAL (2^9 * 3)."""
        n = self.channels | 1
        return n if n % 3 else n + 2

    @property
    def size(self) -> int:
        """Length of the sketch."""
        return self.rows * self.channels if self.exact else EXACT


def geometry(shape: tuple[int, ...]) -> Geometry:
    """The (rows, channels) view of a shape: channels is the last axis; a scalar is (1, 1). Sizes may be zero."""
    if not shape:
        return Geometry(1, 1)
    return Geometry(math.prod(shape[:-1]), shape[-1])


def signs(index: Any, salt: int) -> Any:
    """The sign of each index, float32 of -1 and 1, by the 32-bit finaliser of MurmurHash3 over index + salt.

    Args:
        index: integers of numpy's or JAX's. salt: `ROW_SALT` for the index of a row, `TILE_SALT` for one in the tile.
    """
    h = index.astype(np.uint32) + np.uint32(salt)
    h = (h ^ (h >> 16)) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * np.uint32(0xC2B2AE35)
    # The last step of the hash, h ^ (h >> 16), leaves the top bit, the only one used, as it is.
    return 1.0 - 2.0 * (h >> 31).astype(np.float32)


def sketch(x: np.ndarray, *, shape: tuple[int, ...] | None = None, start: tuple[int, ...] | None = None) -> np.ndarray:
    """The sketch of a tensor, or the part of it that one shard contributes.

    Args:
        x: any shape and any real dtype; accumulated in float64.
        shape: the whole tensor's shape where `x` is a block of it; the sketches of blocks that tile it add up.
        start: index of the block's first element in the whole tensor, one entry an axis.

    Returns:
        float32 [EXACT], or [elements] where the whole tensor has at most EXACT of them. NaN and Inf propagate.

    Raises:
        ValueError: the block does not lie within the whole shape.
    """
    whole = x.shape if shape is None else tuple(shape)
    first = (0,) * len(whole) if start is None else tuple(start)
    if any(a < 0 or a + n > m for a, n, m in zip(first, x.shape, whole, strict=True)):
        raise ValueError(f"the block of shape {x.shape} at {first} leaves the tensor of shape {whole}")
    g = geometry(whole)
    if g.rows * g.channels == 0:
        return np.zeros(0, np.float32)
    counters = np.zeros(g.size)
    axes = [np.arange(a, a + n) for a, n in zip(first[:-1], x.shape[:-1], strict=True)]
    rows = np.ravel_multi_index(np.ix_(*axes), whole[:-1]).reshape(-1) if axes else np.zeros(1, np.int64)
    values = x.reshape(len(rows), x.shape[-1] if x.ndim else 1) if x.size else np.zeros((0, 0))
    high = max(1, AT_ONCE // max(1, values.shape[1]))
    channel = np.arange(values.shape[1]) + (first[-1] if first else 0)
    for at in range(0, values.shape[0], high):
        counters += _counters(values[at : at + high].astype(np.float64), rows[at : at + high], channel, g)
    with np.errstate(over="ignore"):
        return counters.astype(np.float32)


def _counters(x: np.ndarray, row: np.ndarray, channel: np.ndarray, g: Geometry) -> np.ndarray:
    """What a block [rows, channels] adds to the sketch, float64 [size], by its rows' and channels' numbers."""
    if g.exact:
        at = row[:, None] * g.channels + channel
        return np.bincount(at.reshape(-1), weights=x.reshape(-1), minlength=g.size)
    slot = row // g.rows_per_slot
    used, tile_row = np.unique(slot % TILE, return_inverse=True)
    tile = signs(used[:, None] * g.channels + channel, TILE_SALT)
    signed = (x * (signs(row, ROW_SALT)[:, None] * tile[tile_row])).reshape(-1)
    position = (slot * g.width)[:, None] + channel
    total = np.bincount((position % TOTAL).reshape(-1), weights=signed, minlength=TOTAL)
    bin_, slot_in_bin = np.divmod(slot, g.slots_per_bin)
    counter = (bin_ * PER_BIN)[:, None] + ((slot_in_bin * g.width)[:, None] + channel) % PER_BIN
    return np.concatenate([total, np.bincount(counter.reshape(-1), weights=signed, minlength=BINS * PER_BIN)])


def of_the_whole(s: np.ndarray, g: Geometry) -> np.ndarray:
    """What of a sketch (float32 [g.size]) is of the whole tensor: its total counters, or of a small one its values;
    float64."""
    return (s if g.exact else s[:TOTAL]).astype(np.float64)


def norm(s: np.ndarray, g: Geometry) -> float:
    """Estimate of the L2 norm of the tensor whose sketch is `s`; exact for small tensors."""
    return float(np.linalg.norm(of_the_whole(s, g)))


def bin_norms(s: np.ndarray, g: Geometry) -> np.ndarray:
    """Estimates of the L2 norm of each row bin; bin b begins at row `b * g.rows_per_bin`.

    Args:
        s: one sketch or many, [..., g.size].

    Returns:
        float64 [..., g.bins].
    """
    if g.rows * g.channels == 0:
        return np.zeros((*s.shape[:-1], 0))
    if not g.exact:
        bins = s[..., TOTAL : TOTAL + g.bins * PER_BIN].astype(np.float64, copy=False)
        bins = bins.reshape(*s.shape[:-1], g.bins, PER_BIN)
        return np.sqrt(np.vecdot(bins, bins))
    rows = s.astype(np.float64, copy=False).reshape(*s.shape[:-1], g.rows, g.channels)
    return np.sqrt(np.add.reduceat(np.vecdot(rows, rows), np.arange(0, g.rows, g.rows_per_bin), axis=-1))


def distance(a: np.ndarray, b: np.ndarray, g: Geometry) -> float:
    """Estimate of the L2 distance of two tensors from their sketches."""
    return norm(a.astype(np.float64) - b.astype(np.float64), g)


def of_sums(count: int, nan: int, inf: int, low: float, high: float, total: float, l2: float) -> Moments:
    """The moments of so many elements, by the extrema, the sum and the norm of those that are finite, if any are."""
    finite = count - nan - inf
    return Moments(count, nan, inf, low, high, total / finite, l2) if finite else Moments(count, nan, inf, *[0.0] * 4)


def moments_of(x: np.ndarray) -> Moments:
    """The moments of an array of any shape and real dtype, computed in float64."""
    flat = x.reshape(-1)
    nan = inf = 0
    total = squares = 0.0
    low, high = np.inf, -np.inf
    for at in range(0, flat.size, AT_ONCE):
        piece = flat[at : at + AT_ONCE].astype(np.float64)
        nan, inf = nan + int(np.isnan(piece).sum()), inf + int(np.isinf(piece).sum())
        kept = piece[np.isfinite(piece)]
        total, squares = total + float(kept.sum()), squares + float(np.dot(kept, kept))
        low, high = min(low, float(kept.min(initial=np.inf))), max(high, float(kept.max(initial=-np.inf)))
    return of_sums(flat.size, nan, inf, low, high, total, math.sqrt(squares))


def value_record(key: Key, value: np.ndarray, dtype: str) -> Record:
    """A record of a value that is held whole: the loop's own, or a stage's output."""
    g = geometry(value.shape)
    return Record(key, "tensor", value.shape, dtype, "", (g.rows, g.channels), moments_of(value), sketch(value), value)


def shown(frames: np.ndarray) -> np.ndarray:
    """What a picture shows of frames, some -1 to 1: pipelines cut them there, and some decoders do already."""
    return np.clip(frames, -1.0, 1.0)


def shown_record(whole: Record, frames: np.ndarray) -> Record:
    """The record, beside that of whole frames, of what a picture shows of them; without its values."""
    return replace(value_record(whole.key.read, shown(frames), whole.dtype), value=None)
