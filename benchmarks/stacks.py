"""Stacks: four faults at once, drawn by a seed. Does one run list every module that has one, and none that has not?

    python benchmarks/stacks.py [--state FILE]

Faults of `fault_catalogue` that sit inside the model, in float32, at four modules of tiny-hunyuan-video-1.5; those that
preflight sees end a run before a forward. The catalogue was known when following was made; the draw was not. Half a
minute a stack.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before jax is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import jax

from parity.paths.worker.extras import quieten, require_extras

quieten()
require_extras()

from fault_catalogue import FAULTS, Variant
from known_reference import Known
from stamp import Row, State, publish

from parity.compare.independent import differences
from parity.compare.places import code_of
from parity.compare.sites import introduced

SEED, STACKS, EACH = 20261126, 20, 4
BEFORE = ("rope", "preflight", "loop")
"""Places that preflight or the loop's own numbers show."""
ALONE = ("text_of_the_other_branch_cached", "block_skipped")
"""One that this model does not show, and one behind which others of its block are not computed."""


def drawn() -> list[list[Variant]]:
    """The stacks, each with its faults in the catalogue's order."""
    draw = random.Random(SEED)
    inside = [f for f in FAULTS if f.at not in BEFORE and f.steps == 1 and not f.settings and f.name not in ALONE]
    found: list[list[Variant]] = []
    while len(found) < STACKS:
        stack = sorted(draw.sample(inside, EACH), key=inside.index)
        if len({f.at for f in stack}) == EACH:
            found.append(stack)
    return found


def row(known: Known, stack: Sequence[Variant]) -> Row:
    """What one run lists of a stack."""
    jax.clear_caches()
    gc.collect()
    side = known.candidate()
    with contextlib.ExitStack() as patches:
        for fault in stack:
            patches.enter_context(fault.apply(side))
        result = known.judge(side)
    codes = {code_of(d.key.site) for d in introduced(result)}
    places = {fault.name: code_of(f"{fault.at}:out") for fault in stack}
    seen = [name for name, place in places.items() if any(_at(code, place) for code in codes)]
    invented = sorted(code for code in codes if not any(_at(code, place) for place in places.values()))
    listed = [str(d) for d in differences(result)]
    return {"verdict": result.verdict, "faults": len(stack), "seen": seen, "invented": invented, "listed": listed}


def _at(code: str, place: str) -> bool:
    """Whether a module's code is that in which a fault sits, or is called by it."""
    if place == "the model's output":  # its own code makes its children's inputs, and takes its arguments
        return code == place or code.startswith("the argument") or "'s " in code
    return code == place or code.startswith(f"{place}.")


def markdown(document: Mapping[str, Any]) -> str:
    """The page."""
    rows: Mapping[str, Row] = document["rows"]
    faults, seen = (sum(n) for n in zip(*((r["faults"], len(r["seen"])) for r in rows.values()), strict=True))
    invented = sum(len(r["invented"]) for r in rows.values())
    lines = [
        "# Stacks", "",
        f"{len(rows)} stacks of {EACH} faults of the fault bench's catalogue in one candidate, drawn by seed {SEED} "
        f"(`make stacks`, commit {document['commit']}): {seen} of {faults} faults listed by one run, {invented} places "
        "listed that have none.", "",
        "| faults | listed |", "|---|---|",
    ]  # fmt: skip
    lines += [f"| {name.replace('+', ', ')} | {'; '.join(r['listed'])} |" for name, r in rows.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, default=Path(".stacks.json"))
    state, known = State(parser.parse_args().state), Known("float32", 1)
    for stack in drawn():
        name = "+".join(fault.name for fault in stack)
        found = state.row(name, row, known, stack)
        print(name, found["verdict"], f"{len(found['seen'])} of {found['faults']}", found["invented"], flush=True)
    publish("stacks", state.rows, markdown)


if __name__ == "__main__":
    main()
