"""How many perturbed runs a floor needs: the ratios of an innocent candidate to floors of 1 to 8 of them.

    python benchmarks/seeds.py [--model NAME]

Prints, for each number of Monte Carlo runs beside the float64 run, the largest and the median ratio of torchax under
jax.jit to torch over all sites of all modules, and how many sites would be beyond the limits. float32, one step.
"""

from __future__ import annotations

import argparse
import os
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import numpy as np

from parity.paths.worker.extras import quieten, require_extras

quieten()
require_extras()

from parity.compare.judge import BIN_LIMIT, L2_LIMIT
from parity.compare.metrics import bin_ratios, distance, measure
from parity.golden.records import Floor, Key, StepRecords
from parity.hooks.sites import plan_sites
from parity.models.registry import DEFAULT_MODEL
from parity.paths.floors import least, level, make_variants, widen
from parity.paths.live import InProcess, LiveSide
from parity.paths.loop import denoise
from parity.paths.plan import Plan
from parity.runs.request import Request
from parity.runs.sides import candidate_spec, reference_spec
from parity.settings import parse

COUNTS = (0, 1, 2, 3, 5, 8)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=DEFAULT_MODEL)
    model = parser.parse_args().model
    request = Request(model, parse("torch"), parse("torchax"), sites="all")
    host = InProcess().of("reference")
    ours = host.open(reference_spec(request))
    theirs = host.open(candidate_spec(request, ours.facts()))
    assert isinstance(ours, LiveSide)
    plan = plan_sites(["", *ours.loaded.modules], "all")
    variants = make_variants(ours.loaded, ("fp64", "rounding"), seeds=max(COUNTS))
    (reference,) = ours.observe(Plan(sites=plan))
    (candidate,) = theirs.observe(Plan(sites=plan))
    others: list[StepRecords] = []
    for variant in variants:
        with variant.around(0):
            others += denoise(variant.loop, plan)
    found_there = {r.key: r for r in candidate.records}
    print(f"{model}: {sum(r.kind == 'tensor' for r in reference.records)} sites")
    for count in COUNTS:
        floors: dict[Key, Floor] = {r.key: least(r) for r in reference.records if r.kind == "tensor"}
        for other in others[: 1 + count]:
            widen(floors, reference.records, other.records)
        level(floors, reference.records)
        ratios, beyond = [], 0
        for record in reference.records:
            if record.kind != "tensor" or record.key.is_padding or record.key not in found_there:
                continue
            found = measure(record, found_there[record.key])
            if found is None:
                continue
            r = distance(found, floors[record.key]).ratio
            ratios.append(r)
            beyond += r > L2_LIMIT or any(b > BIN_LIMIT for b in bin_ratios(found, floors[record.key]))
        print(f"{count} perturbed runs: largest {max(ratios):.2f}, median {np.median(ratios):.2f}, beyond {beyond}")


if __name__ == "__main__":
    main()
