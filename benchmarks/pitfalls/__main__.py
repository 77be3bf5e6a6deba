"""The 29 pitfalls of diffusers' list, each as two sides run through parity as it is.

    python benchmarks/pitfalls [--only NUMBER]... [--markdown FILE]

What the right answer is was written down beside each (`*_pitfalls.py`) before it was run. Some seconds each.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from pathlib import Path

if __name__ == "__main__":  # before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "history")]

import diffusers

from parity.paths.worker.extras import quieten

quieten()
diffusers.utils.logging.set_verbosity_error()

from asked import outcome, sentence, told
from every_pitfall import PITFALLS
from page import Row, line, markdown, summary


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", type=int, action="append", default=[])
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for pitfall in PITFALLS:
        if options.only and pitfall.number not in options.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            said = told(pitfall, Path(folder))
        rows.append(Row(pitfall, said, outcome(pitfall, said), sentence(pitfall, said).replace(folder, "")))
        print(line(rows[-1]), flush=True)
    print(summary(rows))
    if options.markdown is not None:
        options.markdown.write_text(markdown(rows))


if __name__ == "__main__":
    main()
