"""Are causes named rightly? Faults that are settings, alone and in pairs, and faults that no setting is.

    python benchmarks/causes.py [--work DIR] [--state FILE] [--markdown FILE] [--seed N] [--only NAME]...

Each candidate (torchax on tiny-hunyuan-video-1.5, float32, two steps, `jit=false`: a program is not compiled for each
fault) is recorded once, as a golden in the work folder, and explained by `parity.causes.explain.explain`, as
`parity explain` does it:

- *settings known*: its golden tells its settings, as that of a kept run does. Each fault stands beside a setting that
  is innocent, so that there is something to choose from.
- *goldens alone*: its golden tells neither settings nor fingerprints of its inputs, as somebody else's port.

Unknown faults are the patches of `fault_catalogue` that no setting does; from goldens alone they must be called
unknown. Rows are kept in the state file as they come, so that a stopped run goes on; goldens are recorded where they
are missing, so that after a change of the tool only the explaining is done again (with another state file). The work
folder takes 1.4 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fault_bench
from causes_table import markdown
from fault_catalogue import FAULTS, Fault
from known_reference import quiet

from parity.causes.explain import ExplainRequest, explain
from parity.causes.known_faults import known_faults
from parity.causes.machine import Machine
from parity.compare.result import Result
from parity.errors import ParityError
from parity.golden import Golden, GoldenWriter
from parity.golden.facts import Facts
from parity.golden.records import Provenance
from parity.hooks.sites import plan_sites
from parity.models.registry import DEFAULT_MODEL
from parity.paths.live import InProcess
from parity.paths.plan import DEFAULT_KINDS, Plan
from parity.runs.request import Request
from parity.runs.sides import candidate_spec, modules_of, reference_spec
from parity.settings import Settings, parse

STEPS = 2
LATER = ("timestep_dtype", "schedule", "timesteps", "between_steps")
"""Faults of which the first step shows nothing, or not all: two steps are recorded of them, of the others one."""
NO_FAULT = {
    "matmul_precision=high", "matmul_precision=default", "attention.mask=zero_kv_rescaled",
    "attention.mask=segment_ids", "vision_states=none", "text.reorder=concatenate",
}  # fmt: skip
"""Known faults that on a CPU change nothing beyond rounding, or never do by themselves."""
WITH = {"attention.block_padding=unmasked": "attention.kernel=splash"}
"""What a setting needs on the candidate beside it."""
INNOCENT = ("vision_states=none", "text.reorder=concatenate", "attention.k_smooth=true", "rope=cached")
"""Companions of the faults, in turn."""
PAIRS = (
    ("attention.mask=none", "refiner.mask=none"), ("attention.mask=zero_kv", "text.byt5_dtype=bfloat16"),
    ("attention.mask=none", "norm_dtype=bfloat16"), ("refiner.mask=none", "rope_dtype=bfloat16"),
    ("attention.mask=zero_kv", "refiner.mask=none"), ("norm_dtype=bfloat16", "rope_dtype=bfloat16"),
    ("attention.mask=segment_ids_first_row", "refiner.mask=none"), ("refiner.mask=none", "guidance_dtype=bfloat16"),
    ("attention.softmax_dtype=bfloat16", "text.byt5_dtype=bfloat16"), ("attention.mask=none", "dtype=bfloat16"),
    ("latents_dtype=bfloat16", "attention.mask=zero_kv"), ("rope_dtype=bfloat16", "attention.softmax_dtype=bfloat16"),
    ("norm_dtype=bfloat16", "text.byt5_dtype=bfloat16"), ("attention.mask=zero_kv", "norm_dtype=bfloat16"),
)  # fmt: skip
NEAR_A_SETTING = {
    "mask_dropped", "mask_of_the_first_batch_row", "refiner_attention_without_mask", "softmax_in_bfloat16",
    "rotary_phase_in_bfloat16", "block_padding_unmasked", "norm_statistics_in_bfloat16", "guidance_in_bfloat16",
    "scheduler_not_reset",
}  # fmt: skip
"""Patches that do what a setting does, in one block or in all: named or unknown, both are true; shown, not counted."""
OF_THE_LOOP = {
    "schedule_shift_missing": "the schedule is another", "timesteps_repeat": "the schedule is another",
    "guidance_branches_swapped": "guidance is applied to the branches the wrong way round: scale -5 for 6",
    "guidance_scale_off": "the guidance scale is 6.05, not 6",
}  # fmt: skip
"""Patches of the loop's values, and how the cause begins that those values must tell."""


