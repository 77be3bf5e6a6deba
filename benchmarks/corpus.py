"""Records both sides of every catalogue once, for `oracle.py`: what is there already is not made again.

    python benchmarks/corpus.py FOLDER [--only GLOB]

A case is a folder with a golden of each side and, where a pair goes through two checks, another two in `precision`.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import gc
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDERS = [str(HERE), str(HERE / "history"), str(HERE / "pitfalls")]
Make = Callable[[Path], None]


def history() -> Iterator[tuple[str, Make]]:
    from every_change import CHANGES
    from judge import record, run

    for name, row in CHANGES.items():
        yield name, lambda where, row=row: run(row, where) if row.script is None else record(row.script, where)


def pitfalls() -> Iterator[tuple[str, Make]]:
    from every_pitfall import PITFALLS
    from judge import record

    for pitfall in PITFALLS:
        if pitfall.sides is not None:
            yield f"{pitfall.number:02}", lambda where, sides=pitfall.sides: record(sides, where)


def faults() -> Iterator[tuple[str, Make]]:
    """In float32: in bfloat16 local errors decide, which are in no golden."""
    from fault_catalogue import FAULTS

    yield from _variants("float32", FAULTS)


def innocents() -> Iterator[tuple[str, Make]]:
    from innocents import INNOCENTS

    for dtype in ("float32", "bfloat16"):
        for name, make in _variants(dtype, INNOCENTS):
            yield f"{dtype}-{name}", make


def _variants(dtype: str, variants: Iterable[Any]) -> Iterator[tuple[str, Make]]:
    """Of the fault bench; the reference is measured once for each number of steps."""
    from known_reference import Known

    known = functools.cache(lambda steps: Known(dtype, steps))

    def make(variant: Any, where: Path) -> None:
        bench = known(variant.steps)
        side = bench.candidate(*variant.settings)
        with variant.apply(side):
            bench.judge(side, where)

    for variant in variants:
        yield variant.name, functools.partial(make, variant)


KINDS = {"history": history, "pitfalls": pitfalls, "faults": faults, "innocents": innocents}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    sys.path[:0] = FOLDERS
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    warnings.filterwarnings("ignore")
    for kind, cases in KINDS.items():
        for name, make in cases():
            case = options.folder / kind / name.replace(" ", "_").replace("/", "_")
            if (case / "made").exists() or not fnmatch.fnmatchcase(f"{kind}/{case.name}", options.only):
                continue
            print(f"recording {kind}/{case.name}", flush=True)
            shutil.rmtree(case, ignore_errors=True)
            case.mkdir(parents=True)
            with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
                try:
                    make(case)
                except Exception as error:  # a case that does not run says so in its row
                    print(f"  {type(error).__name__}: {error}", flush=True)
            (case / "made").touch()
            _let_go()


def _let_go() -> None:
    """Forget compiled programs: each takes a hundred mappings of memory, of 65,530 a process."""
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()


if __name__ == "__main__":
    main()
