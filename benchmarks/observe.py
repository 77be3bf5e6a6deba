"""What observing costs: a transformer's forward observed over unobserved, compiled (torchax) and eager (torch).

A HunyuanVideo-1.5 transformer of hidden width 512 with random weights, called through the two backends of
`parity.paths`, as a run calls it. Every variant is called in turn, again and again, and each observed call is divided
by the unobserved one of the same turn; the medians of those ratios are shown, so that a machine that slows down slows
both. The same ratio of the process's CPU time (all its threads) says how much more work it is, whatever else runs.
`forward` is the model's call with its reductions, still on the device; `+ records` is everything until the records
are on the host.

    python benchmarks/observe.py [--blocks 3] [--frames 4] [--repeats 7] [--dtype float32] [--only torch]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import torch
from diffusers import HunyuanVideo15Transformer3DModel

from parity.hooks.attach import attached
from parity.hooks.modules import module_tree
from parity.hooks.reduce.transfer import TorchReducer
from parity.hooks.sites import SitePlan, plan_sites
from parity.hooks.tap import Tap
from parity.models.hunyuan_video_15.family import HunyuanVideo15
from parity.models.patches import DTYPES
from parity.models.spec import Case, GenerationSpec
from parity.paths.inputs import Inputs
from parity.paths.jax.candidate import TorchaxBackend
from parity.paths.jax.mesh import make_devices, use_compilation_cache
from parity.paths.loaded import StepCalls, batched
from parity.paths.reference import TorchBackend
from parity.reached import Reached
from parity.settings import parse

AIMS = {("torchax", "blocks"): 1.03, ("torchax", "all"): 1.15, ("torch", "all"): 1.10}


class OneBranch(HunyuanVideo15):
    """Without the other branch, which costs the same once more."""

    batches = (("cond",),)


FAMILY = OneBranch()

VISION, BYT5, QWEN = 16, 32, 128
"""Text tokens of the three streams."""


def make_model(blocks: int, dtype: torch.dtype) -> HunyuanVideo15Transformer3DModel:
    """Random weights; hidden width 512."""
    torch.manual_seed(0)
    model = HunyuanVideo15Transformer3DModel(
        num_attention_heads=4, attention_head_dim=128, num_layers=blocks, num_refiner_layers=1, text_embed_dim=512,
        text_embed_2_dim=256, image_embed_dim=256, rope_axes_dim=(16, 56, 56),
    )  # fmt: skip
    return model.to(dtype).eval().requires_grad_(False)


def make_case(model: HunyuanVideo15Transformer3DModel, frames: int) -> tuple[Case, Inputs]:
    """Latents of `frames` x 32 x 32 tokens and text with padding."""
    shape = (1, 32, frames, 32, 32)
    spec = GenerationSpec(tokenizer_max_length=QWEN, tokenizer_2_max_length=BYT5, vision_num_semantic_tokens=VISION)
    generator = torch.Generator().manual_seed(1)
    condition = {
        "encoder_hidden_states": torch.randn(1, QWEN, 512, generator=generator),
        "encoder_attention_mask": (torch.arange(QWEN) < 60)[None].float(),
        "encoder_hidden_states_2": torch.randn(1, BYT5, 256, generator=generator),
        "encoder_attention_mask_2": (torch.arange(BYT5) < 10)[None].float(),
    }
    noise = torch.randn(shape, generator=generator)
    return Case("bench", Path(), dict(model.config), spec, shape), Inputs({"cond": condition}, noise, 1, 0)


def plans(model: torch.nn.Module, sites: Sequence[str]) -> dict[str, SitePlan | None]:
    names = ["", *module_tree(model)]
    return {"unobserved": None, **{choice: plan_sites(names, choice) for choice in sites}}


Calls = dict[str, tuple[Callable[[], object], Callable[[], object]]]
"""Sites -> (the forward, the forward with its records), each waiting for its result."""


def arguments_of(
    backend: Any, case: Case, inputs: Inputs, settings: Any
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(branch -> its own arguments, the shared ones), as the loop makes them."""
    own = {b: {k: backend.tensor(x.to(backend.dtype)) for k, x in c.items()} for b, c in inputs.conditions.items()}
    latents = backend.tensor(inputs.noise).to(backend.dtype)
    timestep = backend.tensor(torch.tensor([500.0])).to(backend.dtype)
    return own, FAMILY.model_arguments(case, settings, latents, timestep, backend.dtype)


