"""The denoising loop, written once for both backends in torch's functions.

It follows diffusers' pipeline call by call (`tests/paths/test_reference.py` holds the reference's latents to the
pipeline's, bit for bit), with a place for each setting that real ports differ in, and records the loop's own values
whole: they are small. One step's records are handed out at a time, so memory does not grow with steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from parity.golden.records import LOOP, Key, Moments, Record, StepRecords
from parity.golden.sketch import geometry, sketch
from parity.hooks.sites import SitePlan
from parity.models.patches import setting_dtype
from parity.paths.inputs import BRANCHES
from parity.paths.side import Side

STAGE = "transformer"

Forced = Callable[[int], np.ndarray | None]
"""Step -> the latents it must start from, or None for its own."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A side's schedule, as it will be walked.

    Attributes:
        timesteps: float64 [steps]. sigmas: float64 [steps + 1].
        step_index: the scheduler's own step counter before the first step; None is what it should be.
    """

    timesteps: np.ndarray
    sigmas: np.ndarray
    step_index: int | None


@dataclass
class Loop:
    """A side with its schedule set and its initial latents placed; made by `prepare`."""

    side: Side
    schedule: Schedule
    timesteps: torch.Tensor
    latents: torch.Tensor

    def continue_from(self, step: int, latents: np.ndarray) -> None:
        """Stand before `step` with these latents, as the step before it left them."""
        with self.side.backend.scope():
            self.latents = self.side.backend.tensor(torch.from_numpy(latents)).to(self.latents.dtype)
        self.side.scheduler._step_index = step  # its own counter; there is no public way to set it


def prepare(side: Side) -> Loop:
    """Set the schedule and place the initial latents; no forward yet."""
    with side.backend.scope():
        timesteps = _set_schedule(side)
        latents = _initial_latents(side)
        _warm_up(side, timesteps, latents)
        schedule = Schedule(
            side.backend.host(timesteps).astype(np.float64),
            side.backend.host(side.scheduler.sigmas).astype(np.float64),
            side.scheduler.step_index,
        )
    return Loop(side, schedule, timesteps, latents)


def _set_schedule(side: Side) -> torch.Tensor:
    steps = side.inputs.steps
    # The pipeline's own sigmas (HunyuanVideo15Pipeline.__call__, step 4).
    sigmas = np.linspace(1.0, 0.0, steps + 1)[:-1]
    side.scheduler.set_timesteps(sigmas=sigmas, device=side.backend.device)
    dtype = setting_dtype(side.settings, "schedule_dtype")
    if dtype is not None:
        side.scheduler.sigmas = side.scheduler.sigmas.to(dtype)
        side.scheduler.timesteps = side.scheduler.timesteps.to(dtype)
        side.reached.mark("schedule_dtype")
    return side.scheduler.timesteps


def _initial_latents(side: Side) -> torch.Tensor:
    if side.settings.text("noise.device") == "device":
        noise = side.backend.draw(side.case.latent_shape, side.inputs.seed)
        side.reached.mark("noise.device")
    else:
        noise = side.backend.tensor(side.inputs.noise)
    return noise.to(_latents_dtype(side))


def _latents_dtype(side: Side) -> torch.dtype:
    return setting_dtype(side.settings, "latents_dtype") or side.backend.dtype


def _warm_up(side: Side, timesteps: torch.Tensor, latents: torch.Tensor) -> None:
    """Warm-up calls as ports make them to compile ahead, forgetting that the scheduler counts its steps."""
    warmup = int(side.settings["scheduler.warmup_steps"])
    for i in range(min(warmup, side.inputs.steps)):
        side.scheduler.step(torch.zeros_like(latents), timesteps[i], latents, return_dict=False)
        side.reached.mark("scheduler.warmup_steps")


def denoise(
    loop: Loop, plan: SitePlan | None, forced: Forced | None = None, *, first: int = 0, stop: int | None = None
) -> Iterator[StepRecords]:
    """Run the loop, handing out the records of each step as it ends.

    Args:
        plan: what to observe in the transformer; None for only the loop's own values.
        forced: latents to start a step from (`--forcing step`).
        first: step to start at, for a loop that was put there by `continue_from`. stop: step to end before.
    """
    for step in range(first, loop.side.inputs.steps if stop is None else stop):
        given = forced(step) if forced is not None else None
        with loop.side.backend.scope():
            records = _step(loop, step, plan, given)
        yield records  # outside the scope: the other side runs while this one is suspended


def _step(loop: Loop, step: int, plan: SitePlan | None, given: np.ndarray | None) -> StepRecords:
    side = loop.side
    backend, settings, schedule = side.backend, side.settings, loop.schedule
    if given is not None:
        # Not rounded to `latents_dtype`: forced inputs are equal, and what this step does to them shows after it.
        loop.latents = backend.tensor(torch.from_numpy(np.array(given)))
    t = loop.timesteps[step]
    sigma = schedule.sigmas[step]
    records = [
        _scalar(step, "timestep", schedule.timesteps[step]),
        _scalar(step, "sigma", sigma),
        _scalar(step, "dt", schedule.sigmas[step + 1] - sigma),
        _value(step, "", "latents.before", backend.host(loop.latents), loop.latents),
    ]
    timestep_dtype = setting_dtype(settings, "timestep_dtype")
    if timestep_dtype is not None:
        side.reached.mark("timestep_dtype")
    # The pipeline casts the timestep to the latents' dtype.
    timestep = t.expand(loop.latents.shape[0]).to(timestep_dtype or backend.dtype)
    shared = side.family.model_arguments(side.case, settings, loop.latents, timestep, backend.dtype)
    predictions, seen = backend.call(_conditions(side), shared, plan, step)
    records += seen
    for branch, x in predictions.items():
        records.append(_value(step, branch, "noise_pred", backend.host(x), x))
    side.guider.set_state(step=step, num_inference_steps=side.inputs.steps, timestep=t)
    guided = _guide(side, predictions)
    records.append(_value(step, "", "noise_pred", backend.host(guided), guided))
    stepped = side.scheduler.step(guided, t, loop.latents, return_dict=False)[0]
    loop.latents = stepped.to(_latents_dtype(side))
    if settings.changed("latents_dtype"):
        side.reached.mark("latents_dtype")
    records.append(_value(step, "", "latents.after", backend.host(loop.latents), loop.latents))
    return StepRecords(step, tuple(records))


def _conditions(side: Side) -> dict[str, dict[str, torch.Tensor]]:
    return {
        branch: {k: side.backend.tensor(x.to(side.backend.dtype)) for k, x in side.inputs.conditions[branch].items()}
        for branch in BRANCHES
    }


def _guide(side: Side, predictions: dict[str, torch.Tensor]) -> torch.Tensor:
    """Combine the branches with diffusers' guider, in `guidance_dtype` where that is set."""
    dtype = setting_dtype(side.settings, "guidance_dtype")
    parts = {b: x if dtype is None else x.to(dtype) for b, x in predictions.items()}
    if dtype is not None:
        side.reached.mark("guidance_dtype")
    guided = side.guider.forward(parts["cond"], parts["uncond"]).pred
    return guided.to(predictions["cond"].dtype)


def _scalar(step: int, name: str, value: Any) -> Record:
    x = np.float64(value)
    return _record(step, "", name, np.asarray(x), "float64")


def _value(step: int, branch: str, name: str, value: np.ndarray, x: torch.Tensor) -> Record:
    return _record(step, branch, name, value, str(x.dtype).removeprefix("torch."))


def _record(step: int, branch: str, name: str, value: np.ndarray, dtype: str) -> Record:
    """A record of one of the loop's own values, held whole."""
    finite = value[np.isfinite(value)].astype(np.float64)
    moments = Moments(
        count=value.size,
        nan=int(np.isnan(value).sum()),
        inf=int(np.isinf(value).sum()),
        min=float(finite.min(initial=np.inf)) if finite.size else 0.0,
        max=float(finite.max(initial=-np.inf)) if finite.size else 0.0,
        mean=float(finite.mean()) if finite.size else 0.0,
        l2=float(np.linalg.norm(finite)),
    )
    g = geometry(value.shape)
    key = Key(STAGE, step, branch, f"{LOOP}:{name}")
    return Record(key, "tensor", value.shape, dtype, "", (g.rows, g.channels), moments, sketch(value), value)
