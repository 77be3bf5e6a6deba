"""HunyuanVideo-1.5 at its full size on one GPU, with random weights: what observing costs, and what a diff finds.

    python benchmarks/gpu_full.py [--small] [--frames 5] [--height 30] [--width 52]

The first step of a loop with classifier-free guidance is recorded in bfloat16, with floors. Then candidates are
recorded from the same model: some compute the same in another way, some have a fault. `parity diff` compares each, and
the script ends with 1 if a verdict or its place is wrong. Floors took 44 s on an H200 while it was sampled
for a profile. `--small` runs anywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideo15Transformer3DModel
from torch.nn.attention import SDPBackend, sdpa_kernel

import parity
from parity.hooks.methods import replaced

SMALL: dict[str, Any] = {
    "num_attention_heads": 2, "attention_head_dim": 32, "num_layers": 4, "num_refiner_layers": 1,
    "text_embed_dim": 64, "text_embed_2_dim": 32, "image_embed_dim": 32, "rope_axes_dim": (8, 12, 12),
}  # fmt: skip
SCHEDULE, STEPS, GUIDANCE = 4, 1, 6.0
"""Steps of the schedule, and those that run."""
WORDS = {"cond": (1000, 87, 256, 20), "uncond": (1000, 12, 256, 0)}
"""Places and words of the two text encoders: Qwen's, and ByT5's."""


@dataclass(frozen=True)
class Loop:
    """What is recorded: a model, its inputs, and what a candidate may do otherwise in the loop."""

    model: HunyuanVideo15Transformer3DModel
    noise: torch.Tensor
    text: dict[str, dict[str, torch.Tensor]]
    guidance: float = GUIDANCE
    shift: float = 7.0
    one_batch: bool = False

    def scheduler(self) -> FlowMatchEulerDiscreteScheduler:
        made = FlowMatchEulerDiscreteScheduler(shift=self.shift)
        made.set_timesteps(SCHEDULE, device=self.noise.device)
        return made

    @torch.no_grad()
    def run(self, scheduler: FlowMatchEulerDiscreteScheduler) -> torch.Tensor:
        latents = self.noise
        for t in scheduler.timesteps[:STEPS]:
            x = torch.cat([latents, torch.zeros_like(latents), torch.zeros_like(latents[:, :1])], 1)
            x = x.to(self.model.dtype)
            cond, uncond = self._both(x, t) if self.one_batch else (self._one(x, t, b) for b in ("cond", "uncond"))
            guided = uncond.float() + self.guidance * (cond.float() - uncond.float())
            latents = scheduler.step(guided, t, latents, return_dict=False)[0]
        return latents

    def _one(self, x: torch.Tensor, t: torch.Tensor, branch: str) -> torch.Tensor:
        with self.model.cache_context(branch):
            return self._call(x, t, self.text[branch])

    def _both(self, x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        text = {name: torch.cat([self.text["uncond"][name], own]) for name, own in self.text["cond"].items()}
        out = self._call(torch.cat([x, x]), t, text)
        return out[1:], out[:1]

    def _call(self, x: torch.Tensor, t: torch.Tensor, text: dict[str, torch.Tensor]) -> torch.Tensor:
        given = {name: own.to(x.dtype) for name, own in text.items()}
        return self.model(x, t.expand(len(x)).to(x.dtype), **given, return_dict=False)[0]


def made(small: bool, frames: int, height: int, width: int, device: str) -> Loop:
    """The model with random weights, noise, and embeddings with padding."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = HunyuanVideo15Transformer3DModel(**SMALL if small else {})
        torch.set_default_dtype(before)
        model = model.to(torch.bfloat16).eval().requires_grad_(False)
        noise = torch.randn(1, model.config.out_channels, frames, height, width)
        text = {branch: _text(model, *words) for branch, words in WORDS.items()}
    return Loop(model, noise, text)


def _text(model: Any, places: int, words: int, places_2: int, words_2: int) -> dict[str, torch.Tensor]:
    own, dtype = model.config, model.dtype
    return {
        "encoder_hidden_states": torch.randn(1, places, own.text_embed_dim).to(dtype),
        "encoder_attention_mask": (torch.arange(places) < words)[None].to(dtype),
        "encoder_hidden_states_2": torch.randn(1, places_2, own.text_embed_2_dim).to(dtype),
        "encoder_attention_mask_2": (torch.arange(places_2) < words_2)[None].to(dtype),
        "image_embeds": torch.zeros(1, 729, own.image_embed_dim).to(dtype),
    }


@dataclass(frozen=True)
class Candidate:
    """One that is recorded and compared.

    Args:
        around: what holds while it runs. loop: what runs.
        place: what its first divergence, or a failed check of preflight, must name; "" for one that must match.
    """

    loop: Loop
    around: AbstractContextManager[Any] = field(default_factory=contextlib.nullcontext)
    place: str = ""


