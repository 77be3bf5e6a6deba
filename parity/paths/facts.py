"""What a side is about to run with, as numpy: read before any forward, judged by `parity.runs.preflight`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parity.golden.fingerprint import fingerprint
from parity.paths.loop import Loop, Schedule
from parity.paths.ported import Ported


@dataclass(frozen=True, slots=True)
class Facts:
    """A side before its first forward.

    Attributes:
        weights: parameter name -> (shape, content fingerprint of its values widened to float32 or wider).
        dtypes: parameter name -> dtype the path computes with.
        inputs: `cond.encoder_hidden_states` -> values, float32. noise: initial latents, float32.
        tables: rotary tables by name. schedule: timesteps, sigmas, the scheduler's step counter.
        own: whether it is a port, which may name its parameters as it likes.
        encoded: whether its embeddings are those of its own text stage, which has been judged.
        placement: how the weights lie on the devices, in one line; empty where there is nothing to say.
    """

    weights: Mapping[str, tuple[tuple[int, ...], str]]
    dtypes: Mapping[str, str]
    inputs: Mapping[str, np.ndarray]
    noise: np.ndarray
    tables: Mapping[str, np.ndarray]
    schedule: Schedule
    own: bool = False
    encoded: bool = False
    placement: str = ""


def gather(loop: Loop) -> Facts:
    """Read a prepared side. Cost: one read of the weights, and the rotary tables computed once."""
    side = loop.side
    weights: dict[str, tuple[tuple[int, ...], str]] = {}
    dtypes: dict[str, str] = {}
    for name, dtype, values in side.backend.weights():
        weights[name] = (values.shape, fingerprint(values))
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
        noise,
        tables,
        loop.schedule,
        own=isinstance(side.family, Ported),
        encoded=side.inputs.encoded is not None,
        placement=side.backend.placement,
    )
