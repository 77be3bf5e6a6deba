"""What goldens cost: records written and read per second, and the diff of mapped values against numpy in memory.

Run `python benchmarks/golden.py` (`--quick` for a tenth of the data). Ratios are of times within one run, so they
compare across machines as the times themselves do not. "plain numpy" is `norm(a - b) / norm(b)` of arrays in memory;
the golden's side of it maps both parts, checks both SHA-256, and takes the same norms block by block.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from parity.golden import Golden, GoldenWriter, Key, Moments, Provenance, Record, StepRecords, distance, geometry, norm
from parity.golden.sketch import EXACT

SITES = 2000
BLOCKS, STEPS, BRANCHES = 54, 50, 2
"""Of HunyuanVideo-1.5, whose block outputs' golden is sized from a measured part."""
PROVENANCE = Provenance("reference", "torch", "benchmark", {}, 0, 1)


def timed(function: Callable[[], object], repeats: int = 3) -> float:
    """The least of a few runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def sketch_step(step: int, seed: int) -> StepRecords:
    rng = np.random.default_rng(seed)
    shape = (1, 1024, 128)
    g = geometry(shape)
    moments = Moments(math.prod(shape), 0, 0, -4.123456789, 4.123456789, 1e-4, 362.0386719)
    keys = (Key("transformer", step, "cond", f"transformer_blocks.{i}.attn:out") for i in range(SITES))
    return StepRecords(
        step,
        tuple(
            Record(key, "tensor", shape, "bfloat16", "", (g.rows, g.channels), moments,
                   rng.standard_normal(EXACT).astype(np.float32))
            for key in keys
        ),
    )  # fmt: skip


def write(folder: Path, *steps: StepRecords) -> None:
    with GoldenWriter(folder, PROVENANCE, overwrite=True) as writer:
        for step in steps:
            writer.write_step(step)


def relative_l2(a: np.ndarray, b: np.ndarray, block: int = 1 << 16) -> float:
    """Block by block, so that nothing as large as the values is made."""
    a, b = a.reshape(-1), b.reshape(-1)
    difference = reference = 0.0
    for start in range(0, a.size, block):
        y = b[start : start + block]
        d = a[start : start + block] - y
        difference += float(d @ d)
        reference += float(y @ y)
    return math.sqrt(difference / reference)


def read_both(a: Path, b: Path, pool: ThreadPoolExecutor) -> tuple[StepRecords, StepRecords]:
    """Both parts at once: hashing lets other threads run."""
    ours, theirs = pool.map(lambda folder: Golden.open(folder).read_step(0), (a, b))
    return ours, theirs


def sketches(folder: Path) -> list[tuple[str, str, str]]:
    a, b = sketch_step(0, 0), sketch_step(0, 1)
    written = timed(lambda: write(folder / "a", a))
    write(folder / "b", b)
    read = timed(lambda: Golden.open(folder / "a").read_step(0))

    def diff() -> None:
        ours, theirs = (Golden.open(folder / name).read_step(0) for name in "ab")
        for x, y in zip(ours.records, theirs.records, strict=True):
            assert x.sketch is not None
            assert y.sketch is not None
            g = geometry(x.shape)
            distance(x.sketch, y.sketch, g) / norm(y.sketch, g)

    record_bytes = Golden.open(folder / "a").bytes / SITES
    return [
        ("sketches written", f"{SITES / written:,.0f} records/s", f"{record_bytes:,.0f} bytes each"),
        ("sketches read and checked", f"{SITES / read:,.0f} records/s", f"{read / written:.2f} of writing"),
        ("two goldens of sketches diffed", f"{SITES / timed(diff):,.0f} sites/s", ""),
        (
            "HunyuanVideo-1.5, block outputs",
            f"{BLOCKS * STEPS * BRANCHES * record_bytes / 1e6:.0f} MB",
            f"{BLOCKS} blocks x {STEPS} steps x {BRANCHES} branches",
        ),
    ]


def values(folder: Path, megabytes: int) -> list[tuple[str, str, str]]:
    shape = (megabytes, 256, 1024)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, dtype=np.float32)
    y = x + np.float32(1e-3) * rng.standard_normal(shape, dtype=np.float32)
    key = Key("transformer", 0, "", "loop:noise_pred")
    for name, value in (("x", x), ("y", y)):
        write(folder / name, StepRecords(0, (Record(key, "tensor", shape, "float32", value=value),)))
    plain = timed(lambda: np.linalg.norm(x - y) / np.linalg.norm(y))
    wide = timed(
        lambda: np.linalg.norm(x.astype(np.float64) - y.astype(np.float64)) / np.linalg.norm(y.astype(np.float64))
    )

    with ThreadPoolExecutor(2) as pool:

        def mapped() -> float:
            ours, theirs = read_both(folder / "x", folder / "y", pool)
            a, b = ours.records[0].value, theirs.records[0].value
            assert isinstance(a, np.ndarray)
            assert isinstance(b, np.ndarray)
            return relative_l2(a, b)

        assert math.isclose(mapped(), float(np.linalg.norm(x - y) / np.linalg.norm(y)), rel_tol=1e-3)
        golden = timed(mapped)
        checked = timed(lambda: read_both(folder / "x", folder / "y", pool))
    size = x.nbytes / 1e9
    return [
        ("plain numpy, float32, in memory", f"{size / plain:.2f} GB/s", "1.00"),
        ("plain numpy, float64, in memory", f"{size / wide:.2f} GB/s", f"{plain / wide:.2f} of plain"),
        ("golden, checked and mapped", f"{size / golden:.2f} GB/s",
         f"{plain / golden:.2f} of plain, {wide / golden:.2f} of float64"),
        ("  of which its checksums", f"{size / checked:.2f} GB/s", f"{checked / golden:.0%} of the time"),
        ("  and without them", f"{size / max(golden - checked, 1e-9):.2f} GB/s",
         f"{plain / max(golden - checked, 1e-9):.2f} of plain"),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    megabytes = 25 if parser.parse_args().quick else 250
    with tempfile.TemporaryDirectory() as folder:
        for row in (*sketches(Path(folder)), *values(Path(folder), megabytes)):
            print(f"{row[0]:<36}{row[1]:>20}  {row[2]}")


if __name__ == "__main__":
    main()
