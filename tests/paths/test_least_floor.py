"""The least floor holds what a sketch cannot resolve: bit-equal tensors, reduced by two libraries, never part."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity.compare.judge import Judge
from parity.golden import Key, Record, StepRecords, geometry
from parity.hooks.reduce import on_jax as reduce_jax
from parity.hooks.reduce import on_torch as reduce_torch
from parity.paths import floors


def record(x: np.ndarray, reduced: tuple[object, np.ndarray]) -> Record:
    moments, taken = reduced
    g = geometry(x.shape)
    key = Key("transformer", 0, "cond", "a:in.x")
    return Record(key, "tensor", x.shape, "float32", "", (g.rows, g.channels), moments, taken)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(1, 184, 128), (1, 4000, 64), (1, 20000, 256)])
@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_bit_equal_tensors_are_within_the_least_floor(shape: tuple[int, ...], offset: float) -> None:
    """The two add up in another order, in float32; a floor of half an ulp of the value leaves no room for that."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) + np.float32(offset)
    ours = record(x, reduce_torch.to_host_many([reduce_torch.reduce(torch.from_numpy(x))])[0])
    theirs = record(x, reduce_jax.to_host(jax.device_get(jax.jit(reduce_jax.reduce)(jnp.asarray(x)))))
    reference = StepRecords(0, (ours,), {ours.key: floors.least(ours)})
    (found,) = Judge().step(reference, StepRecords(0, (theirs,)))
    assert found.birth is None, (found.distance.ratio, max(found.bins, default=0.0))
