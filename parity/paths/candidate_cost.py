"""What a step of the candidate costs: time and memory of its transformer, unobserved."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from parity.hooks.batch_jax import array_of
from parity.paths.candidate import TorchaxBackend
from parity.paths.loaded import Loaded
from parity.paths.loop import Loop, call_model, prepare

CALLS = 7
"""Timed calls of each kind of step at least; their median counts."""

ENOUGH = 1.0
"""Seconds of calls that make a median; small models are called more often than `CALLS`, up to `MOST` times."""

MOST = 50


@dataclass(frozen=True, slots=True)
class Cost:
    """Of the transformer's calls of one step, all guidance branches together.

    Attributes:
        seconds: from the step's latents to its predictions on the device, compilation left out; the mean over the
            run's steps where a feature cache makes them differ.
        memory: bytes that the largest compiled program needs on one device, weights included; None where unknown.
    """

    seconds: float
    memory: int | None


def step_costs(sides: Sequence[Loaded]) -> list[Cost]:
    """Measure loaded candidates; their programs are compiled where they are not yet.

    The sides take turns call by call, so that what else the machine does in the meantime hits all of them.
    """
    loops = [prepare(side.with_fresh_sampler()) for side in sides]
    taken: list[dict[bool, list[float]]] = [{} for _ in sides]
    spent = 0.0
    for turn in range(MOST + 1):
        if turn > CALLS and spent > ENOUGH * len(sides):
            break
        for loop, times in zip(loops, taken, strict=True):
            for full, steps in _kinds(loop.side).items():
                seconds = _timed(loop, steps[0])
                if turn:  # the first call compiles
                    times.setdefault(full, []).append(seconds)
                    spent += seconds
    return [_cost(side, times) for side, times in zip(sides, taken, strict=True)]


def _kinds(side: Loaded) -> dict[bool, list[int]]:
    """The steps at which all blocks run (True, first: they fill the cache), and those at which a cache skips some."""
    cache = side.settings.deep_cache
    kinds: dict[bool, list[int]] = {}
    for step in range(side.inputs.steps):
        kinds.setdefault(cache is None or cache.full(step), []).append(step)
    return kinds


def _timed(loop: Loop, step: int) -> float:
    with loop.side.backend.scope():
        began = time.perf_counter()
        predictions, _ = call_model(loop, step, None)
        jax.block_until_ready([array_of(x) for x in predictions.values()])
        return time.perf_counter() - began


def _cost(side: Loaded, times: dict[bool, list[float]]) -> Cost:
    backend = side.backend
    assert isinstance(backend, TorchaxBackend)
    total = sum(statistics.median(times[full]) * len(steps) for full, steps in _kinds(side).items())
    return Cost(total / side.inputs.steps, backend.unobserved_memory() if backend.jit else None)


def interpreted() -> bool:
    """Whether Pallas kernels are interpreted here, so that their times say nothing."""
    return jax.default_backend() != "tpu"
