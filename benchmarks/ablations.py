"""What each mechanism of the verdict earns: the mutants and history judged without it.

    python benchmarks/ablations.py [--only NAME]... [--state FILE]

A mechanism that changes nothing here is a candidate to go. Of the mutants those of `results/mutants.json` that ran are
judged again; of history what is run as two ports. Two minutes a mechanism.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import mutants  # it sets up what is imported next
import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "history"))
import judge
import stamp
from every_change import CHANGES
from mutations import mutated

from parity.compare.metrics import compare_values
from parity.compare.result import Distance

NAN = float("nan")
JUDGE, SINGLE, STRUCTURE = "parity.compare.judge", "parity.compare.metrics", "parity.runs.checks"


def without_largest(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float]:
    return (*compare_values(x, y)[:3], NAN)


MECHANISMS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "row bins": {"parity.compare.metrics.bin_norms": lambda s, g: np.zeros((*s.shape[:-1], g.bins))},
    "largest element": {f"{SINGLE}.compare_values": without_largest},
    "following": {f"{STRUCTURE}.Following.add": lambda *_: None},
    "modules in doubt": {"parity.runs.follow.doubtful": lambda *_: ()},
    "behind the first divergence": {f"{STRUCTURE}.behind": lambda result, *_: result},
    "descent into the block": {f"{STRUCTURE}.descend": lambda result, *_, **__: result},
    "unobserved run": {"parity.runs.compare.unobserved": lambda result, *_: result},
    "padding decides nothing": {f"{JUDGE}.read_alone": lambda *_: None},
    "masks by what they let through": {f"{SINGLE}.same_mask": lambda *_: (False, False)},
    "inside and contract": {f"{SINGLE}._unlike": lambda diff, _: replace(diff, distance=Distance(NAN, NAN, math.inf))},
    "nothing on one side": {f"{SINGLE}.nothing": lambda *_: False},
    "two names can only agree": {f"{JUDGE}._tell_apart": lambda _: None},
    "rows in any order": {f"{JUDGE}.set_in_order": lambda *_: None},
    "values in another order": {f"{JUDGE}.excuse_other_orders": lambda *_: None},
    "masks beside equal rows": {f"{JUDGE}.excuse_masks": lambda *_: None},
    "floors of equal inputs": {f"{JUDGE}._narrow": lambda _: None},
    "unread latents": {"parity.compare.conclude._without_unread_latents": lambda sites: sites},
    "arguments of another length": {"parity.compare.conclude._behind_arguments": lambda sites: sites},
}
"""Name -> what stands in its place. None of them can be turned off in the product."""


def judged_without(name: str) -> stamp.Row:
    with contextlib.ExitStack() as stack:
        for target, instead in MECHANISMS[name].items():
            stack.enter_context(mock.patch(target, instead))
        return {"mutants": of_mutants(), "history": of_history()}


def of_mutants() -> dict[str, list[Any]]:
    """Verdict, and whether the place is right, by name."""
    kept, found = stamp.load("mutants"), dict[str, list[Any]]()
    for model in mutants.MODELS:
        of = mutants.subject(model)
        for site in mutants.drawn(of, model, mutants.COUNT, kept["seed"]):
            name = f"{model} {site.name}"
            if kept["rows"][name]["status"] != "broken":
                row = mutants.judged(of, site, mutants.changed(of.made, mutated(of.tree, site)[0]))
                found[name] = [row["verdict"], row.get("placed", False)]
    return found


def of_history() -> dict[str, list[Any]]:
    """The same of the changes in models."""
    found = dict[str, list[Any]]()
    for name, change in CHANGES.items():
        if change.script is None:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    row = judge.told(judge.run(change, Path(folder) / "run")[0])
                except Exception as error:
                    row = {"verdict": type(error).__name__}
            found[name] = [row["verdict"], judge.placed(change, row)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--state", type=Path, default=Path(".ablations.json"))
    options = parser.parse_args()
    state = stamp.State(options.state)
    for name in MECHANISMS:
        if not options.only or name in (*options.only, "nothing"):
            state.row(name, judged_without, name)
            print(line(name, state.rows), flush=True)
    if not options.only:
        told = {name: {kind: changed(state.rows, name, kind) for kind in ("mutants", "history")} for name in state.rows}
        stamp.save("ablations", stamp.stamped(told, stamp.spent(state.rows)))


def changed(rows: Mapping[str, Any], name: str, kind: str) -> dict[str, list[Any]]:
    """What comes out otherwise without a mechanism: [with it, without it] by name."""
    whole = rows["nothing"][kind]
    return {case: [whole[case], other] for case, other in rows[name][kind].items() if other != whole[case]}


def line(name: str, rows: Mapping[str, Any]) -> str:
    """What a mechanism earns, for people."""
    told = []
    for kind in ("mutants", "history"):
        all_of = rows[name][kind].values()
        fails, places = sum(v == "fail" for v, _ in all_of), sum(v == "fail" and p for v, p in all_of)
        told.append(f"{kind}: {fails} fail, {places} placed, {len(changed(rows, name, kind))} other")
    return f"without {name:32} {'; '.join(told)}"


if __name__ == "__main__":
    main()
