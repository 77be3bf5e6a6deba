"""What running a script again must leave alone, whatever its models do with what they are given and remember."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

import parity
from parity.compare.diff import diff
from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, verify
from tests.support.scripts import drawn, generate, load, recorded, tame, wan

pytest.importorskip("diffusers")


class Remembers(torch.nn.Module):
    """Writes what it computes into a dict or a tensor that it is given, or into attributes and buffers of its own."""

    def __init__(self, where: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.where, self.inner, self.calls, self.kept = where, torch.nn.Linear(16, 16), 0, dict[str, Any]()
        self.register_buffer("before", torch.zeros(1, 8, 16))

    def forward(self, x: torch.Tensor, held: Any = None) -> torch.Tensor:
        out = self.inner(x)
        self.calls += 1
        if self.where == "dict":
            held["k"][:, : x.shape[1]] = out
            return out + held["k"].mean()
        if self.where == "tensor":
            held.add_(out)
            return out
        if self.where == "buffer":
            out, self.before = out + 0.5 * self.before, out
            return out
        if self.calls % 2:
            self.kept["out"] = out
        return self.kept["out"] * 1.0


class Net(torch.nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.inner, self.cache = Remembers(where), {"k": drawn(1, 8, 16, seed=9)}

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        sums = 0.5 * hidden_states
        held = {"dict": self.cache, "tensor": sums}.get(self.inner.where)
        return self.inner(hidden_states, held) + sums + 0 * timestep


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("where", ["dict", "tensor", "buffer", "attribute"])
def test_model_that_writes_anywhere_has_floors_of_rounding(where: str, dtype: torch.dtype, tmp_path: Path) -> None:
    net, scheduler = Net(where).to(dtype), diffusers.FlowMatchEulerDiscreteScheduler()
    net.cache["k"] = net.cache["k"].to(dtype)

    def run() -> torch.Tensor:
        scheduler.set_timesteps(3)
        x = drawn(1, 8, 16).to(dtype)
        for t in scheduler.timesteps:
            x = scheduler.step(net(x, t), t, x, return_dict=False)[0]
        return x

    net.cache["k"].fill_(0.5)
    with torch.no_grad():
        first, *_ = [run() for _ in parity.record(tmp_path / "gpu", transformer=net, scheduler=scheduler)]
        second = run()
    other, scheduler_of = Net(where).to(dtype), scheduler
    other.cache["k"] = torch.full_like(net.cache["k"], 0.5)
    net, scheduler = other, scheduler_of
    with torch.no_grad():
        plain = run(), run()
    assert torch.equal(first, plain[0])
    assert torch.equal(second, plain[1]), "what it remembers is of the first run"
    step = Golden.open(tmp_path / "gpu").read_step(2)
    (after,) = [r for r in step.records if r.key.site == "loop:latents.after"]
    assert after.moments is not None
    far = step.floors[after.key].l2 / after.moments.l2
    assert 0 < far < (1e-5 if dtype is torch.float32 else 3e-2)


class Attends(torch.nn.Module):
    """Its attention takes the weights of a module that it does not call; its table is in float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.rope = Rope()
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor, table: Any = None) -> torch.Tensor:
        x = torch.nn.functional.layer_norm(hidden_states, (16,), self.norm.weight, self.norm.bias)
        x = (x * table).to(hidden_states.dtype)
        return self.attention(x, x, x)[0] * (1 + timestep.to(x.dtype) / 1000)


class Rope(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.arange(8)[None, :, None] / torch.linspace(1, 10, 16)).cos()


