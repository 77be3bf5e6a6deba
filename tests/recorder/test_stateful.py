"""Models that remember their calls (caches, counters): recording and known faults change no bit, then or later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")
import diffusers

import parity
from parity.compare.diff import diff
from parity.golden.faults import kept_faults
from tests.support.scripts import drawn, load, recorded, tame, wan


class Cached(torch.nn.Module):
    """All blocks in one, run at even steps; at odd ones what they added at the step before is added again."""

    def __init__(self, blocks: torch.nn.ModuleList) -> None:
        super().__init__()
        self.inner, self.kept, self.calls = blocks, dict[int, Any](), 0

    def forward(self, hidden_states: Any, encoder_hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        (step, branch), self.calls = divmod(self.calls, 2), self.calls + 1
        given = hidden_states, encoder_hidden_states
        if step % 2:
            return tuple(x + kept for x, kept in zip(given, self.kept[branch], strict=True))
        out = given
        for block in self.inner:
            out = block(*out, *args, **kwargs)
        self.kept[branch] = [y - x for x, y in zip(given, out, strict=True)]
        return out


def counted() -> tuple[dict[str, Any], Callable[[], torch.Tensor]]:
    """A loop of one's own around a model that counts its calls, two a step, and is not told when a loop begins."""
    parts = load()
    parts.transformer.transformer_blocks = torch.nn.ModuleList([Cached(parts.transformer.transformer_blocks)])

    def run() -> torch.Tensor:
        x = drawn(1, 3, 4, 8, 8, seed=5)
        parts.scheduler.set_timesteps(4)
        for t in parts.scheduler.timesteps:
            cond, uncond = (
                parts.transformer(x, encoder_hidden_states=text, timestep=t[None]).sample
                for text in (parts.embeds, parts.negative)
            )
            x = parts.scheduler.step(uncond + 6 * (cond - uncond), t, x, return_dict=False)[0]
        return x

    return parts.named, run


def cached(config: Callable[[Any], Any]) -> tuple[dict[str, Any], Callable[[], np.ndarray]]:
    """A pipeline with one of diffusers' caches."""
    pipe, call = wan()
    deeper = {**pipe.transformer.config, "num_layers": 3}
    pipe.register_modules(transformer=tame(diffusers.WanTransformer3DModel(**deeper)))
    pipe.transformer.enable_cache(config(pipe))
    return {"pipe": pipe}, call


def broadcast(pipe: Any) -> Any:
    return diffusers.PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=(-1, 1001),
        current_timestep_callback=lambda: pipe.current_timestep,
    )


def magnitudes(pipe: Any) -> Any:
    return diffusers.MagCacheConfig(
        mag_ratios=[1.0] * 6, num_inference_steps=3, threshold=0.5, max_skip_steps=2, retention_ratio=0.2
    )


SCRIPTS: dict[str, Callable[[], tuple[dict[str, Any], Callable[[], Any]]]] = {
    "counter": counted,
    "PyramidAttentionBroadcast": lambda: cached(broadcast),
    "MagCache": lambda: cached(magnitudes),
    "FirstBlockCache": lambda: cached(lambda pipe: diffusers.FirstBlockCacheConfig(threshold=0.1)),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_model_that_remembers_its_calls_computes_the_same(name: str, tmp_path: Path) -> None:
    parts, run = SCRIPTS[name]()
    with torch.no_grad():
        plain = [np.asarray(run()) for _ in range(3)]
    parts, run = SCRIPTS[name]()
    with torch.no_grad():
        if "pipe" in parts:
            with parity.record(tmp_path / "gpu", **parts, causes=True):
                first = run()
        else:
            first, *_ = [run() for _ in parity.record(tmp_path / "gpu", **parts, causes=True)]
        second = run()
    third = recorded(tmp_path / "tpu", run, **parts, like=tmp_path / "gpu")
    assert [np.array_equal(a, np.asarray(b)) for a, b in zip(plain, (first, second, third), strict=True)] == [True] * 3
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == "pass", found.reason
    assert kept_faults(tmp_path / "gpu", 0, "transformer")