def torch_calls(model: Any, case: Case, inputs: Inputs, dtype: str, sites: Sequence[str]) -> Calls:
    settings = parse("torch", [f"dtype={dtype}", "attention.kernel=sdpa"])
    reached = Reached(settings)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    FAMILY.adapt(model, case, reached, traced=False)
    backend = TorchBackend(model, FAMILY, case, inputs, reached, DTYPES[dtype])
    own, shared = arguments_of(backend, case, inputs, settings)

    def forward(plan: SitePlan | None) -> None:
        with backend.scope():
            if plan is None:
                model(**shared, **own["cond"], return_dict=False)
            else:
                with attached(model, Tap(plan, TorchReducer(), backend.rules["cond"], ("cond",), backend.frames)):
                    model(**shared, **own["cond"], return_dict=False)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def recorded(plan: SitePlan | None) -> None:
        with backend.scope():
            out, _ = backend.call(StepCalls(branches=own, shared=shared, step=0, features={}), plan)
            backend.host(out["cond"])

    return {n: (lambda p=p: forward(p), lambda p=p: recorded(p)) for n, p in plans(model, sites).items()}  # type: ignore[misc]


def torchax_calls(model: Any, case: Case, inputs: Inputs, dtype: str, sites: Sequence[str]) -> Calls:
    settings = parse("torchax", [f"dtype={dtype}"])
    reached = Reached(settings)
    use_compilation_cache()
    backend = TorchaxBackend(model, FAMILY, case, inputs, reached, make_devices(settings))
    with backend.scope():
        FAMILY.adapt(model, case, reached, traced=True)
        own, shared = arguments_of(backend, case, inputs, settings)
        arguments = backend.placed(batched([own["cond"]], shared))
        rows = {"cond": backend.frames["cond"]}

    def program(plan: SitePlan | None) -> Callable[[], object]:
        with backend.scope():
            forward = backend.forward(("cond",), backend.rules["cond"], plan)
            lowered, _ = backend.programs.lowered(forward, backend.params, arguments, rows, None)
            made = lowered.compile()
        return lambda: jax.block_until_ready(made(backend.params, arguments, rows, None))

    def recorded(plan: SitePlan | None) -> None:
        with backend.scope():
            out, _ = backend.call(StepCalls(branches=own, shared=shared, step=0, features={}), plan)
            backend.host(out["cond"])

    return {n: (program(p), lambda p=p: recorded(p)) for n, p in plans(model, sites).items()}  # type: ignore[misc]


def measure(calls: Calls, repeats: int) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """(wall, CPU) seconds of each call of each turn, after one turn to warm up."""
    times: dict[tuple[str, int], list[tuple[float, float]]] = {(name, i): [] for name in calls for i in range(2)}
    for turn in range(repeats + 1):
        for name, pair in calls.items():
            for i, call in enumerate(pair):
                wall, work = time.perf_counter(), time.process_time()
                call()
                if turn:
                    times[name, i].append((time.perf_counter() - wall, time.process_time() - work))
    return times


def show(backend: str, times: Mapping[tuple[str, int], list[tuple[float, float]]]) -> None:
    for (name, i), taken in times.items():
        bases = times["unobserved", i]
        wall, work = (statistics.median(t[c] / b[c] for t, b in zip(taken, bases, strict=True)) for c in range(2))
        took = statistics.median(t[0] for t in taken) * 1e3
        aim = AIMS.get((backend, name), 0.0)
        told = f"{aim:6.2f}" if aim and i == 0 else "     -"
        what = "+ records" if i else "forward"
        print(f"{backend:8} {name:10} {what:10} {took:9.1f} ms {wall:7.3f} {work:7.3f} {told}", flush=True)


def profile(call: Callable[[], object]) -> None:
    """Where an eager call's time goes, by Python function."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.runcall(call)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--frames", type=int, default=2, help="of 1,024 image tokens each")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--sites", default="blocks,all", help="all modules compile for minutes on a CPU")
    parser.add_argument("--only", choices=["torch", "torchax"])
    parser.add_argument("--profile", action="store_true", help="of eager torch with all modules observed")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"torch on {device} ({torch.get_num_threads()} threads), jax on {jax.default_backend()}; {options.dtype}")
    print(f"{options.blocks} blocks of width 512, {options.frames * 1024} image + {VISION + BYT5 + QWEN} text tokens")
    print(f"{'path':8} {'sites':10} {'part':10} {'median':>12} {'wall':>7} {'CPU':>7} {'aim':>6}")
    for backend, make in (("torch", torch_calls), ("torchax", torchax_calls)):
        if options.only not in (None, backend):
            continue
        model = make_model(options.blocks, DTYPES[options.dtype])
        case, inputs = make_case(model, options.frames)
        calls = make(model, case, inputs, options.dtype, options.sites.split(","))
        show(backend, measure(calls, options.repeats))
        if options.profile and backend == "torch":
            profile(list(calls.values())[-1][0])


if __name__ == "__main__":
    main()
