"""The table of families: transformers of diffusers' own classes that parity has no line for, compared as they are.

    python benchmarks/families.py [--only FAMILY]...

Each row is a tiny checkpoint folder of one class (`tiny_families.py`: a config of two blocks, weights drawn by
parameter name), each column `parity run --model FOLDER --sites all` in one dtype and way. Both sides run diffusers' own
code, torch against torchax, so that anything but a pass is a false alarm, a crash, or has a reason that the table says.
Outcomes are kept in `.families.json` as they come, so that a stopped run goes on; half a minute each, on two cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import diffusers

from parity.paths.worker.extras import quieten

quieten()
diffusers.utils.logging.set_verbosity_error()

import stamp
from known_reference import quiet
from tiny_families import CONFIGS, make

from parity.errors import ParityError
from parity.paths.live import Host
from parity.runs import compare
from parity.runs.request import Request
from parity.settings import parse

WAYS = {"jit": "jit=true", "eager": "jit=false"}
COLUMNS = tuple(product(("float32", "bfloat16"), WAYS))
"""(dtype of both sides, way of the candidate)."""

HEAD = """# Families

`make families` renders it from `benchmarks/results/families.json`: transformers of diffusers' own classes that parity
has no line for. Each is a folder with a config of two blocks (`benchmarks/tiny_families.py`); weights and inputs are
made as [your-model.md](../../docs/your-model.md#any-other-diffusers-transformer) has it. Each cell is `parity run
--model FOLDER --sites all` with both sides in that dtype and the candidate under `jax.jit` or eager (`--candidate
jit=false`): the verdict and noise_pred's relative L2. Both sides run the same code, so that anything but a pass is a
false alarm or has the reason below the table.

"""


def row(family: str, dtype: str, way: str) -> stamp.Row:
    """Run one family in one way.

    Returns:
        the verdict, or `refused` for a message in its place, or `crashed`; the reason; noise_pred's relative L2.
    """
    shared = [f"dtype={dtype}"]
    with tempfile.TemporaryDirectory() as folder:
        model = str(make(Path(folder) / family, family))
        candidate = parse("torchax", [*shared, WAYS[way]])
        try:
            request = Request(model, parse("torch", shared), candidate, sites="all")
            result = compare.run(request, quiet, openers=Host())
        except ParityError as error:
            return {"verdict": "refused", "reason": str(error).replace(folder, "FOLDER"), "noise_pred": None}
        except Exception as error:  # a defect, shown as such
            return {"verdict": "crashed", "reason": f"{type(error).__name__}: {error}", "noise_pred": None}
    (step,) = result.steps
    return {"verdict": result.verdict, "reason": result.reason, "noise_pred": step.noise_pred.rel_l2}


def markdown(kept: Mapping[str, Any]) -> str:
    """The page: the table, and what did not pass in words below it."""
    rows = kept["rows"]
    titles = " | ".join(f"{dtype} {way}" for dtype, way in COLUMNS)
    out = [HEAD + stamp.line(kept), "", f"| class | {titles} |", "|---|---|---|---|---|"]
    for family, config in CONFIGS.items():
        cells = [_cell(rows[f"{family} {dtype} {way}"]) for dtype, way in COLUMNS]
        out.append(f"| {config['_class_name']} | {' | '.join(cells)} |")
    failed = [(name, r["reason"]) for name, r in rows.items() if r["verdict"] != "pass"]
    reasons = dict.fromkeys(f"- {CONFIGS[name.split()[0]]['_class_name']}: {reason}" for name, reason in failed)
    return "\n".join([*out, "", *reasons, "", f"{len(rows) - len(failed)} of {len(rows)} passed."]) + "\n"


def _cell(row: stamp.Row) -> str:
    return str(row["verdict"]) + ("" if row["noise_pred"] is None else f", {row['noise_pred']:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", choices=tuple(CONFIGS))
    only = parser.parse_args().only
    state = stamp.State(Path(".families.json"))
    for (dtype, way), family in product(COLUMNS, only or CONFIGS):  # a stopped run has every family
        found = state.row(f"{family} {dtype} {way}", row, family, dtype, way)
        print(family, dtype, way, _cell(found), "" if found["verdict"] == "pass" else found["reason"], flush=True)
    if only is None:
        stamp.publish("families", state.rows, markdown)


if __name__ == "__main__":
    main()