@contextlib.contextmanager
def changed(weight: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Within it a parameter has other values."""
    before = weight.clone()
    weight.copy_(change(weight))
    try:
        yield
    finally:
        weight.copy_(before)


def forward(module: Any, change: Callable[..., Any]) -> AbstractContextManager[None]:
    """Within it a module computes `change(its forward, its arguments)`."""
    old = module.forward
    return replaced(module, "forward", functools.wraps(old)(lambda *args, **kwargs: change(old, *args, **kwargs)))


@contextlib.contextmanager
def compiled(model: Any) -> Iterator[None]:
    """Within it each block is compiled."""
    model.compile_repeated_blocks()
    try:
        yield
    finally:
        for module in model.modules():
            module._compiled_call_impl = None


@contextlib.contextmanager
def widened(model: Any) -> Iterator[None]:
    """Within it the model computes in float32, from the same weights."""
    model.float()
    try:
        yield
    finally:
        model.to(torch.bfloat16)


def candidates(loop: Loop) -> dict[str, Candidate]:
    """By what they do otherwise."""
    model: Any = loop.model
    count = len(model.transformer_blocks)
    early, middle, late = (f"transformer_blocks.{part * count // 4}" for part in (1, 2, 3))
    feed, out = (model.get_parameter(f"{early}.ff.net.2.weight"), model.get_parameter(f"{middle}.attn.to_out.0.weight"))
    return {
        "the same once more": Candidate(loop),
        "attention by the efficient kernel": Candidate(loop, sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)),
        "attention by cuDNN": Candidate(loop, sdpa_kernel(SDPBackend.CUDNN_ATTENTION)),
        "attention written out": Candidate(loop, sdpa_kernel(SDPBackend.MATH)),
        "both branches in one batch": Candidate(replace(loop, one_batch=True)),
        "text mask dropped in the refiner": Candidate(
            loop, forward(model.context_embedder, lambda old, x, t, mask=None: old(x, t, None)), "context_embedder"
        ),
        "rotary tables turned by two": Candidate(
            loop, forward(model.rope, lambda old, x: tuple(y.roll(2, -1) for y in old(x))), "rope"
        ),
        "one weight 2 % larger": Candidate(loop, changed(out, lambda w: w * 1.02), f"{middle}.attn.to_out.0.weight"),
        "one weight in float8": Candidate(
            loop, changed(feed, lambda w: w.to(torch.float8_e4m3fn).to(w.dtype)), f"{early}.ff.net.2.weight"
        ),
        "queries 5 % smaller": Candidate(
            loop, forward(model.get_submodule(f"{late}.attn.norm_q"), lambda old, x: old(x) * 0.95), f"{late}.attn"
        ),
        "schedule shifted by 5, not 7": Candidate(replace(loop, shift=5.0), place="schedule"),
        "guidance 5, not 6": Candidate(replace(loop, guidance=5.0), place="noise_pred"),
        "in float32": Candidate(loop, widened(model)),
        "blocks compiled": Candidate(loop, compiled(model)),
    }


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Of a run, and the most memory of the GPU that it took (GiB)."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    run()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began, torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0


def costs(loop: Loop, golden: Path) -> dict[str, tuple[float, float]]:
    """Seconds and memory of the loop as it is, and recorded without and with floors."""
    scheduler = loop.scheduler()
    loop.run(scheduler)

    def recorded(where: Path, runs: int) -> None:
        for _ in parity.record(where, transformer=loop.model, scheduler=scheduler, runs=runs):
            loop.run(_again(scheduler))

    return {
        "as it is": seconds(lambda: loop.run(_again(scheduler))),
        "observed": seconds(lambda: recorded(golden.with_name("observed"), 0)),
        "with floors": seconds(lambda: recorded(golden, 3)),
    }


def _again(scheduler: FlowMatchEulerDiscreteScheduler) -> FlowMatchEulerDiscreteScheduler:
    scheduler.set_timesteps(SCHEDULE, device=scheduler.timesteps.device)
    return scheduler


def compared(candidate: Candidate, golden: Path, where: Path) -> tuple[bool, list[str]]:
    """Whether `parity diff` says of a candidate's recording what it must, and the lines that say it."""
    own = candidate.loop
    scheduler = own.scheduler()
    recorder = parity.record(where, transformer=own.model, scheduler=scheduler, like=golden, overwrite=True)
    with candidate.around, recorder:
        own.run(scheduler)
    command = [sys.executable, "-m", "parity", "diff", str(golden), str(where)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    starts = ("verdict:", "first divergence:", "reason:")
    card = [line for line in done.stdout.splitlines() if line.startswith(starts)] or done.stderr.splitlines()
    if not candidate.place:
        return done.returncode == 0, card
    return done.returncode == 1 and any(candidate.place in line for line in card), card


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="four narrow blocks")
    parser.add_argument("--frames", type=int, default=5)
    parser.add_argument("--height", type=int, default=30)
    parser.add_argument("--width", type=int, default=52)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        golden = Path(folder) / "golden"
        loop = made(options.small, options.frames, options.height, options.width, device)
        for what, (time_taken, memory) in costs(loop, golden).items():
            print(f"{what}: {time_taken:.1f} s, {memory:.1f} GiB", flush=True)
        print(f"golden: {sum(p.stat().st_size for p in golden.rglob('*') if p.is_file()):,} bytes")
        right = []
        for name, candidate in candidates(loop).items():
            try:
                fine, card = compared(candidate, golden, Path(folder) / "candidate")
            except RuntimeError as error:  # a kernel that is not there, or no memory
                print(f"not run: {name}: {str(error).splitlines()[0]}", flush=True)
                continue
            right.append(fine)
            print(f"{'right' if fine else 'WRONG'}: {name}", *card, sep="\n    ", flush=True)
    print(f"{sum(right)} of {len(right)} right")
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
