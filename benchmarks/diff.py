"""What a diff of goldens costs, as ratios within one run.

Run `python benchmarks/diff.py` (`--quick` for a tenth of the data, `--no-msprobe` to leave out the other tool,
`--long` for the many steps alone).

- Full values: `parity.compare.diff.diff` of two goldens on disk (mapped, both SHA-256 checked, judged) against
  plain numpy, `norm(y - x) / norm(x)` of the same arrays in memory.
- Sketches: sites diffed per second, of two goldens of 2,000 sites.
- Many steps: 5,000 sites x 50 steps, the whole process against a bare read of both sides and against reading them
  with their checksums, in wall time and in processor time, and its memory. The bound is what no diff that checks
  checksums can be faster than: SHA-256 of both sides at once, in as many threads, and the start of Python with numpy.
  From disk: the page cache has neither side, and both are read as a machine reads what it has just been given.
- mindstudio-probe's `msprobe compare` of the same tensors, as two whole processes. It is installed into an environment
  in a temporary folder that borrows this one's torch; where that fails it is said.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import site
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from parity.compare.diff import diff
from parity.compare.metrics import compare_values
from parity.golden import (
    Floor,
    Golden,
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

SITES = 2000
FAR = 1e-3
FLOOR = 1e-2
"""Relative; so far above the difference that no row bin of a sketch crosses it by chance."""
PROVENANCE = Provenance("reference", "torch", "benchmark", {}, 0, 1)
MSPROBE = "mindstudio-probe"
MSPROBE_NEEDS = ("pandas", "openpyxl", "packaging", "psutil", "pytz", "pyyaml", "tqdm", "einops", "matplotlib",
                 "tensorboard")  # fmt: skip
"""What its compare imports; its own list has converters of other formats too."""

Row = tuple[str, str, str]
Spent = tuple[float, float]
"""Seconds: of the clock, of processors."""


def timed(function: Callable[[], object], repeats: int = 3) -> float:
    """The least of a few runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def pairs(count: int, shape: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        x = rng.standard_normal(shape, dtype=np.float32)
        made.append((x, x + np.float32(FAR) * rng.standard_normal(shape, dtype=np.float32)))
    return made


def record(index: int, x: np.ndarray, *, value: bool) -> Record:
    g = geometry(x.shape)
    moments = Moments(x.size, 0, 0, float(x.min()), float(x.max()), float(x.mean()), float(np.linalg.norm(x)))
    key = Key("transformer", 0, "cond", f"blocks.{index}:out")
    taken = None if value else sketch(x)
    return Record(key, "tensor", x.shape, "float32", "", (g.rows, g.channels), moments, taken, x if value else None)


def write(folder: Path, arrays: Sequence[tuple[np.ndarray, np.ndarray]], *, value: bool) -> tuple[Path, Path]:
    """Both sides' goldens, the reference with floors."""
    for side, name in enumerate(("reference", "candidate")):
        records = tuple(record(i, pair[side], value=value) for i, pair in enumerate(arrays))
        floors = {}
        for r in () if side else records:
            assert r.moments is not None
            bins = None if r.sketch is None else (bin_norms(r.sketch, geometry(r.shape)) * FLOOR).astype(np.float32)
            floors[r.key] = Floor(r.moments.l2 * FLOOR, bins)
        with GoldenWriter(folder / name, PROVENANCE) as writer:
            writer.write_step(StepRecords(0, records, floors))
    return folder / "reference", folder / "candidate"


def judged(sides: tuple[Path, Path]) -> None:
    assert diff(*sides).verdict == "pass"


def values(folder: Path, arrays: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[list[Row], tuple[Path, Path]]:
    sides = write(folder, arrays, value=True)
    size = sum(x.nbytes for x, _ in arrays) / 1e9
    plain = timed(lambda: [np.linalg.norm(y - x) / np.linalg.norm(x) for x, y in arrays])
    blocks = timed(lambda: [compare_values(x, y) for x, y in arrays])
    whole = timed(lambda: judged(sides))

    def read() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda where: Golden.open(where).read_step(0), sides))

    checked = timed(read)
    return [
        ("plain numpy, in memory", f"{size / plain:.2f} GB/s", "1.00"),
        ("parity's own norms, in memory", f"{size / blocks:.2f} GB/s", f"{plain / blocks:.2f} of plain"),
        ("parity diff, from disk, checked", f"{size / whole:.2f} GB/s", f"{plain / whole:.2f} of plain (aim 0.50)"),
        ("  of which SHA-256 of both sides", f"{size / checked:.2f} GB/s", f"{checked / whole:.0%} of its time"),
    ], sides


