"""The fault bench: does the verdict find what is wrong, where it is, and nothing where nothing is?

    python benchmarks/fault_bench.py [--only NAME]... [--state FILE]

Every fault of `fault_catalogue` is run on tiny-hunyuan-video-1.5 through the tool's own checks, in float32 (the
logic check, as `parity run` does it) and in bfloat16 (the precision check alone, as `--checks precision` does it, so
that what the logic check would find anyway does not count), and every innocent variant with five seeds in both. The
reference and its floors are measured once for each dtype, number of steps and seed. Rows are kept in the state file as
they come, so that a stopped run goes on. Half a minute a row. A whole run is kept in `benchmarks/results` and rendered.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import os
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path

if __name__ == "__main__":  # before jax is imported
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import jax
import numpy as np

from parity.paths.worker.extras import quieten, require_extras

quieten()
require_extras()

from fault_catalogue import FAULTS, Variant
from fault_table import DTYPES, SEEDS, markdown, right
from innocents import INNOCENTS
from known_reference import Known
from stamp import Row, State, publish

from parity.errors import ParityError
from parity.paths.loaded import Loaded


def cases() -> Iterator[tuple[str, str, Variant, int]]:
    """The name of each row with its dtype, variant and seed; one variant's after another's, for what is compiled."""
    for dtype, fault in product(DTYPES, FAULTS):
        yield f"{dtype}/{fault.name}", dtype, fault, 0
    for dtype, innocent, seed in product(DTYPES, INNOCENTS, SEEDS):
        yield f"{dtype}/{seed}/{innocent.name}", dtype, innocent, seed


reference = functools.lru_cache(maxsize=len(SEEDS))(Known)
"""(dtype, steps, seed) -> one measured before, if it was."""


@functools.lru_cache(maxsize=1)
def candidate(dtype: str, variant: Variant) -> Loaded:
    """One for all seeds. What was compiled before is let go: each program takes a hundred mappings of memory, of 65,530
    a process."""
    jax.clear_caches()
    gc.collect()
    return reference(dtype, variant.steps, 0).candidate(*variant.settings)


def row(dtype: str, variant: Variant, seed: int = 0) -> Row:
    known = reference(dtype, variant.steps, seed)
    side = dataclasses.replace(candidate(dtype, variant), inputs=known.candidate().inputs)
    return judged(known, variant, side)


def judged(known: Known, variant: Variant, side: Loaded) -> Row:
    """What comes of a loaded candidate that gets the variant's patch."""
    with variant.apply(side):
        try:
            result = known.judge(side)
        except ParityError as error:
            return {"verdict": "inconclusive", "reason": str(error)}
        except Exception as error:  # a patch that does not run is no fault
            return {"verdict": "broken", "reason": f"{type(error).__name__}: {error}"}
    origin = result.origin
    ratios = (d.distance.ratio for d in result.sites if d.verdict != "ignored")
    alone = [d for d in result.sites if not np.isnan(d.local.floor) or d.local.ratio == float("inf")]
    worst = max(alone, key=lambda d: float("inf") if np.isnan(d.local.ratio) else d.local.ratio, default=None)
    return {
        "verdict": result.verdict,
        "origin": origin.key.site if origin is not None else result.failed or "",
        "birth": origin.birth if origin is not None else "",
        "noise_pred": max((s.noise_pred.rel_l2 for s in result.steps), default=float("nan")),
        "worst": max((r for r in ratios if not np.isnan(r)), default=0.0),
        "local": None if worst is None else worst.local.ratio,
        "local_at": "" if worst is None else worst.key.site,
        "reason": result.reason,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[], help="a fault or an innocent variant")
    parser.add_argument("--state", type=Path, default=Path(".fault-bench.json"))
    options = parser.parse_args()
    state = State(options.state)
    for name, dtype, variant, seed in cases():
        if not options.only or variant.name in options.only:
            found = state.row(name, row, dtype, variant, seed)
            where = "" if variant in INNOCENTS else "right" if right(variant, found) else f"AT {found.get('origin')}"
            print(name, found["verdict"], where, found.get("worst"), found["reason"][:90], flush=True)
    if not options.only:
        publish("fault-bench", state.rows, markdown)


if __name__ == "__main__":
    main()
