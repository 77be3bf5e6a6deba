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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from full_size_models import MODELS, Model
from full_size_plan import Plan, plan_of

from parity.errors import ParityError
from parity.tpu.compiled import Compiled, Made, compile_candidate
from parity.tpu.request import Request

DEPTHS = (2, 4)
"""Blocks that are compiled."""

COMMON = ("dtype=bfloat16", "matmul_precision=default", "attention.kernel=splash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: a model on a mesh.

    Attributes:
        model: of `MODELS`. topology: `v6e:2x4`. mesh: (dp, sp, tp). blocks: splash's, of queries and keys; 0 for what
            parity takes where no setting says.
    """

    model: str
    topology: str
    mesh: tuple[int, int, int] = (1, 1, 8)
    blocks: tuple[int, int] = (2048, 2048)

    @property
    def name(self) -> str:
        return f"{self.model} {self.topology} {self.axes} {self.tiles}"

    @property
    def axes(self) -> str:
        named = zip(("dp", "sp", "tp"), self.mesh, strict=True)
        return ",".join(f"{axis}={n}" for axis, n in named if n > 1) or "one device"

    @property
    def tiles(self) -> str:
        return "x".join(map(str, self.blocks)) if any(self.blocks) else "default"

    @property
    def settings(self) -> tuple[str, ...]:
        mesh = ",".join(f"{axis}={n}" for axis, n in zip(("dp", "sp", "tp"), self.mesh, strict=True))
        q, kv = self.blocks
        return (*COMMON, f"mesh={mesh}", f"attention.block_q={q}", f"attention.block_kv={kv}")


def _cases() -> Sequence[Case]:
    """The most telling first: what time does not allow is left out from the end."""
    chips, meshes = ("v6e:2x4", "v5p:2x2x2"), ((1, 1, 8), (1, 8, 1), (2, 1, 4))
    tiles = ((2048, 2048), (0, 0), (3328, 2816))
    first = [Case(model=model, topology=chip) for chip in chips for model in MODELS]
    first += [Case(model=model, topology=chips[0], blocks=blocks) for blocks in tiles for model in MODELS]
    first += [Case(model=model, topology=chips[0], mesh=mesh) for mesh in meshes for model in MODELS]
    rest = [
        Case(model=model, topology=chip, mesh=mesh, blocks=blocks)
        for blocks in tiles
        for mesh in meshes
        for chip in chips
        for model in MODELS
    ]
    return tuple(dict.fromkeys((*first, *rest)))


CASES: Mapping[str, Case] = {case.name: case for case in _cases()}


@dataclass(frozen=True, kw_only=True)
class Program:
    """One compiled program, of a device.

    Attributes:
        refusal: the compiler's, in a person's words; empty where there is none. memory: bytes by `arguments`,
            `temporaries`, `output`, `code`, `aliased`. accessed: bytes. flops: of its products and kernels.
        collectives: kind -> (how many, bytes). seconds: that the compiler took.
    """

    refusal: str = ""
    memory: Mapping[str, int] = field(default_factory=dict)
    accessed: int = 0
    flops: int = 0
    collectives: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one case at one depth.

    Attributes:
        failed: why there is no program, where parity could not tell; empty else. units: of the unobserved program,
            and how many of them the observed one has.
    """

    case: str
    depth: int
    failed: str = ""
    plain: Program | None = None
    observed: Program | None = None
    units: tuple[int, int] = (0, 0)

    @property
    def key(self) -> str:
        return f"{self.case} {self.depth}"

    def line(self) -> str:
        """For people."""
        if self.plain is None or self.observed is None:
            return f"{self.key}: {self.failed}"
        if self.plain.refusal or self.observed.refusal:
            return f"{self.key}: refused: {self.plain.refusal or self.observed.refusal}"
        more = self.observed.memory["temporaries"] / max(self.plain.memory["temporaries"], 1)
        read = self.observed.accessed / max(self.plain.accessed, 1)
        return (
            f"{self.key}: {self.units[1]} of {self.units[0]} units unchanged, bytes accessed {read:.2f} x, temporaries "
            f"{more:.2f} x ({self.plain.seconds:.0f} and {self.observed.seconds:.0f} s)"
        )


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
    units = (0, 0) if found.observing is None else (found.observing.before, found.observing.same)
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
    parser.add_argument("--state", type=Path, default=Path(".full-size.json"))
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
        from full_size_table import document

        given.markdown.write_text(document(CASES, MODELS, outcomes, plans), encoding="utf-8")


if __name__ == "__main__":
    main()
