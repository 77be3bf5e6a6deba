"""Everything that needs a GPU, in one report: the reference's kernels, floors, and what observing costs there.

Built for `make gpu` on one large GPU, at most eight minutes, without a download: the tiny built-in models, and random
weights of the real architecture with about two billion parameters, made in memory. On a machine without a GPU the same
code runs on the CPU with `--small`, which is how it is tested; its figures say nothing then, and the report says so.

    python benchmarks/gpu.py [--small] [--markdown docs/gpu.md]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the candidate; the GPU is the reference's

import torch
from diffusers import HunyuanVideo15Transformer3DModel
from observe import FAMILY, arguments_of

from parity.hooks.modules import module_tree
from parity.hooks.sites import plan_sites
from parity.models.spec import Case, GenerationSpec
from parity.paths.inputs import Inputs
from parity.paths.loaded import StepCalls
from parity.paths.reference import TorchBackend
from parity.reached import Reached
from parity.settings import parse

MODEL = "tiny-hunyuan-video-1.5"
TEXT = 128
"""Text tokens of each stream of the large model."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """The large model.

    Attributes:
        blocks, heads: of it, heads of 128 channels. frames, side: latent frames of side x side tokens.
        product: rows and columns of the matrices whose products are compared. repeats: calls of each kind.
    """

    blocks: int
    heads: int
    frames: int
    side: int
    product: int
    repeats: int


LARGE = Size(blocks=16, heads=16, frames=5, side=64, product=4096, repeats=5)
SMALL = Size(blocks=1, heads=1, frames=1, side=8, product=64, repeats=2)


@dataclass(frozen=True)
class Section:
    """A heading and its lines, each a figure with what it is of."""

    title: str
    lines: tuple[str, ...]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative L2 distance in float64."""
    a, b = a.double(), b.double()
    return float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b))


def products(device: str, size: Size) -> Section:
    """Float32 products are float32's: what parity's reference computes, beside TF32, which the check can tell apart."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size.product, size.product, generator=generator).to(device) for _ in range(2))
    truth = a.double() @ b.double()
    lines = [f"torch.backends.cuda.matmul.allow_tf32 by default: {torch.backends.cuda.matmul.allow_tf32}"]
    before = torch.backends.cuda.matmul.allow_tf32
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        lines.append(
            f"a float32 product with TF32 {'on' if allowed else 'off'}: {distance(a @ b, truth):.2e} from float64"
        )
    torch.backends.cuda.matmul.allow_tf32 = before
    for reduced in (True, False):
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced
        said = "with" if reduced else "without"
        product = a.bfloat16() @ b.bfloat16()
        lines.append(f"a bfloat16 product {said} reductions of reduced precision: {distance(product, truth):.2e}")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    return Section("Products", tuple(lines))


def commands(folder: Path) -> Section:
    """The reference's kernels against each other and against torchax on the CPU, by the commands themselves."""
    record = ("record", "--model", MODEL, "--steps", "2", "--side", "reference")
    planned = {
        "reference, compiled flex_attention, recorded with floors": (*record, str(folder / "flex")),
        "reference, sdpa, recorded": (*record, "--setting", "attention.kernel=sdpa", "--like", str(folder / "flex"),
                                      "--floors", "none", str(folder / "sdpa")),
        "the two diffed": ("diff", str(folder / "flex"), str(folder / "sdpa")),
        "recorded a second time": (*record, "--floors", "none", "--like", str(folder / "flex"), str(folder / "again")),
        "the GPU against itself": ("diff", str(folder / "flex"), str(folder / "again")),
        "against torchax on the CPU": ("run", "--model", MODEL, "--steps", "2"),
        "the same in bfloat16": ("run", "--model", MODEL, "--steps", "2", "--reference", "dtype=bfloat16",
                                 "--candidate", "dtype=bfloat16"),
    }  # fmt: skip
    return Section("Commands", tuple(f"{what}: {_command(words)}" for what, words in planned.items()))


def _command(words: tuple[str, ...]) -> str:
    """A command's verdict and largest difference, or its last words; with its time."""
    begun = time.perf_counter()
    asked = [*words, "--json"] if words[0] != "record" else list(words)
    done = subprocess.run([sys.executable, "-m", "parity", *asked], capture_output=True, text=True, check=False)
    took = f"{time.perf_counter() - begun:.0f} s"
    if done.returncode > 1 or words[0] == "record":
        said = (done.stderr.strip().splitlines() or [""])[-1]
        return f"exit code {done.returncode}, {took}" + (f": {said}" if done.returncode else "")
    found = json.loads(done.stdout)
    noise = [step["noise_pred"] for step in found["steps"]]
    worst = max(noise, key=lambda n: n["ratio"] if isinstance(n["ratio"], float) else 0.0)
    return f"{found['verdict']}, noise_pred {worst['rel_l2']:.2e}, floor {worst['floor']:.2e}, {took}"


