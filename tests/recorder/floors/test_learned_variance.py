"""A transformer that predicts a variance beside the noise, which is cut off after guidance (PixArt, DiT, Latte)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")
from diffusers import FlowMatchEulerDiscreteScheduler

import parity
from parity.compare.diff import diff
from parity.golden import Golden
from parity.golden.records import Key
from tests.recorder.pipelines import drawn


class Predictor(torch.nn.Module):
    """Noise and variance, four channels each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Conv2d(4, 64, 3, padding=1)
        self.out = torch.nn.Conv2d(64, 8, 3, padding=1)

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.inner(hidden_states) + text))


def generate(model: Predictor, scheduler: Any, scale: float) -> None:
    latents = drawn(1, 4, 8, 8)
    scheduler.set_timesteps(2)
    for t in scheduler.timesteps:
        text, other = drawn(1, 64, 1, 1, seed=1), drawn(1, 64, 1, 1, seed=2)
        cond, uncond = (model(latents, t[None], given) for given in (text, text + 0.1 * other))
        noise = (uncond + scale * (cond - uncond)).chunk(2, dim=1)[0]
        latents = scheduler.step(noise, t, latents, return_dict=False)[0]


def recorded(where: Path, scale: float = 4.5, **options: Any) -> Path:
    model, scheduler = Predictor(), FlowMatchEulerDiscreteScheduler()
    with torch.no_grad(), parity.record(where, transformer=model, scheduler=scheduler, **options):
        generate(model, scheduler, scale)
    return where


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("variance") / "gpu")


def test_its_rounding_reaches_what_guidance_makes_of_it(reference: Path) -> None:
    step = Golden.open(reference).read_step(0)
    floors = {key.branch: floor for key, floor in step.floors.items() if key.site == "loop:noise_pred"}
    norms = {r.key: r.moments.l2 for r in step.records if r.moments is not None}
    relative = {b: f.l2 / norms[Key("transformer", 0, b, "loop:noise_pred")] for b, f in floors.items()}
    assert relative[""] > relative["cond"], "guidance widens what the branches round by"


def test_another_guidance_scale_is_named(reference: Path, tmp_path: Path) -> None:
    found = diff(reference, recorded(tmp_path / "tpu", 9.0, floors=()))
    assert found.verdict == "fail"
    assert [c.cause for c in found.causes] == ["the guidance scale is 9, not 4.5"]