def sketches(folder: Path) -> list[Row]:
    sides = write(folder, pairs(SITES, (64, 64)), value=False)
    whole = timed(lambda: judged(sides))
    read = timed(lambda: [Golden.open(where).read_step(0) for where in sides])
    return [
        ("sketches diffed", f"{SITES / whole:,.0f} sites/s", ""),
        ("  of which reading both", f"{SITES / read:,.0f} sites/s", f"{read / whole:.0%} of its time"),
    ]


def long_run(folder: Path, sites: int, steps: int) -> list[Row]:
    """Many steps of small sketches: time and memory of the whole process against a plain read of both."""
    arrays = pairs(sites, (1, 20, 32))
    folders = [folder / name for name in ("reference", "candidate")]
    for side, where in enumerate(folders):
        with GoldenWriter(where, PROVENANCE) as writer:
            for step in range(steps):
                made = [record(i, pair[side], value=False) for i, pair in enumerate(arrays)]
                moved = [replace(r, key=replace(r.key, step=step)) for r in made]
                writer.write_step(StepRecords(step, tuple(moved), {} if side else dict(map(floor_of, moved))))
    files = [file for where in folders for file in sorted(where.iterdir())]
    size = sum(file.stat().st_size for file in files) / 1e9

    def bare() -> None:
        for file in files:
            file.read_bytes()

    def checked(file: Path) -> str:
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def at_once() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(checked, files))

    own = [sys.executable, "-m", "parity.cli", "diff", *map(str, folders)]
    start = [sys.executable, "-c", "import numpy"]
    least = spent(bare)
    read, bound = spent(lambda: list(map(checked, files))), spent(at_once)
    begun, whole = (spent(lambda c=c: subprocess.run(c, check=True, capture_output=True)) for c in (start, own))
    most = memory(own)
    bound = bound[0] + begun[0], bound[1] + begun[1]

    def row(name: str, of: Spent) -> Row:
        ratios = [f"{a / b:.1f} x" for one in (least, read) for a, b in zip(of, one, strict=True)]
        return (
            name,
            f"{of[0]:.2f} s",
            f"{of[1]:.2f} s of CPU; bare {ratios[0]}, {ratios[1]}; checked {ratios[2]}, {ratios[3]}",
        )

    return [
        row(f"{sites} sites x {steps} steps, {size:.2f} GB", least),
        row("  read with checksums", read),
        row("  bound: checksums at once, start", bound),
        row("  parity diff, the whole process", whole),
        *from_disk(files, bare, lambda: subprocess.run(own, check=True, capture_output=True)),
        ("  its memory at most", f"{most:.0f} MB", "aim 400"),
    ]


def from_disk(files: Sequence[Path], bare: Callable[[], object], whole: Callable[[], object]) -> list[Row]:
    """The same where nothing is in the page cache, as of goldens that were just brought from elsewhere: wall time."""
    if not hasattr(os, "posix_fadvise"):
        return []

    def cold(function: Callable[[], object]) -> float:
        for file in files:
            with file.open("rb") as held:
                os.fsync(held.fileno())
                os.posix_fadvise(held.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return timed(function, 1)

    read, diffed = (min(cold(f) for _ in range(3)) for f in (bare, whole))
    return [
        ("  from disk: a bare read", f"{read:.2f} s", ""),
        ("  from disk: parity diff", f"{diffed:.2f} s", f"bare {diffed / read:.1f} x (aim 4)"),
    ]


def floor_of(r: Record) -> tuple[Key, Floor]:
    assert r.moments is not None
    assert r.sketch is not None
    return r.key, Floor(r.moments.l2 * FLOOR, (bin_norms(r.sketch, geometry(r.shape)) * FLOOR).astype(np.float32))


def spent(function: Callable[[], object], repeats: int = 3) -> Spent:
    """The least of a few runs: wall time, and processor seconds, which other work on the machine changes less."""

    def used() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(u.ru_utime + u.ru_stime for u in both)

    found = []
    for _ in range(repeats):
        processor, wall = used(), time.perf_counter()
        function()
        found.append((time.perf_counter() - wall, used() - processor))
    return min(w for w, _ in found), min(p for _, p in found)


def memory(command: Sequence[str]) -> float:
    """MB that a process takes at most, started by a small one: it inherits the figure of the process that starts it."""
    program = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2)\n"
    program += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", program, *command], check=True, capture_output=True)
    return int(done.stdout) / 1024


