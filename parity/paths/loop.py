"""The denoising loop, written once for both backends in torch's functions.

It follows diffusers' pipeline call by call (`tests/paths/test_reference.py` holds the reference's latents to the
pipeline's, bit for bit), with a place for each setting that real ports differ in, and records the loop's own values
whole: they are small. One step's records are handed out at a time, so memory does not grow with steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from parity.hooks.sites import SitePlan
from parity.hooks.torchtools import cast_arguments, to_torch
from parity.models.family import Sampler
from parity.models.feature_cache import Features
from parity.models.patches import setting_dtype
from parity.paths.loaded import Arguments, Loaded, StepCalls, array, dtype_name
from parity.paths.plan import Array, Forced, Outputs, State
from parity.paths.stage import Stage
from parity.records import LOOP, LOOP_STAGE, Key, Record, Schedule, StepRecords
from parity.sketch import value_record

LATENTS = "latents"

Around = Callable[[int], contextlib.AbstractContextManager[object]]
"""Step -> the context in which a loop makes its model calls."""


@dataclass
class Loop:
    """A side with its schedule set and its initial latents placed; made by `prepare`.

    Attributes:
        sampler: diffusers' own scheduler and guidance, which keep state: of this loop alone.
        features: what its feature cache holds: of this loop alone, since loops of one side run beside one another.
    """

    side: Loaded
    sampler: Sampler
    schedule: Schedule
    latents: torch.Tensor
    features: Features = field(default_factory=dict)

    def continue_from(self, step: int, state: State, around: Around = contextlib.nullcontext) -> None:
        """Stand before `step` with this state, as the step before it left it.

        A feature cache that `step` reads is no part of the state, it is too large: it is filled by walking there.

        Args:
            around: context of the model calls on that way.
        """
        cache = self.side.settings.deep_cache
        if cache is not None and not cache.full(step):
            for at in range(step - step % cache.interval + 1):
                with around(at):
                    next(denoise(self, None, first=at, stop=at + 1))
        self.sampler.stand_before(step, self.take(state))

    def take(self, state: State) -> dict[str, torch.Tensor]:
        """Take the latents of a state; returns what else it holds, placed."""
        with self.side.backend.scope():
            placed = _placed(self.side, state)
            self.latents = placed.pop(LATENTS).to(self.latents.dtype)
        return placed

    def step(self, step: int, plan: SitePlan | None, given: State | None) -> StepRecords:
        """Take a step; `given`: the state that it is forced to start from."""
        side, schedule, sampler = self.side, self.schedule, self.sampler
        backend = side.backend
        if given is not None:
            # Not rounded to `latents_dtype`: forced inputs are equal, and what this step does to them shows after it.
            placed = _placed(side, given)
            self.latents = placed.pop(LATENTS)
            sampler.stand_before(step, placed)
        sigma = schedule.sigmas[step]
        records = [
            _value(step, "", "timestep", schedule.timesteps[step]),
            _value(step, "", "sigma", sigma),
            _value(step, "", "dt", schedule.sigmas[step + 1] - sigma),
            *_state_records(self, step, "before"),
        ]
        predictions, seen = backend.call(step_calls(self, step), plan)
        records += seen
        for branch, x in predictions.items():
            records.append(_value(step, branch, "noise_pred", backend.host(x), x))
        guided = sampler.guide(predictions, step, side.asked("guidance_dtype"))
        records.append(_value(step, "", "noise_pred", backend.host(guided), guided))
        self.latents = sampler.step(guided, self.latents, step).to(side.asked("latents_dtype") or backend.dtype)
        return StepRecords(step, (*records, *_state_records(self, step, "after")))

    @property
    def outputs(self) -> Outputs:
        """The latents that it came to, as the VAE takes them."""
        return {LATENTS: array(self.side.family.stage2(self.side.case, to_torch(self.latents)))}


@dataclass
class Once:
    """A stage outside the loop, whose only step is `OUTSIDE`.

    Attributes:
        outputs: what it came to, by branch and name.
    """

    side: Loaded
    outputs: dict[str, Array] = field(default_factory=dict)

    def step(self, step: int, plan: SitePlan | None, given: State | None) -> StepRecords:
        """Run it; it starts from its side's inputs alone."""
        stage, backend = self.side.network, self.side.backend
        assert isinstance(stage, Stage)
        records = []
        for branch, inputs in self.side.inputs.conditions.items():
            own = {branch: {name: _widened(self.side, x) for name, x in inputs.items()}}
            made, seen = backend.call(StepCalls(branches=own, shared={}, step=step, features={}), plan)
            output = Array(backend.host(made[branch]), dtype_name(made[branch].dtype))
            self.outputs[f"{branch}.{stage.output}"] = output
            records += [*seen, *stage.records(output, branch)]
        return StepRecords(step, tuple(records))


