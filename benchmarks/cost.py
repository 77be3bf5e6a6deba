"""What observing and a diff of goldens cost, in processor time, which other work changes less than the clock.

    python benchmarks/cost.py observe|diff

`observe`: a HunyuanVideo-1.5 transformer of hidden width 512 with two blocks and random weights, called through the two
backends of `parity.paths` as a run calls it, compiled (torchax) and eager (torch). Every variant is called in turn,
again and again, and each observed call is divided by the unobserved one of the same turn; the medians of those ratios
are shown, so that a machine that slows down slows both. `forward` is the model's call with its reductions, still on the
device; `+ records` is everything until the records are on the host.

`diff`: 5,000 sites x 50 steps, the whole process, against a bare read and a checked one, and the memory it takes.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from diffusers import HunyuanVideo15Transformer3DModel

from parity.golden.disk.write import GoldenWriter
from parity.hooks.attach import attached
from parity.hooks.reduce.on_torch import TorchReducer
from parity.hooks.sites import SitePlan, plan_sites
from parity.hooks.tap import Tap
from parity.hooks.torchtools import module_tree
from parity.models.folder import Case, GenerationSpec
from parity.models.hunyuan_video_15 import HunyuanVideo15
from parity.paths.jax.candidate import TorchaxBackend
from parity.paths.jax.mesh import make_devices, use_compilation_cache
from parity.paths.loaded import Inputs, StepCalls, batched
from parity.paths.network import Network
from parity.paths.reference import TorchBackend
from parity.records import Floor, Key, Moments, Provenance, Record, StepRecords
from parity.settings import Reached, parse
from parity.sketch import bin_norms, geometry, sketch

# --- observing

VISION, BYT5, QWEN = 16, 32, 128
"""Text tokens of the three streams."""
FRAMES, REPEATS = 2, 7
"""Latent frames of 32 x 32 tokens each; turns that are measured."""


class OneBranch(HunyuanVideo15):
    """Without the other branch, which costs the same once more."""

    batches = (("cond",),)


FAMILY = OneBranch()

Forward = Callable[[], object]


def make_model() -> HunyuanVideo15Transformer3DModel:
    torch.manual_seed(0)
    model = HunyuanVideo15Transformer3DModel(
        num_attention_heads=4, attention_head_dim=128, num_layers=2, num_refiner_layers=1, text_embed_dim=512,
        text_embed_2_dim=256, image_embed_dim=256, rope_axes_dim=(16, 56, 56),
    )  # fmt: skip
    return model.eval().requires_grad_(False)


def make_case(model: HunyuanVideo15Transformer3DModel) -> tuple[Case, Inputs]:
    """Noise, and text with padding."""
    shape = (1, 32, FRAMES, 32, 32)
    spec = GenerationSpec(tokenizer_max_length=QWEN, tokenizer_2_max_length=BYT5, vision_num_semantic_tokens=VISION)
    condition = {
        "encoder_hidden_states": torch.randn(1, QWEN, 512),
        "encoder_attention_mask": (torch.arange(QWEN) < 60)[None].float(),
        "encoder_hidden_states_2": torch.randn(1, BYT5, 256),
        "encoder_attention_mask_2": (torch.arange(BYT5) < 10)[None].float(),
    }
    return Case("bench", Path(), dict(model.config), spec, shape), Inputs({"cond": condition}, torch.randn(shape), 1, 0)


def calls_of(path: str) -> dict[str, tuple[Forward, Forward]]:
    """Sites -> (the forward, the forward with its records), each waiting for its result."""
    settings = parse(path, ["attention.kernel=sdpa"] if path == "torch" else [])  # type: ignore[arg-type]
    model, reached = make_model(), Reached(settings)
    case, inputs = make_case(model)
    if path == "torch":
        FAMILY.adapt(model, case, reached, traced=False)
        backend: Any = TorchBackend(model, Network(FAMILY, case), inputs, reached)
    else:
        use_compilation_cache()
        backend = TorchaxBackend(model, Network(FAMILY, case), inputs, reached, make_devices(settings))
        with backend.scope():
            FAMILY.adapt(model, case, reached, traced=True)
    with backend.scope():
        own = {"cond": {name: backend.tensor(x) for name, x in inputs.conditions["cond"].items()}}
        latents, timestep = backend.tensor(inputs.noise), backend.tensor(torch.tensor([500.0]))
        shared = FAMILY.model_arguments(case, settings, latents, timestep, backend.dtype)

    def eager(plan: SitePlan | None) -> Forward:
        def forward() -> None:
            with backend.scope():
                if plan is None:
                    model(**shared, **own["cond"], return_dict=False)
                    return
                with attached(model, Tap(plan, TorchReducer(), backend.rules["cond"], ("cond",), backend.frames)):
                    model(**shared, **own["cond"], return_dict=False)

        return forward

    def compiled(plan: SitePlan | None) -> Forward:
        with backend.scope():
            forward = backend.forward(("cond",), backend.rules["cond"], plan)
            given = backend.placed(batched([own["cond"]], shared)), {"cond": backend.frames["cond"]}, None
            program = backend.programs.lowered(forward, backend.params, *given)[0].compile()
        return lambda: jax.block_until_ready(program(backend.params, *given))

    def recorded(plan: SitePlan | None) -> Forward:
        def call() -> None:
            with backend.scope():
                out, _ = backend.call(StepCalls(branches=own, shared=shared, step=0, features={}), plan)
                backend.host(out["cond"])

        return call

    names = ["", *module_tree(model)]
    plans = {"unobserved": None, **{sites: plan_sites(names, sites) for sites in ("blocks", "all")}}
    forward_of = eager if path == "torch" else compiled
    return {sites: (forward_of(plan), recorded(plan)) for sites, plan in plans.items()}


def observe() -> None:
    print(f"torch ({torch.get_num_threads()} threads), jax on {jax.default_backend()}; float32")
    print(f"2 blocks of width 512, {FRAMES * 1024} image + {VISION + BYT5 + QWEN} text tokens")
    print(f"{'path':8} {'sites':10} {'part':10} {'median':>12} {'wall':>7} {'CPU':>7}")
    for path in ("torch", "torchax"):
        calls = calls_of(path)
        for i, part in enumerate(("forward", "+ records")):
            times: dict[str, list[np.ndarray]] = {sites: [] for sites in calls}
            for _ in range(REPEATS + 1):
                for sites, pair in calls.items():
                    began = np.array([time.perf_counter(), time.process_time()])
                    pair[i]()
                    times[sites].append(np.array([time.perf_counter(), time.process_time()]) - began)
            for sites, taken in times.items():
                ratios = np.array(taken[1:]) / np.array(times["unobserved"][1:])  # the first turn warms up
                wall, work = np.median(ratios, axis=0)
                took = statistics.median(t[0] for t in taken[1:]) * 1e3
                print(f"{path:8} {sites:10} {part:10} {took:9.1f} ms {wall:7.3f} {work:7.3f}", flush=True)


# --- a diff

SITES, STEPS = 5000, 50
FAR, FLOOR = 1e-3, 1e-2
"""Relative; so far above the difference that no row bin of a sketch crosses it by chance."""


def record(index: int, x: np.ndarray) -> Record:
    g, key = geometry(x.shape), Key("transformer", 0, "cond", f"blocks.{index}:out")
    moments = Moments(x.size, 0, 0, float(x.min()), float(x.max()), float(x.mean()), float(np.linalg.norm(x)))
    return Record(key, "tensor", x.shape, "float32", "", (g.rows, g.channels), moments, sketch(x))


def floor_of(r: Record) -> tuple[Key, Floor]:
    assert r.moments is not None
    assert r.sketch is not None
    return r.key, Floor(r.moments.l2 * FLOOR, (bin_norms(r.sketch, geometry(r.shape)) * FLOOR).astype(np.float32))


def written(folder: Path) -> list[Path]:
    """Both sides' goldens, the reference with floors."""
    rng = np.random.default_rng(0)
    ours = [rng.standard_normal((1, 20, 32), dtype=np.float32) for _ in range(SITES)]
    theirs = [x + np.float32(FAR) * rng.standard_normal(x.shape, dtype=np.float32) for x in ours]
    for name, arrays in (("reference", ours), ("candidate", theirs)):
        records = [record(i, x) for i, x in enumerate(arrays)]
        with GoldenWriter(folder / name, Provenance("reference", "torch", "benchmark", {}, 0, 1)) as writer:
            for step in range(STEPS):
                moved = tuple(replace(r, key=replace(r.key, step=step)) for r in records)
                writer.write_step(StepRecords(step, moved, dict(map(floor_of, moved)) if name == "reference" else {}))
    return [folder / "reference", folder / "candidate"]


