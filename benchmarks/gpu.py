"""Whether parity works on a GPU: recorded with each kernel, diffed, and compared with torchax there and on the CPU.

    python benchmarks/gpu.py [--jobs N]

The commands themselves on tiny models, without a download: what computes the same must match, and each planted fault
must be seen where it is. It ends with 1 where one does not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

RECORD = "record --model tiny-hunyuan-video-1.5 --side reference"
AGAIN = f"{RECORD} --inputs {{0}}/flex --floors none"
THERE = "record --model tiny-hunyuan-video-1.5 --side candidate --inputs {0}/flex"


@dataclass(frozen=True)
class Check:
    """A command, and how it must end.

    Args:
        fault: what its first divergence must name; "" where it must match. where: what JAX computes on.
    """

    command: str
    fault: str = ""
    where: str = "cpu"

    def run(self, folder: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "parity", *self.command.format(folder).split()]
        environment = {**os.environ, "JAX_PLATFORMS": self.where, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)

    def holds(self, done: subprocess.CompletedProcess[str]) -> bool:
        if not self.fault:
            return done.returncode == 0
        return done.returncode == 1 and any(
            self.fault in line for line in done.stdout.splitlines() if line.startswith(("first divergence:", "reason:"))
        )


GOLDENS = [
    [Check(f"{RECORD} {{0}}/flex")],
    [
        Check(f"{AGAIN} {{0}}/again"),
        Check(f"{AGAIN} --reference attention.kernel=sdpa {{0}}/sdpa"),
        Check(f"{THERE} {{0}}/torchax"),
        Check(f"{THERE} --candidate attention.mask=zero_kv {{0}}/zero_kv"),
    ],
    [
        Check("diff {0}/flex {0}/again"),
        Check("diff {0}/flex {0}/sdpa"),
        Check("diff {0}/flex {0}/torchax"),
        Check("diff {0}/flex {0}/zero_kv", "transformer_blocks.0.attn.attention"),
    ],
]
"""What needs the goldens of the list before it."""
BOTH = "--reference dtype=bfloat16 --candidate dtype=bfloat16"
RUNS = [
    Check("run"),
    Check(f"run {BOTH}"),
    Check("run --steps 4 --stages text,transformer,vae"),
    Check("run --model tiny-cogvideox-1.0"),
    Check("run --model tiny-cogvideox-1.5"),
    Check(f"run --model tiny-cogvideox-1.5 {BOTH}"),
    Check("run --candidate device=cuda"),
    Check("run --candidate device=cpu"),
    Check("run", where="cuda"),
    Check(f"run {BOTH}", where="cuda"),
    Check("run --candidate attention.mask=zero_kv", "transformer_blocks.0.attn.attention"),
    Check(f"run {BOTH} --candidate attention.mask=zero_kv", "transformer_blocks.0.attn.attention"),
    Check("run --candidate attention.mask=zero_kv", "transformer_blocks.0.attn.attention", where="cuda"),
    Check("run --candidate device=cuda --candidate attention.mask=none", "attention"),
    Check("run --candidate vae.scaling=none --stages text,transformer,vae", "vae"),
    Check("run --candidate refiner.mask=none", "context_embedder"),
]  # fmt: skip


def show(check: Check, done: subprocess.CompletedProcess[str]) -> bool:
    """Print how a command ended; whether it is as it must."""
    fine = check.holds(done)
    print(f"{'pass' if fine else 'FAIL'}: {check.command} (JAX on {check.where})", flush=True)
    if not fine:
        print(f"exit {done.returncode}\n{(done.stdout + done.stderr)[-1500:]}", flush=True)
    return fine


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=4, help="commands at the same time")
    jobs = parser.parse_args().jobs
    if not torch.cuda.is_available():
        print("torch sees no GPU here", file=sys.stderr)
        return 2
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    shown: list[bool] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for checks in (*GOLDENS, RUNS):
            done = pool.map(lambda check: check.run(folder), checks)
            shown += map(show, checks, done)
    print(f"{sum(shown)} of {len(shown)} as they must")
    return int(not all(shown))


if __name__ == "__main__":
    sys.exit(main())