def large(device: str, size: Size) -> Section:
    """What observing costs on a model of the real architecture, and whether it changes a bit."""
    backend, call = _calls(device, size)
    names = ["", *module_tree(backend.model)]
    plans = {"unobserved": None, **{choice: plan_sites(names, choice) for choice in ("blocks", "all")}}
    outputs: dict[str, list[torch.Tensor]] = {name: [] for name in plans}
    times: dict[str, list[float]] = {name: [] for name in plans}
    peaks: dict[str, int] = {}
    for turn in range(size.repeats + 1):
        for name, plan in plans.items():
            with _Peak(device) as held:
                begun = time.perf_counter()
                out = call(plan)
                _wait(device)
            if turn:
                times[name].append(time.perf_counter() - begun)
                outputs[name].append(out)
            peaks[name] = held[0]
    first = outputs["unobserved"][0]
    count = sum(p.numel() for p in backend.model.parameters())
    tokens = size.frames * size.side * size.side
    lines = [f"{count / 1e9:.2f} billion parameters, {tokens:,} image tokens, bfloat16"]
    for name, taken in times.items():
        ratio = statistics.median(t / b for t, b in zip(taken, times["unobserved"], strict=True))
        peak = f"peak {peaks[name] / 2**30:.2f} GiB"
        lines.append(f"{name}: {statistics.median(taken) * 1e3:.0f} ms, {ratio:.2f} x unobserved, {peak}")
    observed = all(torch.equal(out, first) for name in ("blocks", "all") for out in outputs[name])
    again = [distance(out, first) for out in outputs["unobserved"][1:]]
    lines.append(f"observed outputs equal the unobserved bit for bit: {'yes' if observed else 'no'}")
    lines.append(f"the same call again, unobserved: {max(again):.2e} apart at most")
    return Section("A model of the real architecture", tuple(lines))


def _calls(device: str, size: Size) -> tuple[TorchBackend, Callable[[Any], torch.Tensor]]:
    torch.manual_seed(0)
    with torch.device(device):
        model = HunyuanVideo15Transformer3DModel(
            num_attention_heads=size.heads, attention_head_dim=128, num_layers=size.blocks, num_refiner_layers=1,
            text_embed_dim=512, text_embed_2_dim=256, image_embed_dim=256, rope_axes_dim=(16, 56, 56),
        )  # fmt: skip
    model = model.to(torch.bfloat16).eval().requires_grad_(False)
    shape = (1, 32, size.frames, size.side, size.side)
    spec = GenerationSpec(tokenizer_max_length=TEXT, tokenizer_2_max_length=TEXT, vision_num_semantic_tokens=16)
    valid = (torch.arange(TEXT) < TEXT // 2)[None].float()
    generator = torch.Generator().manual_seed(1)
    condition = {
        "encoder_hidden_states": torch.randn(1, TEXT, 512, generator=generator),
        "encoder_attention_mask": valid,
        "encoder_hidden_states_2": torch.randn(1, TEXT, 256, generator=generator),
        "encoder_attention_mask_2": valid,
    }
    inputs = Inputs({"cond": condition}, torch.randn(shape, generator=generator), 1, 0)
    case = Case("gpu", Path(), dict(model.config), spec, shape)
    settings = parse("torch", ["dtype=bfloat16"])
    reached = Reached(settings)
    FAMILY.adapt(model, case, reached, traced=False)
    backend = TorchBackend(model, FAMILY, case, inputs, reached, torch.bfloat16)
    own, shared = arguments_of(backend, case, inputs, settings)

    def call(plan: Any) -> torch.Tensor:
        with backend.scope():
            return backend.call(StepCalls(branches=own, shared=shared, step=0, features={}), plan)[0]["cond"].clone()

    return backend, call


class _Peak:
    """The largest memory that the device held within it, as a list of one; zero on a CPU."""

    def __init__(self, device: str) -> None:
        self.device, self.held = device, [0]

    def __enter__(self) -> list[int]:
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        return self.held

    def __exit__(self, *ended: object) -> None:
        if self.device == "cuda":
            self.held[0] = torch.cuda.max_memory_allocated()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def machine(device: str) -> Section:
    """What was measured on."""
    lines = [f"torch {torch.__version__}, Python {platform.python_version()}"]
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        lines.append(f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}, CUDA {torch.version.cuda}")
    else:
        lines.append("no GPU: what follows ran on the CPU, to test this program; the figures say nothing about a GPU")
    return Section("Machine", tuple(lines))


def sections(device: str, size: Size) -> Iterator[Section]:
    """The report's sections as they are measured."""
    yield machine(device)
    yield products(device, size)
    yield large(device, size)
    with tempfile.TemporaryDirectory() as folder:
        yield commands(Path(folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="sizes that a CPU can do: to test this program")
    parser.add_argument("--markdown", type=Path, help="write the report here, on a GPU alone")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.small:
        print("no GPU is visible to torch here; --small runs the same on the CPU, to test it", file=sys.stderr)
        return 2
    text = "# Measured on a GPU\n\nBy `make gpu` (`benchmarks/gpu.py`).\n"
    for section in sections(device, SMALL if options.small else LARGE):
        part = "\n".join([f"\n## {section.title}\n", *(f"- {line}" for line in section.lines)])
        print(part, flush=True)
        text += part + "\n"
    if options.markdown is not None and device == "cuda":
        options.markdown.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
