"""Schedulers that draw: the runs that measure floors draw the same noise, and the script's next draws stay its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import parity
from parity.compare.diff import diff
from parity.golden import Golden


class Handed(FlowMatchEulerDiscreteScheduler):
    """A subclass as people write them: it hands everything on."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        return super().step(*args, **kwargs)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(8, 8)

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.mix(hidden_states)) * (1 + timestep[:, None, None] / 1000)


def generate(model: Model, scheduler: Any, seed: int | None) -> torch.Tensor:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    scheduler.set_timesteps(3)
    latents = torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        for t in scheduler.timesteps:
            out = model(latents, timestep=t.expand(1))
            latents = scheduler.step(out, t, latents, generator=generator).prev_sample
    return latents


@pytest.mark.parametrize("kind", [FlowMatchEulerDiscreteScheduler, Handed])
@pytest.mark.parametrize("seed", [3, None])
def test_noise_that_a_scheduler_draws_is_in_no_floor(kind: Any, seed: int | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, scheduler = Model(), kind(shift=3.0, stochastic_sampling=True)
    torch.manual_seed(1)
    plain, after = generate(model, scheduler, seed), torch.randn(4)
    torch.manual_seed(1)
    with parity.record(tmp_path / "a", transformer=model, scheduler=scheduler):
        seen = generate(model, scheduler, seed)
    assert torch.equal(plain, seen), "recording changes nothing"
    assert torch.equal(after, torch.randn(4)), "nor what is drawn next"
    last = Golden.open(tmp_path / "a").read_step(2)
    (floor,) = (f for k, f in last.floors.items() if k.site == "loop:latents.after")
    assert floor.l2 < 1e-4 * float(np.linalg.norm(seen.numpy()))
    with parity.record(tmp_path / "b", transformer=model, scheduler=scheduler, like=tmp_path / "a"):
        torch.manual_seed(2)
        generate(model, scheduler, None if seed is None else 4)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "fail"
    assert found.origin is not None
    assert (found.origin.key.step, found.origin.key.site) == (0, "loop:latents.after")