def dump(folder: Path, arrays: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[Path, Path]:
    """The same tensors as msprobe's own dump writes them."""
    import torch

    for side in (0, 1):
        tensors = folder / str(side) / "dump_tensor_data"
        tensors.mkdir(parents=True, mode=0o750)
        data = {}
        for i, pair in enumerate(arrays):
            value, name = torch.from_numpy(pair[side]), f"Module.blocks.{i}.Linear.forward.0"
            torch.save(value, tensors / f"{name}.output.0.pt")
            told = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(value.shape)}
            told |= {n: f(value).item() for n, f in (("Max", torch.max), ("Min", torch.min), ("Mean", torch.mean))}
            told |= {"Norm": float(value.norm()), "requires_grad": False, "data_name": f"{name}.output.0.pt"}
            data[name] = {"input_args": [], "input_kwargs": {}, "output": [told]}
        head = {"task": "tensor", "level": "L0", "framework": "pytorch", "dump_data_dir": str(tensors)}
        files = {"dump": {**head, "data": data}, "stack": {}, "construct": dict.fromkeys(data)}
        for name, content in files.items():
            (tensors.parent / f"{name}.json").write_text(json.dumps(content))
    return folder / "0" / "dump.json", folder / "1" / "dump.json"


def install(folder: Path) -> Path | str:
    """The `msprobe` of a new environment, or why there is none."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    try:
        for arguments in (["--no-deps", MSPROBE], list(MSPROBE_NEEDS)):
            subprocess.run([*pip, *arguments], check=True, capture_output=True, text=True, timeout=600)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        told = getattr(error, "stderr", None) or str(error)
        return str(told).strip().splitlines()[-1]
    home = next(folder.glob("lib/python*/site-packages"))
    (home / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin" / "msprobe"


def msprobe(folder: Path, arrays: Sequence[tuple[np.ndarray, np.ndarray]], sides: tuple[Path, Path]) -> list[Row]:
    """Both tools as processes, start-up included."""
    script = install(folder / "venv")
    if isinstance(script, str):
        return [(f"{MSPROBE} could not be installed", "", script[:100])]
    ours, theirs = dump(folder / "dump", arrays)
    out = folder / "out"
    command = [str(script), "compare", "-tp", str(theirs), "-gp", str(ours), "-o", str(out)]

    def compare() -> None:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)

    try:
        other = timed(compare, 2)
    except subprocess.CalledProcessError as error:
        return [(f"{MSPROBE} did not run", "", (error.stderr or error.stdout).strip().splitlines()[-1][:100])]
    lines = next(out.glob("*.csv")).read_text().splitlines()
    assert len(lines) == len(arrays) + 1, "msprobe compared other tensors than these"
    own = [sys.executable, "-m", "parity.cli", "diff", *map(str, sides), "--json"]
    mine = timed(lambda: subprocess.run(own, check=True, capture_output=True), 2)
    size = sum(x.nbytes for x, _ in arrays) / 1e9
    return [
        ("parity diff, the whole process", f"{mine:.2f} s", f"{size / mine:.2f} GB/s"),
        ("msprobe compare, the whole process", f"{other:.2f} s",
         f"{size / other:.2f} GB/s: parity is {other / mine:.1f} x as fast (aim 10)"),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument("--no-msprobe", action="store_true", help="do not install and time mindstudio-probe")
    parser.add_argument("--long", action="store_true", help="the many steps alone")
    options = parser.parse_args()
    steps = 5 if options.quick else 50
    if options.long:
        with tempfile.TemporaryDirectory() as name:
            return shown(long_run(Path(name), 5000, steps))
    arrays = pairs(8 if options.quick else 80, (1024, 1024))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows, sides = values(folder / "values", arrays)
        rows += sketches(folder / "sketches")
        rows += long_run(folder / "long", 5000, steps)
        if not options.no_msprobe:
            rows += msprobe(folder / "msprobe", arrays, sides)
    shown(rows)


def shown(rows: Sequence[Row]) -> None:
    for row in rows:
        print(f"{row[0]:<36}{row[1]:>20}  {row[2]}")


if __name__ == "__main__":
    main()
