"""Reads what a side is about to run with (`parity.records`), before any forward."""

from __future__ import annotations

import numpy as np

from parity.golden.fingerprint import narrow, weight_print
from parity.paths.loop import Loop
from parity.records import Facts


def gather(loop: Loop) -> Facts:
    """Read a prepared side. Cost: one read of the weights, and the rotary tables computed once."""
    side = loop.side
    weights: dict[str, tuple[tuple[int, ...], str]] = {}
    dtypes: dict[str, str] = {}
    for name, dtype, values in side.backend.weights():
        weights[name] = (values.shape, weight_print(narrow(values)))
        dtypes[name] = dtype
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
        weights,
        dtypes,
        inputs,
        tables,
        noise,
        loop.schedule,
        own=side.family.is_own,
        encoded=side.inputs.encoded is not None,
        placement=side.backend.placement,
    )