def _widened(side: Loaded, x: torch.Tensor) -> torch.Tensor:
    """An input where its stage computes, in its own dtype, or in float64 where the stage is."""
    placed = side.backend.tensor(x)
    return placed.double() if side.backend.dtype is torch.float64 and x.is_floating_point() else placed


def prepare(side: Loaded) -> Loop:
    """Set the schedule and place the initial latents; no forward yet."""
    sampler, place, given = side.network.sampler(side.inputs.seed), side.backend.tensor, side.inputs
    with side.backend.scope():
        sampler.set_schedule(given.steps, side.backend.device, place, side.asked("schedule_dtype"))
        if given.start is not None:
            latents = place(given.start.to(latents_dtype(side)))
        else:
            latents = sampler.start(place(given.noise).to(latents_dtype(side)))
        # Warm-up calls as ports make them to compile ahead, forgetting that the scheduler counts its steps.
        for i in range(min(int(side.settings["scheduler.warmup_steps"]), given.steps)):
            sampler.step(torch.zeros_like(latents), latents, i)
            side.reached.mark("scheduler.warmup_steps")
        timesteps, sigmas = (to_torch(x).cpu().double().numpy() for x in (sampler.timesteps, sampler.sigmas))
        schedule = Schedule(timesteps, sigmas, sampler.step_index, sampler.end)
    return Loop(side, sampler, schedule, latents)


def _placed(side: Loaded, state: State) -> dict[str, torch.Tensor]:
    return {name: side.backend.tensor(torch.from_numpy(np.array(x))) for name, x in state.items()}


def latents_dtype(side: Loaded) -> torch.dtype:
    """That its latents have between two steps."""
    return setting_dtype(side.settings, "latents_dtype") or side.backend.dtype


def denoise(
    loop: Loop | Once, plan: SitePlan | None, forced: Forced | None = None, *, first: int = 0, stop: int | None = None
) -> Iterator[StepRecords]:
    """Run the loop, or a stage outside it, handing out the records of each step as it ends.

    Args:
        plan: what to observe in the transformer; None for only the loop's own values.
        forced: the state to start a step from (`--isolate steps`).
        first: step to start at, for a loop that was put there by `continue_from`. stop: step to end before.
    """
    for step in range(first, loop.side.inputs.steps if stop is None else stop):
        given = forced(step) if forced is not None else None
        with loop.side.backend.scope():
            records = loop.step(step, plan, given)
        yield records  # outside the scope: the other side runs while this one is suspended


def step_calls(loop: Loop, step: int) -> StepCalls:
    """The transformer's calls of one step for the latents that the loop has, within the backend's scope."""
    side = loop.side
    shared = shared_arguments(side, loop.sampler, loop.latents, step)
    return StepCalls(branches=_conditions(side), shared=shared, step=step, features=loop.features)


def shared_arguments(side: Loaded, sampler: Sampler, latents: torch.Tensor, step: int) -> Arguments:
    """What every branch's call of a step is given."""
    latents, timestep = sampler.model_input(latents, step)
    timestep = timestep.to(side.asked("timestep_dtype") or timestep.dtype)
    return side.family.model_arguments(side.case, side.settings, latents, timestep, side.backend.dtype)


def _state_records(loop: Loop, step: int, when: str) -> list[Record]:
    state = {LATENTS: loop.latents, **loop.sampler.state}
    # A copy: a model may write to the latents that it is given.
    return [_value(step, "", f"{name}.{when}", loop.side.backend.host(x).copy(), x) for name, x in state.items()]


def _conditions(side: Loaded) -> dict[str, dict[str, torch.Tensor]]:
    # Copies: a model may write to what it is given, and the next call is given it too.
    copied = {branch: cast_arguments(given, side.backend.dtype) for branch, given in side.inputs.conditions.items()}
    return {branch: {name: side.backend.tensor(x) for name, x in given.items()} for branch, given in copied.items()}


def _value(step: int, branch: str, name: str, value: Any, x: torch.Tensor | None = None) -> Record:
    """Of one of the loop's own values, a number of the schedule or those of a tensor."""
    key = Key(LOOP_STAGE, step, branch, f"{LOOP}:{name}")
    return value_record(key, np.asarray(value), "float64" if x is None else dtype_name(x.dtype))
