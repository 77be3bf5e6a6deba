"""What a step of the candidate costs: one timed call of its transformer, unobserved, and its program's memory."""

from __future__ import annotations

import time
from typing import Any

import jax

from parity.golden.records import LOOP, Key, Record, StepRecords
from parity.hooks.reduce.batch_jax import array_of
from parity.paths.loaded import STAGE
from parity.paths.loop import Loop, call_model
from parity.paths.plan import MEMORY, SECONDS


def timed_step(loop: Loop, step: int) -> StepRecords:
    """From a step's latents to its predictions on the device; the first call of a kind compiles."""
    backend: Any = loop.side.backend
    with backend.scope():
        began = time.perf_counter()
        predictions, _ = call_model(loop, step, None)
        jax.block_until_ready([array_of(x) for x in predictions.values()])
        seconds = time.perf_counter() - began
    numbers: dict[str, float | None] = {SECONDS: seconds, MEMORY: backend.unobserved_memory() if backend.jit else None}
    known = {name: x for name, x in numbers.items() if x is not None}
    records = (Record(Key(STAGE, step, "", f"{LOOP}:{name}"), "scalar", value=x) for name, x in known.items())
    return StepRecords(step, tuple(records))
