"""REAL-40: changes from the history of public repositories, each run through parity as it is.

    python benchmarks/history [--only NAME]... [--state FILE] [--render]

Where each change lies and why is written down beside it (`*_faults.py`). Rows are kept in the state file as they come,
so that a stopped run goes on; a whole run is kept in `benchmarks/results` and rendered. A few seconds a row.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import program  # it sets up what is imported next

# isort: split
import judge
import rivals
from change import Change
from every_change import CHANGES
from program import Row, Rows, table

FIRST = {
    "detected": "53 of 56",
    "innocents alarmed": "2 of 11",
    "right module": "52 of 53",
    "cause named": "39, with `unknown` where none is meant",
    "wrong cause": "0",
}
"""The figures of the first run; what is beside them on the page is of now."""


def row(change: Change) -> dict[str, Any]:
    """Everything that is told of a change."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, judge.silent():
        found = judge.row(change, Path(folder) / "run")
        measured = rivals.effect(change)
    right = {"placed": judge.placed(change, found), "named": judge.named(change, found)}
    return {**found, **right, **measured, "seconds": round(time.perf_counter() - began, 1)}


def line(change: Change, found: Row) -> str:
    """One change, for the terminal."""
    if change.innocent:
        told = "passes" if found["verdict"] == "pass" else f"ALARM {found['verdict']}: {found['reason'][:120]}"
        return f"{change.name:34} innocent  {told}"
    if found["verdict"] != "fail":
        return f"{change.name:34} {found['verdict'].upper()}  {found['reason'][:140]}"
    where = found["place"] or found["failed"]
    place = f"at {where}" if found["placed"] else f"PLACE {where} (meant: {', '.join(change.at)})"
    return f"{change.name:34} found  {place}  cause {found['named']}: {_told(found)}  effect {found['effect']:.1e}"


def _told(found: Row) -> str:
    return "; ".join(c["setting"] or c["cause"] for c in found["causes"]) or "none"


def figures(rows: Rows) -> dict[str, str]:
    """Name -> how many of how many."""
    known = [(CHANGES[name], found) for name, found in rows.items() if name in CHANGES]
    faults = [(c, r) for c, r in known if not c.innocent and r["above"]]
    detected = [(c, r) for c, r in faults if r["verdict"] == "fail"]
    meant = [r for c, r in detected if c.cause != "unknown"]
    innocents = [r for c, r in known if c.innocent]
    return {
        "detected": f"{len(detected)} of {len(faults)}",
        "innocents alarmed": f"{sum(r['verdict'] != 'pass' for r in innocents)} of {len(innocents)}",
        "right module": f"{sum(r['placed'] for _, r in detected)} of {len(detected)}",
        "cause named": f"{sum(r['named'] == 'right' for r in meant)} of {len(meant)}",
        "wrong cause": f"{sum(r['named'] == 'wrong' for _, r in detected)} of {len(detected)}",
        **{
            rule: f"{sum(bool(r['rivals'][rule]) for _, r in faults)} of {len(faults)}, alarms at "
            f"{sum(bool(r['rivals'][rule]) for r in innocents)} of {len(innocents)} innocents"
            for rule in rivals.RULES
        },
    }


def summary(rows: Rows) -> str:
    return "\n".join(f"{name}: {figure}" for name, figure in figures(rows).items())


def measured(rows: Rows) -> Iterator[str]:
    """The page's figures and rows."""
    now = figures(rows)
    yield from table(("", "first run", "now"), ((name, first, now[name]) for name, first in FIRST.items()))
    yield ""
    told = "; ".join(f"`{rule}` finds {now[rule]}" for rule in rivals.RULES)
    yield "Rules of others on the same tensors, every module's output (`noise`: the reference in float32 against itself"
    yield f"in float64): {told}. They detect as much on such sets: what parity adds is the place, the cause, and that"
    yield "padding does not decide."
    yield ""
    columns = ("change", "source", "what changed", "effect", "verdict", "cause")
    yield from table(columns, (cells(CHANGES[name], found) for name, found in rows.items() if name in CHANGES))


def cells(change: Change, found: Row) -> tuple[str, ...]:
    """One change, for the page."""
    verdict, told = found["verdict"], "-"
    if verdict == "fail":
        meant = "" if found["placed"] else f" (meant: {', '.join(f'`{at}`' for at in change.at)})"
        verdict = f"`{found['place'] or found['failed'] or '-'}`{meant}"
        if not change.innocent:
            told = _told(found) + (f" (meant: {change.cause})" if found["named"] != "right" else "")
    effect = "only rounds" if change.innocent else f"{found['effect']:.1e}"
    repository, mark, at = change.source.partition("#" if "#" in change.source else "@")
    link = f"[{change.source}](https://github.com/{repository}/{'pull' if mark == '#' else 'commit'}/{at})"
    return change.name, link, change.what, effect, verdict, told


if __name__ == "__main__":
    program.main("history", CHANGES, row, line, summary, measured)
