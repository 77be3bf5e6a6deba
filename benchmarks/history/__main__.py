"""REAL-40: changes from the history of public repositories, each run through parity as it is.

    python benchmarks/history [--only NAME]... [--state FILE] [--render]

Where each change lies and why is written down beside it (`*_faults.py`). Rows are kept in the state file as they come,
so that a stopped run goes on; a whole run is kept in `benchmarks/results` and rendered. A few seconds a row.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
sys.path.insert(1, str(Path(__file__).parents[1]))

import diffusers

from parity.paths.worker.extras import quieten

quieten()
diffusers.utils.logging.set_verbosity_error()

import judge
import rivals
import stamp
from change import Change
from every_change import CHANGES
from table import figures, line, markdown

PAGE = Path(__file__).parents[2] / "docs" / "history.md"


def row(change: Change) -> dict[str, Any]:
    """Everything that is told of a change."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, _silent():
        found = judge.row(change, Path(folder) / "run")
        measured = rivals.effect(change)
    right = {"placed": judge.placed(change, found), "named": judge.named(change, found)}
    return {**found, **right, **measured, "seconds": round(time.perf_counter() - began, 1)}


@contextmanager
def _silent() -> Iterator[None]:
    """What a recording says on stderr is of its script, not of this bench."""
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--state", type=Path, default=Path(".history.json"))
    parser.add_argument("--render", action="store_true", help="the page of the results that are kept")
    options = parser.parse_args()
    if not options.render:
        began = time.perf_counter()
        rows: dict[str, dict[str, Any]] = json.loads(options.state.read_text()) if options.state.exists() else {}
        for name, change in CHANGES.items():
            if options.only and name not in options.only:
                continue
            if name not in rows:
                rows[name] = row(change)
                options.state.write_text(json.dumps(rows, indent=1))
            print(line(change, rows[name]), flush=True)
        print(*(f"{name}: {figure}" for name, figure in figures(rows).items()), sep="\n")
        if options.only:
            return
        stamp.save("history", stamp.stamped(rows, time.perf_counter() - began))
    PAGE.write_text(markdown(stamp.load("history")))


if __name__ == "__main__":
    main()