@pytest.mark.parametrize("graded", [False, True])
def test_table_that_a_script_makes_in_float32_keeps_its_floor(graded: bool, tmp_path: Path) -> None:
    """Of a model in 16 bits, with and without gradients (as guidance by a gradient has them)."""
    net, scheduler = Attends().bfloat16(), diffusers.FlowMatchEulerDiscreteScheduler()
    for _ in parity.record(tmp_path / "gpu", transformer=net, scheduler=scheduler):
        scheduler.set_timesteps(2)
        x = drawn(1, 8, 16).bfloat16()
        for t in scheduler.timesteps:
            x = x.detach().requires_grad_(graded)
            with torch.set_grad_enabled(graded):
                out = net(x, t, net.rope(x))
            if graded:
                out = out + torch.autograd.grad(out.float().square().mean(), x)[0]
            x = scheduler.step(out.detach(), t, x.detach(), return_dict=False)[0]
    step = Golden.open(tmp_path / "gpu").read_step(0)
    floors = {
        r.key.site: (step.floors[r.key].l2, r.moments.l2) for r in step.records if r.moments and r.key in step.floors
    }
    far = {site: floor / size for site, (floor, size) in floors.items() if size}
    assert far[":in.table"] < 1e-6
    assert 1e-3 < far["loop:noise_pred"] < 5e-2


def test_nothing_of_it_ends_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The script goes elsewhere, draws from numpy, and the disk is full once the floors are to be written."""
    parts, own, count = load(), GoldenWriter.write_step, [0]
    monkeypatch.chdir(tmp_path)

    def full(self: Any, step: Any) -> None:
        count[0] += 1
        if count[0] == 3 * 4 + 2:  # the second step with floors
            raise UsageError("no space left")
        own(self, step)

    monkeypatch.setattr(GoldenWriter, "write_step", full)
    seen, runs = [], []
    for run in parity.record("gpu", **parts.named):
        runs.append(run.first)
        np.random.seed(3)
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        os.chdir(tmp_path / "elsewhere")
        seen.append(generate(parts))
        os.chdir(tmp_path / "elsewhere")
    assert runs == [True, False, False, False]
    golden = Golden.open(tmp_path / "gpu")
    assert (golden.steps, verify(tmp_path / "gpu")) == ((-1, 0, 1), []), "no step is lost"
    said = capsys.readouterr().err
    assert "no space left; gpu keeps the first" in said


def test_body_in_inference_mode(tmp_path: Path) -> None:
    parts = load(torch.bfloat16)
    for _ in parity.record(tmp_path / "gpu", **parts.named):
        with torch.inference_mode():
            generate(parts)
    assert Golden.open(tmp_path / "gpu").read_step(0).floors


def test_pipeline_that_is_left_after_a_step(tmp_path: Path) -> None:
    pipe, call = wan()
    with parity.record(tmp_path / "gpu", pipe, stop_after=1):
        call()
    golden = Golden.open(tmp_path / "gpu")
    assert (golden.steps, bool(golden.read_step(0).floors)) == ((0,), True)


def test_what_a_script_draws_next_is_what_it_would(tmp_path: Path) -> None:
    pipe, call = wan()

    def script(recording: Callable[[], Any]) -> list[float]:
        np.random.seed(1)
        torch.manual_seed(1)
        with recording():
            call()
        return [float(np.random.rand()), float(torch.rand(()))]

    assert script(contextlib.nullcontext) == script(lambda: parity.record(tmp_path / "gpu", pipe))


# --- bodies that cannot run again, or need not


def test_a_script_that_is_not_seeded_is_told_what_differed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts, noise = load(), torch.Generator().manual_seed(1)
    for _ in parity.record(tmp_path / "gpu", **parts.named):
        generate(parts, noise=lambda x: torch.randn(x.shape, generator=noise))
    assert "no floors: loop:latents.before (step 0) was another when the script ran again" in capsys.readouterr().err
    assert not Golden.open(tmp_path / "gpu").read_step(0).floors


class Blown(torch.nn.Module):
    """As a guidance of 3.5 that is multiplied by 1000 in bfloat16: 3504."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.cos(torch.tensor(3.5, dtype=x.dtype) * 1000)


