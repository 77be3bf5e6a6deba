"""Names for contents: equal tensors, and only they, have equal fingerprints.

Problem. Comparing two runs means nothing where their weights, prompts or noise differ, and neither machine has the
other's tensors.

How. SHA-256 over the dtype's name, the shape and the elements in C order and little endian, cut to 16 hexadecimal
digits (64 bits: a chance of 1e-12 that any two of 6,000 tensors collide). Equality is of bits: 0.0 and -0.0 differ.

Cost. One read of the tensor at the speed of SHA-256 (1 to 2 GB/s where the processor has instructions for it), 1 MB
of memory whatever the strides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

DIGITS = 16


def fingerprint(array: np.ndarray, dtype: str = "") -> str:
    """The fingerprint of an array's dtype, shape and contents.

    Args:
        array: any shape and strides; not of Python objects.
        dtype: the name to use instead of the array's own, for raw bits: a bfloat16 tensor from torch, viewed as
            uint16, with `dtype="bfloat16"`, has the fingerprint of the same tensor from jax.

    Returns:
        16 hexadecimal digits.
    """
    name = dtype or array.dtype.name
    if array.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    laid_out = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    return fingerprint_bytes(name, array.shape, (laid_out.reshape(-1).view(np.uint8),))


def narrow(x: np.ndarray) -> np.ndarray:
    """64 bits as 32: JAX has none, and tables that torch makes in float64 are the same there when rounded."""
    return x.astype({"float64": np.float32, "int64": np.int32}.get(x.dtype.name, x.dtype))


def fingerprint_bytes(dtype: str, shape: tuple[int, ...], chunks: Iterable[Any]) -> str:
    """As `fingerprint`, of elements that come as bytes: C order, little endian, in chunks of any size."""
    digest = hashlib.sha256(f"{dtype}{[int(n) for n in shape]}:".encode())
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()[:DIGITS]
