"""The 29 pitfalls of diffusers' list, each as two sides run through parity as it is.

    python benchmarks/pitfalls [--only NUMBER]... [--render]

What the right answer is was written down beside each (`*_pitfalls.py`) before it was run. Some seconds each.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

if __name__ == "__main__":  # before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "history"), str(Path(__file__).parents[1])]

import diffusers
import stamp

from parity.paths.worker.extras import quieten

quieten()
diffusers.utils.logging.set_verbosity_error()

from asked import outcome, sentence, told
from every_pitfall import PITFALLS
from page import Row, line, markdown, row, summary

PAGE = Path(__file__).parents[2] / "docs" / "pitfalls.md"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", type=int, action="append", default=[])
    parser.add_argument("--render", action="store_true", help="the page of the results that are kept")
    options = parser.parse_args()
    if not options.render:
        began, rows = time.perf_counter(), dict[str, Row]()
        for pitfall in PITFALLS:
            if options.only and pitfall.number not in options.only:
                continue
            with tempfile.TemporaryDirectory() as folder:
                said = told(pitfall, Path(folder))
            says = sentence(pitfall, said).replace(folder, "")
            rows[str(pitfall.number)] = row(pitfall, said, outcome(pitfall, said), says)
            print(line(pitfall, rows[str(pitfall.number)]), flush=True)
        print(summary(rows.values()))
        if options.only:
            return
        stamp.save("pitfalls", stamp.stamped(rows, time.perf_counter() - began))
    PAGE.write_text(markdown(stamp.load("pitfalls")))


if __name__ == "__main__":
    main()
