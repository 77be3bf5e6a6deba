"""The table of full size: two models as their checkpoints have them, compiled for TPUs that are not here.

    python benchmarks/full_size.py [--case NAME]... [--depth N]... [--state FILE] [--markdown FILE] [--limit SECONDS]

Each case is a model, a topology, a mesh and splash's blocks, as `parity compile --sites blocks` has it with the configs
of `full_size_models.py`: no weight is made. Two depths are compiled, the rest is their difference. Outcomes are kept in
the state file as they come, so that a stopped run goes on: a program takes minutes and gigabytes, and its observed twin
is compiled beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from full_size_cases import CASES, DEPTHS, Case, Outcome, Program
from full_size_models import MODELS, Model
from full_size_plan import Plan, plan_of
from full_size_table import document

from parity.errors import ParityError
from parity.tpu.compiled import Compiled, Made, compile_candidate
from parity.tpu.request import Request


def quiet(text: str, done: int | None = None, total: int | None = None) -> None:
    """No progress."""


def outcome(case: Case, model: Model, depth: int, limit: float) -> Outcome:
    """Compile one case at one depth, unobserved and observed."""
    with tempfile.TemporaryDirectory() as folder:
        request = Request(
            model=str(model.write(Path(folder), depth)),
            topology=case.topology,
            candidate=case.settings,
            sites="blocks",
        )
        try:
            found = compile_candidate(request, (), limit, quiet)
        except ParityError as error:
            return Outcome(case=case.name, depth=depth, failed=str(error).replace(folder, "FOLDER"))
    return _told(case, depth, found)


def _told(case: Case, depth: int, found: Compiled) -> Outcome:
    assert found.observed is not None
    effect = found.observing
    units = (0, 0, 0) if effect is None else (effect.before, effect.same, sum(count for _, count in effect.cut))
    return Outcome(
        case=case.name, depth=depth, plain=_program(found.plain), observed=_program(found.observed), units=units
    )


def _program(made: Made) -> Program:
    if made.figures is None:
        return Program(refusal="" if made.refusal is None else made.refusal.sentence, seconds=made.answer.seconds)
    return Program(
        memory=dict(made.answer.memory),
        accessed=made.figures.accessed,
        flops=made.figures.flops,
        collectives={c.kind: (c.count, c.bytes) for c in made.figures.collectives},
        seconds=made.answer.seconds,
    )


def read_state(path: Path) -> tuple[dict[str, Outcome], dict[str, Plan]]:
    """Outcomes and plans that are known."""
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"outcomes": {}, "plans": {}}
    return {key: _outcome(row) for key, row in held["outcomes"].items()}, {
        name: Plan(**row) for name, row in held["plans"].items()
    }


def _outcome(row: Mapping[str, Any]) -> Outcome:
    held = dict(row)
    for name in ("plain", "observed"):
        program = held[name]
        if program is not None:
            sent = {kind: tuple(pair) for kind, pair in program["collectives"].items()}
            held[name] = Program(**{**program, "collectives": sent})
    return Outcome(**{**held, "units": tuple(held["units"])})


def write_state(path: Path, outcomes: Mapping[str, Outcome], plans: Mapping[str, Plan]) -> None:
    """Both, to be gone on with."""
    held = {
        "outcomes": {key: asdict(o) for key, o in outcomes.items()},
        "plans": {name: asdict(plan) for name, plan in plans.items()},
    }
    path.write_text(json.dumps(held, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", action="append", choices=tuple(CASES), metavar="NAME", help="of the table's rows")
    parser.add_argument("--depth", action="append", type=int, help="blocks to compile")
    parser.add_argument("--state", type=Path, default=Path(__file__).with_name("full_size.json"))
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds that the compiler may take for a program")
    parser.add_argument("--hours", type=float, default=1000.0, help="hours after which no other case is begun")
    given = parser.parse_args()
    outcomes, plans = read_state(given.state)
    for name, model in MODELS.items():
        if name not in plans:
            plans[name] = plan_of(model)
            write_state(given.state, outcomes, plans)
    began = time.monotonic()
    for name in given.case or tuple(CASES):
        for depth in given.depth or DEPTHS:
            case = CASES[name]
            key = f"{name} {depth}"
            if key not in outcomes and time.monotonic() - began < 3600 * given.hours:
                outcomes[key] = outcome(case, MODELS[case.model], depth, given.limit)
                write_state(given.state, outcomes, plans)
            if key in outcomes:
                print(outcomes[key].line(), flush=True)
    if given.markdown is not None:
        given.markdown.write_text(document(CASES, MODELS, outcomes, plans), encoding="utf-8")


if __name__ == "__main__":
    main()
