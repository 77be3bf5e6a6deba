"""What observing costs: `reduce` for torch (eager) and jax (jitted) against a norm and a matrix product.

A ratio to `torch.linalg.vector_norm` of the same tensor says how many bare reads of it a reduction costs; a ratio to
the [rows, C] x [C, C] product says what share of the smallest module around it that is. All are timed in turn, again
and again, and their medians compared, so that a machine that slows down slows all of them down.

    python benchmarks/reduce.py [--repeats 25]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

from parity.hooks.reduce import on_jax as reduce_jax
from parity.hooks.reduce import on_torch as reduce_torch

SHAPES = [(4096, 512), (1024, 2048), (16384, 1024)]
DTYPES = ["float32", "bfloat16"]


def medians(tasks: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each task, run in turn `repeats` times after one warm-up."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(repeats + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def tasks_for(shape: tuple[int, int], dtype: str) -> dict[str, Callable[[], object]]:
    """What is timed, each task waiting for its result."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    w = torch.randn(shape[1], shape[1], generator=generator)
    xj, wj = (jnp.asarray(v.numpy()).astype(dtype) for v in (x, w))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    xt, wt = (v.to(device, getattr(torch, dtype)) for v in (x, w))
    product = jax.jit(jnp.matmul)

    def waited(task: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            task()
            if device.type == "cuda":
                torch.cuda.synchronize()

        return run

    return {
        "norm": waited(lambda: torch.linalg.vector_norm(xt)),
        "matmul": waited(lambda: xt @ wt),
        "torch": waited(lambda: reduce_torch.reduce(xt)),
        "jax matmul": lambda: jax.block_until_ready(product(xj, wj)),
        "jax": lambda: jax.block_until_ready(reduce_jax.reduce(xj)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=25)
    repeats = parser.parse_args().repeats
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"torch on {device}, jax on {jax.default_backend()}; medians of {repeats}")
    print(f"{'shape':>14} {'dtype':>9} {'norm':>8} | {'torch':>8} {'/norm':>6} {'/matmul':>8} | ", end="")
    print(f"{'jax':>8} {'/norm':>6} {'/matmul':>8} {'/jax mm':>8}")
    for shape in SHAPES:
        for dtype in DTYPES:
            t = medians(tasks_for(shape, dtype), repeats)
            print(f"{shape!s:>14} {dtype:>9} {t['norm'] * 1e3:6.2f}ms | ", end="")
            print(f"{t['torch'] * 1e3:6.2f}ms {t['torch'] / t['norm']:6.1f} {t['torch'] / t['matmul']:8.2f} | ", end="")
            print(f"{t['jax'] * 1e3:6.2f}ms {t['jax'] / t['norm']:6.1f} {t['jax'] / t['matmul']:8.2f} ", end="")
            print(f"{t['jax'] / t['jax matmul']:8.2f}", flush=True)


if __name__ == "__main__":
    main()
