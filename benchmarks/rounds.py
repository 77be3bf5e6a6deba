"""What two rounds cost: a bfloat16 run, structure and precision, over a float32 run of one round (the aim: 3.5).

    python benchmarks/rounds.py [--model tiny-hunyuan-video-1.5] [--steps 2] [--repeats 3]

- plain: float32 on both sides, which is one round: both paths over all steps, the reference's floors measured beside it
  as always (one run in float64, three under Monte Carlo rounding), default sites, no forcing.
- two rounds: bfloat16 on both sides: that round first, then everything as given, judged three ways against it.
- price of a dtype: a bfloat16 candidate against a float32 reference, whose second round runs the reference once more,
  in the candidate's dtype.

Each is the whole of `parity run` but its printing: prompt encoded, weights loaded, preflight, programs traced and taken
from the compilation cache. All are run once before any is timed; then they take turns, each is divided by the plain run
of its turn, and the medians are shown. CPU time is that of the process's threads, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

from parity.paths.worker.extras import quieten, require_extras

quieten()
require_extras()

from parity.models.registry import DEFAULT_MODEL
from parity.runs.compare import run
from parity.runs.request import Request
from parity.settings import parse

PLAIN = "plain"
RUNS = {
    PLAIN: ((), ()),
    "two rounds": (("dtype=bfloat16",), ("dtype=bfloat16",)),
    "price of a dtype": ((), ("dtype=bfloat16",)),
}
"""Name -> settings of the reference and of the candidate."""
AIM = 3.5


def timed(request: Request, one_round: bool) -> tuple[float, float]:
    """Wall and CPU seconds of a run, which must have passed in one round or in two."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = run(request, lambda text, done=None, total=None: None)
    took = time.perf_counter() - wall, time.process_time() - cpu
    first, last = result.rounds  # both names are of the same round where there is nothing to neutralise
    assert result.verdict == "pass", result.reason
    assert (first.steps is last.steps) == one_round
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    requests = {
        name: Request(options.model, parse("torch", ours), parse("torchax", theirs), options.steps)
        for name, (ours, theirs) in RUNS.items()
    }
    turns: list[dict[str, tuple[float, float]]] = []
    for _ in range(1 + options.repeats):
        turns.append({name: timed(request, name == PLAIN) for name, request in requests.items()})
    print(f"{options.model}, {options.steps} steps, warm, median of {options.repeats}")
    for name in RUNS:
        wall, cpu = (statistics.median(t[name][i] for t in turns[1:]) for i in (0, 1))
        ratio, work = (statistics.median(t[name][i] / t[PLAIN][i] for t in turns[1:]) for i in (0, 1))
        print(f"{name:<18}{wall:7.1f} s  {ratio:.2f} x    CPU {cpu:7.1f} s  {work:.2f} x    (aim: {AIM} x)")


if __name__ == "__main__":
    main()
