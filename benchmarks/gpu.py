"""Everything that needs a GPU, printed: the reference's kernels, floors, and what observing costs there.

Built for `make gpu` on one large GPU, at most eight minutes, without a download: the tiny built-in models, and random
weights of the real architecture with about two billion parameters. `--small` runs the same on a CPU, to test this
program; its figures say nothing then.

    python benchmarks/gpu.py [--small]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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


class Size(NamedTuple):
    """The large model: its blocks, heads of 128 channels, latent frames of side x side tokens; rows and columns of the
    matrices whose products are compared; calls of each kind."""

    blocks: int
    heads: int
    frames: int
    side: int
    product: int
    repeats: int


LARGE, SMALL = Size(16, 16, 5, 64, 4096, 5), Size(1, 1, 1, 8, 64, 2)


def products(device: str, size: Size) -> None:
    """Float32 products are float32's: what parity's reference computes, beside TF32, which the check can tell apart."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size.product, size.product, generator=generator).to(device) for _ in range(2))
    truth = a.double() @ b.double()
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        off = float(torch.linalg.vector_norm(a @ b - truth) / torch.linalg.vector_norm(truth))
        print(f"a float32 product with TF32 {'on' if allowed else 'off'}: {off:.2e} from float64")
    torch.backends.cuda.matmul.allow_tf32 = False


def commands(folder: Path) -> None:
    """The reference's kernels against each other and against torchax on the CPU, by the commands themselves."""
    record = ("record", "--model", MODEL, "--steps", "2", "--side", "reference")
    like = ("--inputs", f"{folder}/flex", "--floors", "none")
    run = ("run", "--steps", "2")
    planned = {
        "reference, compiled flex_attention, recorded with floors": (*record, f"{folder}/flex"),
        "reference, sdpa, recorded": (*record, "--candidate", "attention.kernel=sdpa", *like, f"{folder}/sdpa"),
        "the two diffed": ("diff", f"{folder}/flex", f"{folder}/sdpa"),
        "recorded a second time": (*record, *like, f"{folder}/again"),
        "the GPU against itself": ("diff", f"{folder}/flex", f"{folder}/again"),
        "against torchax on the CPU": run,
        "the same in bfloat16": (*run, "--reference", "dtype=bfloat16", "--candidate", "dtype=bfloat16"),
    }
    for what, words in planned.items():
        begun = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "parity", *words], capture_output=True, text=True, check=False)
        said = done.stdout if done.returncode < 2 else done.stderr
        print(f"{what}: exit code {done.returncode}, {time.perf_counter() - begun:.0f} s; {said[-300:]}")


def observing(device: str, size: Size) -> None:
    """What observing costs on a model of the real architecture, and whether it changes a bit."""
    backend, call = _calls(device, size)
    sites = {choice: plan_sites(["", *module_tree(backend.model)], choice) for choice in ("blocks", "all")}
    plans = {"unobserved": None, **sites}
    outputs: dict[str, list[torch.Tensor]] = {name: [] for name in plans}
    times: dict[str, list[float]] = {name: [] for name in plans}
    peaks = dict.fromkeys(plans, 0)
    for turn in range(size.repeats + 1):
        for name, plan in plans.items():
            torch.cuda.reset_peak_memory_stats() if device == "cuda" else None
            begun = time.perf_counter()
            outputs[name].append(call(plan))
            torch.cuda.synchronize() if device == "cuda" else None
            if turn:
                times[name].append(time.perf_counter() - begun)
            peaks[name] = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    for name, taken in times.items():
        ratio = statistics.median(t / b for t, b in zip(taken, times["unobserved"], strict=True))
        print(f"{name}: {statistics.median(taken) * 1e3:.0f} ms, {ratio:.2f} x, peak {peaks[name] / 2**30:.2f} GiB")
    same = all(torch.equal(out, outputs["unobserved"][0]) for name in ("blocks", "all") for out in outputs[name])
    print(f"observed outputs equal the unobserved bit for bit: {'yes' if same else 'no'}")


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
    condition = {"encoder_hidden_states": torch.randn(1, TEXT, 512), "encoder_attention_mask": valid,
                 "encoder_hidden_states_2": torch.randn(1, TEXT, 256), "encoder_attention_mask_2": valid}  # fmt: skip
    inputs = Inputs({"cond": condition}, torch.randn(shape), 1, 0)
    case, settings = Case("gpu", Path(), dict(model.config), spec, shape), parse("torch", ["dtype=bfloat16"])
    reached = Reached(settings)
    FAMILY.adapt(model, case, reached, traced=False)
    backend = TorchBackend(model, FAMILY, case, inputs, reached, torch.bfloat16)
    own, shared = arguments_of(backend, case, inputs, settings)

    def call(plan: Any) -> torch.Tensor:
        with backend.scope():
            return backend.call(StepCalls(branches=own, shared=shared, step=0, features={}), plan)[0]["cond"].clone()

    return backend, call


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="sizes that a CPU can do: to test this program")
    options = parser.parse_args()
    device, size = ("cuda" if torch.cuda.is_available() else "cpu"), SMALL if options.small else LARGE
    if device == "cpu" and not options.small:
        print("no GPU is visible to torch here; --small runs the same on the CPU, to test it", file=sys.stderr)
        return 2
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if device == 'cuda' else 'no GPU'}")
    products(device, size)
    observing(device, size)
    with tempfile.TemporaryDirectory() as folder:
        commands(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
