"""The transformer's calls of a step under the profiler of the library that runs it.

Once before it, so that nothing is compiled or loaded within; unobserved, so that what is seen is the side's own work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from parity.golden.records import StepRecords
from parity.paths.loop import Loop, call_model
from parity.paths.plan import Plan

TRACE = "trace.json"
"""Of torch's profiler, in Chrome's format; JAX's writes `plugins/profile/` for xprof."""


def looked_into(loop: Loop, step: int, plan: Plan) -> StepRecords:
    """What a plan wants to know of a step's calls besides what they give: a profile, or their programs."""
    if plan.programs is not None:
        from parity.paths.jax.written import written_step  # jax, which a candidate's process alone has

        return written_step(loop, step, plan.sites, Path(plan.programs))
    assert plan.profile is not None
    return profiled_step(loop, step, Path(plan.profile))


def profiled_step(loop: Loop, step: int, folder: Path) -> StepRecords:
    """Run a step's calls twice from the same latents, the second time profiled into a folder.

    Returns:
        No records.
    """
    with loop.side.backend.scope():
        on_jax = _wait(call_model(loop, step, None)[0])
        with _jax_trace(folder) if on_jax else _torch_trace(folder):
            _wait(call_model(loop, step, None)[0])
    return StepRecords(step, ())


def _wait(predictions: dict[str, torch.Tensor]) -> bool:
    """Wait until predictions are there; returns whether they are JAX's."""
    arrays = [getattr(x, "_elem", None) for x in predictions.values()]
    if all(array is not None for array in arrays):
        import jax

        jax.block_until_ready(arrays)
        return True
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return False


@contextlib.contextmanager
def _torch_trace(folder: Path) -> Iterator[None]:
    kinds: list[Any] = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds, record_shapes=True) as profile:
        yield
    profile.export_chrome_trace(str(folder / TRACE))


@contextlib.contextmanager
def _jax_trace(folder: Path) -> Iterator[None]:
    import jax

    with jax.profiler.trace(str(folder)):
        yield
