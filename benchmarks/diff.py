"""What a diff of goldens costs: 5,000 sites x 50 steps, the whole process, against a bare read and a checked one.

    python benchmarks/diff.py [--quick]

In processor time, which other work on the machine changes less than the clock, and its memory. `--quick`: 5 steps.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from parity.golden import (  # fmt: skip
    Floor,
    GoldenWriter,
    Key,
    Moments,
    Provenance,
    Record,
    StepRecords,
    bin_norms,
    geometry,
    sketch,
)

SITES = 5000
FAR, FLOOR = 1e-3, 1e-2
"""Relative; so far above the difference that no row bin of a sketch crosses it by chance."""
PROVENANCE = Provenance("reference", "torch", "benchmark", {}, 0, 1)


def record(index: int, x: np.ndarray) -> Record:
    g = geometry(x.shape)
    moments = Moments(x.size, 0, 0, float(x.min()), float(x.max()), float(x.mean()), float(np.linalg.norm(x)))
    key = Key("transformer", 0, "cond", f"blocks.{index}:out")
    return Record(key, "tensor", x.shape, "float32", "", (g.rows, g.channels), moments, sketch(x))


def floor_of(r: Record) -> tuple[Key, Floor]:
    assert r.moments is not None
    assert r.sketch is not None
    return r.key, Floor(r.moments.l2 * FLOOR, (bin_norms(r.sketch, geometry(r.shape)) * FLOOR).astype(np.float32))


def written(folder: Path, steps: int) -> list[Path]:
    """Both sides' goldens, the reference with floors."""
    rng = np.random.default_rng(0)
    ours = [rng.standard_normal((1, 20, 32), dtype=np.float32) for _ in range(SITES)]
    theirs = [x + np.float32(FAR) * rng.standard_normal(x.shape, dtype=np.float32) for x in ours]
    for name, arrays in (("reference", ours), ("candidate", theirs)):
        records = [record(i, x) for i, x in enumerate(arrays)]
        with GoldenWriter(folder / name, PROVENANCE) as writer:
            for step in range(steps):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sides = written(Path(name), 5 if options.quick else 50)
        files = [file for side in sides for file in side.iterdir()]
        command = [sys.executable, "-m", "parity", "diff", *map(str, sides)]
        bare = spent(lambda: [file.read_bytes() for file in files])
        checked = spent(lambda: [hashlib.sha256(file.read_bytes()).digest() for file in files])
        whole = spent(lambda: subprocess.run(command, check=True, capture_output=True))
        print(f"two goldens of {sum(file.stat().st_size for file in files) / 1e9:.2f} GB together")
        print(f"a bare read {bare:.2f} s, with SHA-256 {checked:.2f} s, parity diff {whole:.2f} s of processors")
        print(
            f"{whole / bare:.1f} x a bare read, {whole / checked:.1f} x a checked one; {memory(command):.0f} MB at most"
        )


if __name__ == "__main__":
    main()