def spent(function: Callable[[], object]) -> float:
    """Processor seconds, the least of three runs."""

    def used() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(u.ru_utime + u.ru_stime for u in both)

    found = []
    for _ in range(3):
        before = used()
        function()
        found.append(used() - before)
    return min(found)


def memory(command: list[str]) -> float:
    """MB that a process takes at most, started by a small one: it inherits the figure of the process that starts it."""
    program = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2)\n"
    program += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", program, *command], check=True, capture_output=True)
    return int(done.stdout) / 1024


def diff() -> None:
    with tempfile.TemporaryDirectory() as name:
        sides = written(Path(name))
        files = [file for side in sides for file in side.iterdir()]
        command = [sys.executable, "-m", "parity", "diff", *map(str, sides)]
        bare = spent(lambda: [file.read_bytes() for file in files])
        checked = spent(lambda: [hashlib.sha256(file.read_bytes()).digest() for file in files])
        whole = spent(lambda: subprocess.run(command, check=True, capture_output=True))
        print(f"two goldens of {sum(file.stat().st_size for file in files) / 1e9:.2f} GB together")
        print(f"a bare read {bare:.2f} s, with SHA-256 {checked:.2f} s, parity diff {whole:.2f} s of processors")
        print(f"{whole / bare:.1f} x a bare read, {whole / checked:.1f} x a checked one; {memory(command):.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("observe", "diff"))
    {"observe": observe, "diff": diff}[parser.parse_args().what]()
