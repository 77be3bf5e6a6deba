"""The fault bench: does the verdict find what is wrong, where it is, and nothing where nothing is?

    python benchmarks/fault_bench.py [--only NAME]... [--innocents] [--state FILE]

Every fault of `fault_catalogue` is run on tiny-hunyuan-video-1.5 through the tool's own rounds, in float32 (the
structure round, as `parity run` does it) and in bfloat16 (the precision round alone, as `--rounds precision --forcing
module` does it, so that what the structure round would find anyway does not count, with every module run alone, not
the blocks only), and every innocent variant with five seeds in both. The reference and its floors are measured once
for each dtype, number of steps and seed. Rows are kept in the state file as they come, so that a stopped run goes on.
Half a minute a row.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before jax is imported
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import jax
import numpy as np

from parity.paths.worker.extras import quieten, require_extras

quieten()
require_extras()

import stamp
from fault_catalogue import FAULTS, Fault
from fault_table import DTYPES, markdown, right
from innocents import INNOCENTS, Innocent
from known_reference import Known

from parity.compare.result import Result
from parity.errors import ParityError
from parity.paths.loaded import Loaded

SEEDS = range(5)
PAGE = Path(__file__).parents[1] / "docs" / "fault-bench.md"


def fault_row(known: Known, fault: Fault) -> dict[str, Any]:
    began = time.perf_counter()
    side = known.candidate(*fault.settings)
    with fault.apply(side):
        try:
            result = known.judge(side)
        except ParityError as error:
            return {"verdict": "unjudged", "reason": str(error)}
        except Exception as error:  # a patch that does not run is no fault
            return {"verdict": "broken", "reason": f"{type(error).__name__}: {error}"}
    origin = result.origin.key.site if result.origin is not None else result.failed or ""
    noise = max((s.noise_pred.rel_l2 for s in result.steps), default=float("nan"))
    return {
        "verdict": result.verdict,
        "origin": origin,
        "birth": result.origin.birth if result.origin is not None else "",
        "noise_pred": noise,
        **_local(result),
        "reason": result.reason,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _local(result: Result) -> dict[str, Any]:
    """The largest local error over its floor of any module, where it is, and whether any is beyond the limits."""
    run = [d for d in result.sites if not np.isnan(d.local.floor) or d.local.ratio == float("inf")]
    worst = max(run, key=lambda d: float("inf") if np.isnan(d.local.ratio) else d.local.ratio, default=None)
    if worst is None:
        return {"local": None, "local_at": "", "beyond": False}
    beyond = any(d.birth == "module" for d in run)
    return {"local": worst.local.ratio, "local_at": worst.key.site, "beyond": beyond}


def innocent_row(known: Known, side: Loaded) -> dict[str, Any]:
    try:
        result = known.judge(side)
    except ParityError as error:
        return {"verdict": "error", "reason": str(error)}
    ratios = (d.distance.ratio for d in result.sites if d.verdict != "apart")
    worst = max((r for r in ratios if not np.isnan(r)), default=0.0)
    return {
        "verdict": result.verdict,
        "worst": worst,
        "origin": result.origin.key.site if result.origin else "",
        **_local(result),
        "reason": result.reason,
    }


class State:
    """Rows by name, kept as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def row(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if name not in self.rows:
            self.rows[name] = make()
            self.path.write_text(json.dumps(self.rows, indent=1))
        return self.rows[name]


def let_go(count: int, most: int) -> None:
    """Forget compiled programs now and then: each takes a hundred mappings of memory, of 65,530 a process."""
    if count % most == 0:
        jax.clear_caches()
        gc.collect()


def run_faults(state: State, only: list[str]) -> None:
    known: dict[tuple[str, int], Known] = {}
    for dtype in DTYPES:
        for fault in FAULTS:
            if only and fault.name not in only:
                continue

            def make(fault: Fault = fault, dtype: str = dtype) -> dict[str, Any]:
                key = (dtype, fault.steps)
                if key not in known:
                    known[key] = Known(dtype, fault.steps)
                return fault_row(known[key], fault)

            row = state.row(f"{dtype}/{fault.name}", make)
            where = "right" if right(fault, row) else f"ORIGIN {row.get('origin')}"
            print(dtype, fault.name, row["verdict"], where, row.get("noise_pred"), row["reason"][:90], flush=True)
            let_go(len(state.rows), 4)


def run_innocents(state: State, only: list[str]) -> None:
    """Variant by variant, so that what was compiled for one can be let go."""
    for dtype in DTYPES:
        known: dict[int, Known] = {}
        for innocent in INNOCENTS:
            if only and innocent.name not in only:
                continue
            sides: list[Loaded] = []
            for seed in SEEDS:

                def make(
                    seed: int = seed,
                    innocent: Innocent = innocent,
                    sides: list[Loaded] = sides,
                    known: dict[int, Known] = known,
                    dtype: str = dtype,
                ) -> dict[str, Any]:
                    if seed not in known:
                        known[seed] = Known(dtype, 1, seed)
                    if not sides:
                        sides.append(known[seed].candidate(*innocent.settings))
                    side = dataclasses.replace(sides[0], inputs=known[seed].candidate().inputs)
                    with innocent.apply(side):
                        return innocent_row(known[seed], side)

                row = state.row(f"{dtype}/{seed}/{innocent.name}", make)
                said = row.get("reason", "")[:90]
                print(dtype, seed, innocent.name, row["verdict"], row.get("worst"), said, flush=True)
            let_go(0, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--skip-faults", action="store_true")
    parser.add_argument("--innocents", action="store_true")
    parser.add_argument("--state", type=Path, default=Path(".fault-bench.json"))
    options = parser.parse_args()
    began, state = time.perf_counter(), State(options.state)
    if not options.skip_faults:
        run_faults(state, options.only)
    if options.innocents:
        run_innocents(state, options.only)
    if options.innocents and not (options.only or options.skip_faults):
        stamp.save("fault-bench", stamp.stamped(state.rows, time.perf_counter() - began))
        PAGE.write_text(markdown(stamp.load("fault-bench")))


if __name__ == "__main__":
    main()
