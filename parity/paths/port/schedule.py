"""A port's own schedule and its own step of the loop, in place of what the model's family does there.

Real schedulers repeat timesteps in bfloat16, start where a warm-up left them, or take the second of two equal
timesteps: none of that is emulated, their own code says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from parity.errors import UsageError
from parity.hooks.torchtools import to_torch
from parity.models.family import Place, Sampler, sigmas_of
from parity.paths.port.load import Entry, failures
from parity.port import OwnLoop, OwnSchedule, Scheduler


class OwnSampler(Sampler):
    """The family's sampler with a port's scheduler, step, or both in its place; see `parity.models.family.Sampler`.

    Args:
        base: the family's. schedule: steps -> the port's scheduler, ready for its first step; None for the family's.
        loop: one step of the port's loop; None for the family's guidance and the scheduler's step.
    """

    def __init__(self, base: Sampler, entry: Entry, schedule: OwnSchedule | None, loop: OwnLoop | None) -> None:
        self.base, self.entry, self._schedule, self._loop = base, entry, schedule, loop
        self.guidance_scale = base.guidance_scale
        self.scheduler: Scheduler | None = None
        self._before: torch.Tensor | None = None
        self._after: torch.Tensor | None = None

    @property
    def sigmas(self) -> torch.Tensor:
        return self.base.sigmas if self.scheduler is None else _tensor(sigmas_of(self.scheduler, self.timesteps))

    @property
    def end(self) -> float:
        return self.base.end

    @property
    def step_index(self) -> int | None:
        """Where the scheduler stands; before its first step, where its own code would begin."""
        return self.base.step_index if self.scheduler is None else self.first

    def set_schedule(self, steps: int, device: object, place: Place, dtype: torch.dtype | None) -> None:
        self.base.set_schedule(steps, device, place, dtype)
        self.timesteps, self._after = self.base.timesteps, None
        if self._schedule is None:
            return
        where = f"{self.entry.named}: `schedule({steps})`"
        with failures(where, self.entry.path):
            made = self._schedule(steps)
        needed = ("timesteps", "step", "alphas_cumprod" if hasattr(made, "final_alpha_cumprod") else "sigmas")
        missing = [name for name in needed if not hasattr(made, name)]
        if missing:
            raise UsageError(f"{where} returned an object of type {type(made).__name__} without `{missing[0]}`")
        given = len(made.timesteps), len(getattr(made, "sigmas", range(steps + 1)))
        if given[0] < steps or given[1] < steps + 1:
            raise UsageError(f"{where} has {given[0]} timesteps and {given[1]} sigmas, one more")
        with failures(where, self.entry.path):
            self.first = _first_index(made)
        for name, x in list(vars(made).items()):
            if type(x) is torch.Tensor:  # as ports do: what is the script's CPU tensor goes to where the model is
                setattr(made, name, place(x))
        with failures(where, self.entry.path):
            self.scheduler, self.timesteps = made, _tensor(made.timesteps)

    def start(self, noise: torch.Tensor) -> torch.Tensor:
        return self.base.start(noise)

    def model_input(self, latents: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        self._before = latents
        if self.scheduler is None:
            return self.base.model_input(latents, step)
        return latents, self.timesteps[step].expand(latents.shape[0])

    def guide(self, predictions: Mapping[str, torch.Tensor], step: int, dtype: torch.dtype | None) -> torch.Tensor:
        if self._loop is None:
            return self.base.guide(predictions, step, dtype)
        assert self._before is not None
        with failures(f"{self.entry.named}: `loop`", self.entry.path):
            made = self._loop(predictions, self._before, step, self.scheduler)
            if not isinstance(made, (tuple, list)) or len(made) != 2:
                found = f"{len(made)} values" if isinstance(made, (tuple, list)) else f"one {type(made).__name__}"
                raise UsageError(f"{self.entry.named}: `loop` returned {found}, not (guided prediction, latents after)")
        shape = self._before.shape
        for what, x in zip(("guided prediction", "latents after"), made, strict=True):
            if not isinstance(x, torch.Tensor) or x.shape != shape:
                found = f"{list(x.shape)}" if isinstance(x, torch.Tensor) else f"an object of type {type(x).__name__}"
                raise UsageError(f"{self.entry.named}: the {what} of `loop` is {found}, not a tensor {list(shape)}")
        guided, self._after = made
        return guided

    def step(self, guided: torch.Tensor, latents: torch.Tensor, step: int) -> torch.Tensor:
        if self._after is not None:
            after, self._after = self._after, None
            return after
        if self.scheduler is None:
            return self.base.step(guided, latents, step)
        with failures(f"{self.entry.named}: `schedule(...).step`", self.entry.path):
            return super().step(guided, latents, step)

    def stand_before(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        self.base.stand_before(step, state)
        super().stand_before(step, state)


def _tensor(x: Any) -> torch.Tensor:
    """A schedule's numbers, which may be an array of numpy's or JAX's, or a list."""
    return x if isinstance(x, torch.Tensor) else to_torch(x)


def _first_index(scheduler: Scheduler) -> int:
    """The index of the sigma that the first step is going to use: the scheduler's counter, else what its own search for
    the first timestep finds (of equal ones, diffusers' schedulers take the second)."""
    index = getattr(scheduler, "step_index", None)
    index = getattr(scheduler, "begin_index", None) if index is None else index
    search = getattr(scheduler, "index_for_timestep", None)
    if index is None and search is not None:
        index = search(scheduler.timesteps[0])
    return 0 if index is None else int(index)
