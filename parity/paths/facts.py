"""Reads what a side is about to run with (`parity.records`), before any forward."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from parity.golden.fingerprint import narrow, weight_prints
from parity.paths.loop import Loop
from parity.records import Facts
from parity.transforms import bfloat16

SAMPLE = 4096
"""Values of a parameter that are looked at: of float32 one in 65,536 is a number of bfloat16."""


def gather(loop: Loop) -> Facts:
    """Read a prepared side. Cost: one read of the weights, and the rotary tables computed once."""
    side = loop.side
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    narrow_ones = 0

    def read() -> Iterator[tuple[str, np.ndarray]]:
        nonlocal narrow_ones
        for name, dtype, values in side.backend.weights():
            shapes[name], dtypes[name] = values.shape, dtype
            narrow_ones += values.size if _is_narrow(values.reshape(-1)[:SAMPLE]) else 0
            yield name, narrow(values)

    prints = weight_prints(read())
    every = sum(map(math.prod, shapes.values()))
    with side.backend.scope():
        sample = side.family.rotary_tables(side.backend.module(), loop.latents)
        tables = {name: side.backend.host(x).astype(np.float32) for name, x in sample.items()}
        noise = side.backend.host(loop.latents)
    inputs = {
        f"{branch}.{name}": np.asarray(x.float().numpy())
        for branch, condition in side.inputs.conditions.items()
        for name, x in condition.items()
    }
    return Facts(
        {name: (shape, prints[name]) for name, shape in shapes.items()},
        dtypes,
        inputs,
        tables,
        noise,
        loop.schedule,
        own=side.family.is_own,
        encoded=bool(side.inputs.tokens),
        placement=side.backend.placement,
        narrow=narrow_ones / max(every, 1),
    )


def _is_narrow(x: np.ndarray) -> bool:
    """Whether all values are those of a 16-bit dtype."""
    if x.dtype.kind != "f":
        return False
    with np.errstate(over="ignore"):
        return np.array_equal(x, bfloat16(x)) or np.array_equal(x, x.astype(np.float16).astype(x.dtype))