class Bench:
    """The reference with its floors, recorded once, and the candidates, each recorded once."""

    def __init__(self, work: Path, seed: int = 0, only_record: bool = False) -> None:
        self.work, self.only_record, self.openers = work, only_record, InProcess()
        self.settings = parse("torch")
        self.pair = Request(DEFAULT_MODEL, self.settings, parse("torchax"), STEPS, seed)
        side = self.openers.of("reference").open(reference_spec(self.pair))
        self.facts = side.facts()
        self.plan = Plan(sites=plan_sites(["", *modules_of(self.facts)], "blocks", ("*.attention",)))
        self.reference = work / "reference"
        if not _whole(self.reference):
            made = list(side.observe(replace(self.plan, floors=DEFAULT_KINDS)))
            _write(self.reference, _told_by(self.facts), made)
            _write(work / "reference_first", _told_by(self.facts), made[:1])
        request = ExplainRequest(str(self.reference), str(self.reference))
        self.machine = Machine.of(request, Golden.open(self.reference).provenance, self.openers, quiet)

    def settings_faults(self) -> tuple[str, ...]:
        """Every known fault of the model that the candidate can take and that changes numbers."""
        found = []
        for name in known_faults(self.settings, self.facts, None):
            with contextlib.suppress(ParityError):
                parse("torchax", [name, *_needs(name)])
                found.append(name)
        return tuple(name for name in found if name not in NO_FAULT)

    def record(self, name: str, assignments: tuple[str, ...], fault: Fault | None = None) -> Path:
        """The candidate's goldens under this name: `told`, which tells its settings, and `mute`."""
        where = self.work / _slug(name)
        settings = parse("torchax", [*assignments, "jit=false"])
        if _whole(where / "mute"):
            self._hold(settings, where, fault)
            return where
        request = replace(self.pair, candidate=settings)
        side = self.openers.of("candidate").open(candidate_spec(request, self.facts))
        with contextlib.nullcontext() if fault is None else fault.apply(side.loaded):
            told = _told_by(side.facts())
            steps = list(side.observe(self.plan, steps=(0, 2 if _later(name) else 1)))
        _write(where / "told", told, steps)
        _write(where / "mute", replace(told, settings={}, inputs={}, weights={}), steps)
        self._hold(settings, where, fault)
        return where

    def _hold(self, settings: Settings, where: Path, fault: Fault | None) -> None:
        """Counterfactuals that are rows of this bench too are not run again."""
        golden = Golden.open(where / "told")
        for step in golden.steps if fault is None else ():
            self.machine.hold(settings, golden.read_step(step))

    def row(self, kind: str, truth: tuple[str, ...], beside: tuple[str, ...] = (), fault: Fault | None = None) -> Any:
        """What the witnesses say of one candidate."""
        name = fault.name if fault is not None else " + ".join((*truth, *beside))
        began = time.perf_counter()
        settings = () if fault is not None else (*truth, *beside, *(n for t in truth for n in _needs(t)))
        where = self.record(name, settings, fault)
        row: dict[str, Any] = {"kind": kind, "truth": truth, "recorded": round(time.perf_counter() - began, 1)}
        if self.only_record:
            return row
        for golden in ("told", "mute") if kind == "pair" else ("told",) if kind == "beside" else ("mute",):
            began = time.perf_counter()
            kept = where if golden == "told" else None
            reference = self.reference if _later(name) else self.work / "reference_first"
            request = ExplainRequest(str(reference), str(where / golden), kept)
            result = explain(request, self.openers, quiet, self.machine)
            row[golden] = _told(result)
            row[golden]["seconds"] = round(time.perf_counter() - began, 1)
        return row


