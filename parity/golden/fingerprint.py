"""Names for contents: equal tensors, and only they, have equal fingerprints.

Problem. Comparing two runs means nothing where their weights, prompts or noise differ, and neither machine has the
other's tensors.

How. SHA-256 over the dtype's name, the shape and the elements in C order and little endian, cut to 16 hexadecimal
digits (64 bits: a chance of 1e-12 that any two of 6,000 tensors collide). Equality is of bits: 0.0 and -0.0 differ.

Cost. One read of the tensor at the speed of SHA-256 (1 to 2 GB/s where the processor has instructions for it), 1 MB
of memory whatever the strides.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

DIGITS = 16


def fingerprint(array: np.ndarray) -> str:
    """The fingerprint of an array's dtype, shape and contents.

    Args:
        array: any shape and strides; not of Python objects.

    Returns:
        16 hexadecimal digits.
    """
    name = array.dtype.name
    if name == "bfloat16":
        array = array.view(np.uint16)
    laid_out = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    return fingerprint_bytes(name, array.shape, (laid_out.reshape(-1).view(np.uint8),))


def narrow(x: np.ndarray) -> np.ndarray:
    """64 bits as 32: JAX has none, and tables that torch makes in float64 are the same there when rounded."""
    dtype = {"float64": np.float32, "complex128": np.complex64, "int64": np.int32}.get(x.dtype.name, x.dtype)
    return x.astype(dtype, copy=False)


def fingerprint_bytes(dtype: str, shape: tuple[int, ...], chunks: Iterable[Any]) -> str:
    """As `fingerprint`, of elements that come as bytes: C order, little endian, in chunks of any size."""
    digest = hashlib.sha256(f"{dtype}{[int(n) for n in shape]}:".encode())
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()[:DIGITS]


# --- weights, which may differ by rounding, by a factor or in their order

COUNTERS = 16
_CHUNK = 1 << 16
"""Values that share a sign and the places of their counters."""
_AT_ONCE = 8
"""Chunks of a block."""
_ORDER_BLIND = 4
"""Numbers before the counters that do not depend on where a value stands: l2, mean, minimum and maximum."""
_UNKNOWN = np.full(_ORDER_BLIND + COUNTERS, np.nan)


@dataclass(frozen=True, slots=True)
class WeightPrint:
    """What is known of a parameter that is not there.

    Attributes:
        digits: its fingerprint. numbers: float64: l2, mean, minimum and maximum, then linear counters, which depend on
            where each value stands; NaN where nobody measured them, or they are not finite. broken: whether it holds
            NaN or infinities.
    """

    digits: str
    numbers: np.ndarray
    broken: bool = False

    @classmethod
    def parse(cls, text: str) -> WeightPrint:
        """That of a text of `weight_print`, or of a fingerprint alone."""
        digits, _, rest = text.partition(":")
        try:
            numbers = np.frombuffer(base64.b85decode(rest), "<f4").astype(np.float64)
        except ValueError:
            return cls(digits, _UNKNOWN)
        measured = numbers.size == _UNKNOWN.size
        finite = measured and bool(np.isfinite(numbers).all())
        return cls(digits, numbers if finite else _UNKNOWN, measured and not finite)

    @property
    def extrema(self) -> np.ndarray:
        """Minimum and maximum, float64 [2]."""
        return self.numbers[2:_ORDER_BLIND]

    @property
    def counters(self) -> np.ndarray:
        return self.numbers[_ORDER_BLIND:]

    def apart(self, other: WeightPrint) -> float:
        """Relative L2 distance as the counters estimate it, within a fifth; NaN where that is not known."""
        size = float(np.linalg.norm(self.counters))
        far = float(np.linalg.norm(other.counters - self.counters))
        return far / size if size else (0.0 if not far else math.inf)

    def in_few(self, other: WeightPrint) -> bool:
        """Whether the two differ in a few values alone: rounding moves many, which every counter shows."""
        same = self.counters == other.counters
        return bool(same.any() and not same.all())

    def gain(self, other: WeightPrint) -> float:
        """The factor by which all of the other's values are this one's; NaN for none."""
        if not self.counters.any():
            return math.nan
        factor = float(self.counters @ other.counters) / float(self.counters @ self.counters)
        left = float(np.linalg.norm(other.counters - factor * self.counters))
        norms = abs(float(other.numbers[0]) - abs(factor) * float(self.numbers[0]))
        return factor if left + norms <= ALIKE * float(np.linalg.norm(other.counters)) else math.nan

    def same_values(self, other: WeightPrint) -> bool:
        """Whether both hold the same values, perhaps in another order."""
        a, b = self.numbers[:_ORDER_BLIND], other.numbers[:_ORDER_BLIND]
        return bool((np.abs(a - b) <= ALIKE * max(abs(a[2]), abs(a[3]), 1e-30) + ALIKE * np.abs(a)).all())


ALIKE = 1e-5
"""Relative difference of two sums of the same float32 numbers, added in another order, at most."""


def weight_print(values: np.ndarray) -> str:
    """A parameter's fingerprint, and the numbers of `WeightPrint` behind it.

    Cost: twice that of the fingerprint; 8 MB of memory, taken once: fresh pages cost more than the sums. In
    blocks of many chunks, since numpy lets other threads run within a long operation and not between short ones.
    """
    flat = values.reshape(-1)
    flat = flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat
    total, square, low, high = 0.0, 0.0, math.inf, -math.inf
    counters = np.zeros(COUNTERS)
    held, squares = np.empty((2, min(_AT_ONCE, -(-flat.size // _CHUNK)), _CHUNK))
    for start in range(0, flat.size, _CHUNK * _AT_ONCE):
        block = flat[start : start + _CHUNK * _AT_ONCE]
        low, high = min(low, float(block.min())), max(high, float(block.max()))
        wide = held[: -(-block.size // _CHUNK)]
        wide.reshape(-1)[: block.size] = block
        wide.reshape(-1)[block.size :] = 0.0
        total, square = total + float(wide.sum()), square + float(np.square(wide, out=squares[: len(wide)]).sum())
        wide *= _tile()
        while wide.shape[1] > COUNTERS:
            half = wide.shape[1] // 2
            wide[:, :half] += wide[:, half:]
            wide = wide[:, :half]
        signs, places = _chunks(start // _CHUNK, len(wide))
        counters += (signs * np.take_along_axis(wide, places, 1)).sum(axis=0)
    mean = total / flat.size if flat.size else 0.0
    ends = (low, high) if flat.size else (0.0, 0.0)
    numbers = np.array([math.sqrt(square), mean, *ends, *counters]).astype("<f4")
    return f"{fingerprint(values)}:{base64.b85encode(numbers.tobytes()).decode()}"


def weight_prints(parameters: Iterable[tuple[str, Callable[[], np.ndarray | None]]]) -> dict[str, str]:
    """Name -> `weight_print` of many parameters, in their order.

    Cost: 8 billion numbers are 35 seconds of one processor, and what it takes to bring them to the host. As many
    parameters are read and held at once as there are processors, at most eight.

    Args:
        parameters: the name of each, and what reads it, None where it cannot be read; called in another thread.
    """

    def made(read: Callable[[], np.ndarray | None]) -> str:
        values = read()
        return "" if values is None else weight_print(values)

    reads = dict(parameters)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        found = dict(zip(reads, pool.map(made, reads.values()), strict=True))
    return {name: text for name, text in found.items() if text}


@functools.lru_cache(maxsize=4096)
def _chunks(first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Another sign, and other places for its counters, for each chunk from one on, so that none can be taken for
    another: [count, 1] and [count, COUNTERS], looking drawn, the same everywhere."""
    drawn = [hashlib.sha256(str(i).encode()).digest()[:4] for i in range(first, first + count)]
    mixed = np.array([int.from_bytes(one, "little") for one in drawn])[:, None]
    return 1.0 - 2.0 * (mixed & 1), (np.arange(COUNTERS) - (mixed >> 1)) % COUNTERS


@functools.lru_cache(maxsize=1)
def _tile() -> np.ndarray:
    """The signs of a chunk's values: float64 of -1 and 1."""
    bits = hashlib.shake_256(b"parity weights").digest(_CHUNK // 8)
    return 1.0 - 2.0 * np.unpackbits(np.frombuffer(bits, np.uint8)).astype(np.float64)
