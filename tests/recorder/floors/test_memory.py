"""What a scheduler remembers of earlier steps moves with each run beside the script's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

import parity
from parity.compare.diff import diff
from parity.recorder.floors.memory import remember, remembered, shifts_of
from tests.recorder import script
from tests.recorder.pipelines import drawn


class Predictor(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.out = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return self.out(torch.sin(4 * self.inner(hidden_states)))


def generate(model: Predictor, scheduler: Any) -> None:
    scheduler.set_timesteps(4)
    latents = drawn(1, 32, 16) * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        given = scheduler.scale_model_input(latents, t)
        latents = scheduler.step(model(given, t[None]), t, latents, return_dict=False)[0]


@pytest.mark.parametrize("kind", ["HeunDiscreteScheduler", "KDPM2DiscreteScheduler", "PNDMScheduler"])
@torch.no_grad()
def test_another_rounding_passes_along_a_scheduler_that_remembers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, scheduler = Predictor(), getattr(diffusers, kind)()
    with parity.record(tmp_path / "gpu", transformer=model, scheduler=scheduler):
        generate(model, scheduler)
    monkeypatch.setattr(torch.nn.functional, "linear", script.split_linear)
    with parity.record(tmp_path / "tpu", transformer=model, scheduler=scheduler, floors=()):
        generate(model, scheduler)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == "pass", found.reason
    ratios = [d.distance.ratio for d in found.sites if d.key.site == "loop:latents.after"]
    assert max(ratios[1:]) < 0.65, "the floor grows as the error does: 0.8 to 2 where nothing is remembered"


class Remembers:
    def __init__(self, seed: int) -> None:
        self.sample, self.outputs = drawn(2, 3, seed=seed), [drawn(2, 3, seed=seed + 1), None]
        self.sigmas, self.index = torch.ones(4), 2


def tensors(scheduler: Remembers) -> Iterator[torch.Tensor]:
    yield scheduler.sample
    yield scheduler.outputs[0]


def test_what_two_remember_differs_by_is_put_on_a_third() -> None:
    own, run, copied = Remembers(0), Remembers(5), Remembers(0)
    assert [place for place, _ in remembered(own)] == [("sample", -1), ("outputs", 0)]
    remember(copied, shifts_of(run, own), torch.float64)
    for x, y in zip(tensors(copied), tensors(run), strict=True):
        assert x.dtype == torch.float64
        assert torch.allclose(x, y.double())
    copied.sample = drawn(5, 3)
    remember(copied, shifts_of(run, own), None)
    assert torch.equal(copied.sample, drawn(5, 3)), "of another shape: it was begun anew"
