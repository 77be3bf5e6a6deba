"""How long a command takes to start, beyond Python's own start (the aim: half a second).

Run `python benchmarks/startup.py [--repeats 9]`. Each figure is the median of several processes, with Python's own
start taken off; what a command imports is tested in `tests/test_lean_environment.py`, because times differ from machine
to machine.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from parity.golden import GoldenWriter, Key, Provenance, Record, StepRecords

AIM = 0.5


def started(repeats: int, *arguments: str) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=False, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats: int = parser.parse_args().repeats
    bare = started(repeats, "-c", "pass")
    numpy = started(repeats, "-c", "import numpy")
    print(f"{'python -c pass':<28}{bare:.3f} s")
    print(f"{'import numpy':<28}{numpy - bare:+.3f} s")
    with tempfile.TemporaryDirectory() as name:
        golden = Path(name, "golden")
        with GoldenWriter(golden, Provenance("reference", "torch", "benchmark", {}, 0, 1)) as writer:
            writer.write_step(StepRecords(0, (Record(Key("transformer", 0, "", "loop:sigma"), "scalar", value=1.0),)))
        where = str(golden)
        for title, arguments in (
            ("parity --help", ["--help"]),
            ("parity inspect", ["inspect", where, "--json"]),
            ("parity diff", ["diff", where, where, "--json"]),
            ("parity merge", ["merge", f"{name}/out", where]),
        ):
            beyond = started(repeats, "-m", "parity.cli", *arguments) - bare
            print(f"{title:<28}{beyond:+.3f} s  {beyond / AIM:.0%} of the half second aimed at")


if __name__ == "__main__":
    main()