def test_a_seeded_script_whose_rounding_is_blown_up_is_not_told_to_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = load(torch.bfloat16)
    parts.transformer.proj_out = torch.nn.Sequential(parts.transformer.proj_out, Blown())
    for _ in parity.record(tmp_path / "gpu", **parts.named):
        generate(parts)
    told = capsys.readouterr().err
    assert "no floors: loop:latents.after (step 0) was another" in told
    assert ("record it in float32" in told, "seed its generators" in told) == (True, False)


def test_a_script_that_changes_weights_has_no_floors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A LoRA that is merged in the body is merged once more in every run, which widened the floors."""
    parts = load()
    for _ in parity.record(tmp_path / "gpu", **parts.named):
        generate(parts)
        parts.transformer.proj_out.weight.data *= 1.0003
    assert "no floors: the run could not be made again: the script changes weights while it" in capsys.readouterr().err
    assert not Golden.open(tmp_path / "gpu").read_step(0).floors


def test_a_body_that_is_left_keeps_what_was_recorded(tmp_path: Path) -> None:
    parts = load()
    for count, _ in enumerate(parity.record(tmp_path / "gpu", **parts.named)):
        generate(parts)
        if count:
            break
    golden = Golden.open(tmp_path / "gpu")
    assert golden.complete
    assert not golden.read_step(0).floors
    hooks = [h for m in parts.transformer.modules() for h in (m._forward_pre_hooks, m._forward_hooks)]
    assert not any(hooks)


def test_body_of_a_candidate_runs_once(tmp_path: Path) -> None:
    parts = load()
    assert len([generate(parts) for _ in parity.record(tmp_path / "tpu", **parts.named, like="gpu")]) == 1
    assert Golden.open(tmp_path / "tpu").complete


def test_a_body_cannot_be_left_after_a_step(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use `with`"):
        next(iter(parity.record(tmp_path / "gpu", **load().named, stop_after=1)))


# --- Models that remember their calls (caches, counters)


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


def shortened() -> tuple[dict[str, Any], Callable[[], torch.Tensor]]:
    """A loop of one's own that ends before the cache of its model expects it to."""
    pipe, _ = wan()
    model, scheduler, config = pipe.transformer, pipe.scheduler, magnitudes(pipe)
    model.enable_cache(replace(config, num_inference_steps=5, mag_ratios=[1.0] * 5))
    text = drawn(1, 16, model.config.text_dim, seed=3)

    def run() -> torch.Tensor:
        x = drawn(1, model.config.in_channels, 2, 8, 8, seed=5)
        scheduler.set_timesteps(3)
        for t in scheduler.timesteps:
            with model.cache_context("cond"):
                out = model(x, timestep=t[None], encoder_hidden_states=text, return_dict=False)[0]
            x = scheduler.step(out, t, x, return_dict=False)[0]
        return x

    return {"transformer": model, "scheduler": scheduler}, run


SCRIPTS: dict[str, Callable[[], tuple[dict[str, Any], Callable[[], Any]]]] = {
    "counter": counted,
    "PyramidAttentionBroadcast": lambda: cached(broadcast),
    "MagCache": lambda: cached(magnitudes),
    "MagCache, cut short": shortened,
    "FirstBlockCache": lambda: cached(lambda pipe: diffusers.FirstBlockCacheConfig(threshold=0.1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_model_that_remembers_its_calls_computes_the_same(name: str, tmp_path: Path) -> None:
    parts, run = SCRIPTS[name]()
    with torch.no_grad():
        plain = [np.asarray(run()) for _ in range(3)]
    parts, run = SCRIPTS[name]()
    with torch.no_grad():
        if "pipe" in parts:
            with parity.record(tmp_path / "gpu", **parts):
                first = run()
        else:
            first, *_ = [run() for _ in parity.record(tmp_path / "gpu", **parts)]
        second = run()
    third = recorded(tmp_path / "tpu", run, **parts, like=tmp_path / "gpu")
    assert [np.array_equal(a, np.asarray(b)) for a, b in zip(plain, (first, second, third), strict=True)] == [True] * 3
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == "pass", found.reason
