"""What observing costs HunyuanVideo-1.5 at its full size on TPUs that are not here, by the TPU compiler.

    python benchmarks/full_size.py [--mesh dp=1,sp=1,tp=8] [--depth 2] [--depth 4] [--sites blocks]

121 frames of 720 x 1280 in bfloat16, with splash attention in blocks of 2048, on v6e:2x4. The configs are those of the
checkpoint; no weight is made and nothing runs. Each depth, in transformer blocks, is compiled unobserved and observed.
A line says how many times the temporaries, and the bytes read and written, of a device the observed one needs. A
program takes minutes and gigabytes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.tpu.compiler import ENVIRONMENT

os.environ |= ENVIRONMENT  # before JAX is imported

from jax.experimental import topologies

from parity.hooks.sites import SitePlan, plan_sites
from parity.models.registry import opened
from parity.paths.jax.program import compiled_packed
from parity.settings import parse
from parity.tpu.abstract import Abstract, abstract_candidate

TOPOLOGY = "v6e:2x4"
SETTINGS = (
    "dtype=bfloat16", "matmul_precision=default", "attention.kernel=splash", "attention.block_q=2048",
    "attention.block_kv=2048",
)  # fmt: skip
TRANSFORMER: Mapping[str, Any] = {
    "_class_name": "HunyuanVideo15Transformer3DModel", "attention_head_dim": 128, "image_embed_dim": 1152,
    "in_channels": 65, "mlp_ratio": 4.0, "num_attention_heads": 16, "num_refiner_layers": 2, "out_channels": 32,
    "patch_size": 1, "patch_size_t": 1, "qk_norm": "rms_norm", "rope_axes_dim": [16, 56, 56], "rope_theta": 256.0,
    "target_size": 960, "task_type": "t2v", "text_embed_2_dim": 1472, "text_embed_dim": 3584, "use_meanflow": False,
}  # fmt: skip
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "vae/config.json": {
        "_class_name": "AutoencoderKLHunyuanVideo15", "block_out_channels": [128, 256, 512, 1024, 1024],
        "latent_channels": 32, "layers_per_block": 2, "scaling_factor": 1.03682, "spatial_compression_ratio": 16,
        "temporal_compression_ratio": 4,
    },
    "scheduler/scheduler_config.json": {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 9.0},
    "guider/guider_config.json": {"_class_name": "ClassifierFreeGuidance", "guidance_scale": 6.0},
    "parity.json": {"height": 720, "width": 1280, "num_frames": 121, "prompt": "a red panda holds a sign"},
}  # fmt: skip


def written(folder: Path, blocks: int) -> Path:
    """The checkpoint's folder without its weights, its transformer with that many blocks."""
    for name, config in {**OTHERS, "transformer/config.json": {**TRANSFORMER, "num_layers": blocks}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(config))
    return folder


def compiled(candidate: Abstract, plan: SitePlan | None) -> dict[str, float]:
    """Bytes of a device: its temporaries, and those that are read and written."""
    began = time.perf_counter()
    lowered = candidate.lowered(plan)
    program = lowered.compile() if plan is None else compiled_packed(lowered)  # as a run compiles it
    memory: Any = program.memory_analysis()
    costs: Any = program.cost_analysis()
    seconds = time.perf_counter() - began
    return {"temporaries": memory.temp_size_in_bytes, "bytes": costs["bytes accessed"], "seconds": seconds}


def measure(mesh: str, depth: int, sites: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        family, case = opened(str(written(Path(name), depth)))
        settings = parse("torchax", [*SETTINGS, f"mesh={mesh}"])
        devices = topologies.get_topology_desc(TOPOLOGY, platform="tpu").devices
        candidate = abstract_candidate(family, case, settings, devices)
        plain, observed = (compiled(candidate, plan) for plan in (None, plan_sites(candidate.modules, sites)))
    ratios = ", ".join(f"{what} {observed[what] / plain[what]:.2f}x" for what in ("temporaries", "bytes"))
    sizes = ", ".join(f"{what} {plain[what] / 2**30:.2f} GiB" for what in ("temporaries", "bytes"))
    spent = f"{plain['seconds']:.0f} and {observed['seconds']:.0f} s"
    print(f"{mesh}, {depth} blocks, --sites {sites}: {ratios} of {sizes}; compiled in {spent}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", action="append")
    parser.add_argument("--depth", action="append", type=int)
    parser.add_argument("--sites", default="blocks")
    given = parser.parse_args()
    for mesh in given.mesh or ["dp=1,sp=1,tp=8"]:
        for depth in given.depth or (2, 4):
            measure(mesh, depth, given.sites)
