"""What the programs of history and of the pitfalls share: rows that a stopped run keeps, and a page made of them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
warnings.filterwarnings("ignore")
sys.path.insert(1, str(Path(__file__).parents[1]))

import diffusers
import stamp

from parity.paths.worker.extras import quieten

quieten()
diffusers.utils.logging.set_verbosity_error()

Row = Mapping[str, Any]
Rows = Mapping[str, Row]


def main(
    name: str,
    cases: Mapping[str, Any],
    row: Callable[[Any], Row],
    line: Callable[[Any, Row], str],
    summary: Callable[[Rows], str],
    measured: Callable[[Rows], Iterable[str]],
) -> None:
    """Run cases by name, and render what is measured.

    Args:
        name: of the results and of their page. row: what is kept of a case. line, summary: for the terminal.
        measured: lines of the page, below its stamp; the text above it stays as it is.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--state", type=Path, default=Path(f".{name}.json"))
    parser.add_argument("--render", action="store_true", help="the page of the results that are kept")
    options = parser.parse_args()
    if not options.render:
        began = time.perf_counter()
        rows: dict[str, Row] = json.loads(options.state.read_text()) if options.state.exists() else {}
        for number, case in cases.items():
            if options.only and number not in options.only:
                continue
            if number not in rows:
                rows[number] = row(case)
                options.state.write_text(json.dumps(rows, indent=1))
            print(line(case, rows[number]), flush=True)
        print(summary(rows))
        if options.only:
            return
        stamp.save(name, stamp.stamped(rows, time.perf_counter() - began))
    kept, page = stamp.load(name), stamp.page(name)
    text = page.read_text().partition("Measured on commit")[0]
    page.write_text(text + "\n".join([stamp.line(kept), "", *measured(kept["rows"])]) + "\n")


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table of a page."""
    head = [f" {name} " if name else " " for name in columns]
    yield f"|{'|'.join(head)}|"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(cells)} |" for cells in rows)