def _told_by(facts: Facts) -> Provenance:
    assert facts.provenance is not None
    return facts.provenance


def _told(result: Result) -> dict[str, Any]:
    """Causes that have a share, the first first, with their groups; what is harmless; what is said beside it."""
    innocent = [c for c in result.causes if c.setting and "harmless" in c.cause]
    named = [c for c in result.causes if c.setting and c not in innocent]
    return {
        "verdict": result.verdict,
        "reason": result.reason,
        "named": [[f"{c.setting}={c.candidate}", *c.alike] for c in named],
        "shares": [c.share for c in named],
        "harmless": [f"{c.setting}={c.candidate}" for c in innocent],
        "causes": [[c.cause, *(w.detail for w in c.witnesses)] for c in result.causes],
        "unknown": [n.text for n in result.notes if n.text.startswith("unknown") or "no known fault" in n.text],
    }


def _later(name: str) -> bool:
    return any(part in name for part in LATER)


def _needs(name: str) -> tuple[str, ...]:
    return (WITH[name],) if name in WITH else ()


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name) or "no_fault"


def _whole(where: Path) -> bool:
    with contextlib.suppress(ParityError):
        return Golden.open(where).complete
    return False


def _write(where: Path, told: Provenance, steps: Any) -> None:
    shutil.rmtree(where, ignore_errors=True)
    where.parent.mkdir(parents=True, exist_ok=True)
    with GoldenWriter(where, told) as writer:
        for step in steps:
            writer.write_step(step)


def rows(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Every row by name, and how it is made."""
    faults = bench.settings_faults()
    for name in ("", *(i for i in INNOCENT if i not in faults)):
        yield name or "no fault", lambda name=name: bench.row("single", (name,) if name else ())
    for name in faults:
        yield name, lambda name=name: bench.row("single", (name,))
    for name, innocent in zip(faults, itertools.cycle(INNOCENT), strict=False):
        yield f"{name} beside {innocent}", lambda n=name, i=innocent: bench.row("beside", (n,), (i,))
    for pair in PAIRS:
        yield " + ".join(pair), lambda pair=pair: bench.row("pair", pair)
    for fault in FAULTS:
        told, near = OF_THE_LOOP.get(fault.name), fault.name in NEAR_A_SETTING
        kind = "loop" if told else "near" if near else "unknown"
        truth = (told,) if told else ()
        yield fault.name, lambda fault=fault, kind=kind, truth=truth: bench.row(kind, truth, (), fault)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=Path("build/causes"))
    parser.add_argument("--state", type=Path, default=Path("build/causes.json"))
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the initial noise; give another work folder too")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--record", action="store_true", help="record the candidates, explain none")
    options = parser.parse_args()
    options.state.parent.mkdir(parents=True, exist_ok=True)
    state = fault_bench.State(options.state)
    bench = Bench(options.work, options.seed, options.record)
    for name, make in rows(bench):
        if options.only and not any(part in name for part in options.only):
            continue

        def guarded(make: Any = make) -> dict[str, Any]:
            try:
                row: dict[str, Any] = make()
            except Exception as error:  # a patch that does not run is no fault
                row = {"kind": "broken", "truth": (), "reason": f"{type(error).__name__}: {error}"}
            return row

        row = state.row(name, guarded)
        said = row.get("told") or row.get("mute") or {"named": row.get("reason"), "unknown": "", "seconds": 0}
        print(name, said["named"], said["unknown"], row.get("recorded"), said["seconds"], flush=True)
    if options.markdown:
        options.markdown.write_text(markdown(json.loads(options.state.read_text())))


if __name__ == "__main__":
    main()
