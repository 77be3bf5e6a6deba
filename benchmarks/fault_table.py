"""The fault bench's rows as a Markdown page: what was detected, where, and by whose rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fault_bench import DTYPES, right
from fault_catalogue import FAULTS
from innocents import INNOCENTS

Row = Mapping[str, Any]


def markdown(rows: Mapping[str, Row]) -> str:
    """The page; faults and variants that were not run are left out and counted."""
    out = [
        "# Fault bench",
        "",
        "Printed by `python benchmarks/fault_bench.py --innocents --markdown docs/fault-bench.md` on the tiny",
        "HunyuanVideo-1.5, on two CPU cores. float32 is the structure round as `parity run` does it; bfloat16 is the",
        "precision round alone, bfloat16 on both sides, with `--forcing module`: as the tool runs a bfloat16 pair, the",
        "structure round comes first and finds what the float32 column finds. The noise of `1.5 x noise` is the tool's",
        "own floor. What passes in bfloat16 stays within the local floors of the blocks and top modules, which are run",
        "alone there; the faulty module inside a block is run alone only where its block fails, so whether its own",
        "error is beyond its floor was not measured.",
        "",
    ]
    out += _summary(rows)
    out += ["", "## Faults", "", "| fault | group | sits at | float32 | bfloat16 |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        cells = [_cell(rows.get(f"{dtype}/{fault.name}"), fault) for dtype in DTYPES]
        out.append(f"| {fault.name} | {fault.group} | `{fault.at or '(model)'}` | {' | '.join(cells)} |")
    out += ["", "## Innocent variants", "", "| variant | float32: alarms, largest ratio | bfloat16 |", "|---|---|---|"]
    for innocent in INNOCENTS:
        cells = [_innocent(rows, dtype, innocent.name) for dtype in DTYPES]
        out.append(f"| {innocent.name} | {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def _summary(rows: Mapping[str, Row]) -> list[str]:
    out = ["| | detected | origin right | false alarms |", "|---|---|---|---|"]
    for dtype in DTYPES:
        held = [(f, rows[f"{dtype}/{f.name}"]) for f in FAULTS if f"{dtype}/{f.name}" in rows]
        found = [(f, r) for f, r in held if r["verdict"] in ("fail", "unjudged")]
        placed = sum(right(f, r) for f, r in found)
        clean = _innocents(rows, dtype)
        alarms = sum(r["verdict"] != "pass" for r in clean)
        out.append(
            f"| parity, {dtype} | {len(found)} of {len(held)} | {placed} of {len(found)} | {alarms} of {len(clean)} |"
        )
    names = next((list(r["rivals"]) for r in rows.values() if "rivals" in r), [])
    for dtype in DTYPES:
        # What preflight stops has no outputs for a rule to judge.
        judged = [
            r for f in FAULTS if "rivals" in (r := rows.get(f"{dtype}/{f.name}", {})) and r["origin"] != "preflight"
        ]
        clean = _innocents(rows, dtype)
        for name in names:
            hit = sum(r["rivals"][name] for r in judged)
            alarms = sum(r["rivals"][name] for r in clean if "rivals" in r)
            out.append(f"| {name}, {dtype} | {hit} of {len(judged)} | - | {alarms} of {len(clean)} |")
    return out


def _innocents(rows: Mapping[str, Row], dtype: str) -> list[Row]:
    return [r for name, r in rows.items() if name.startswith(f"{dtype}/") and name.count("/") == 2]


def _cell(row: Row | None, fault: Any) -> str:
    if row is None:
        return "not run"
    if row["verdict"] != "fail":
        return str(row["verdict"])
    return "found" if right(fault, row) else f"found, origin `{row['origin']}`"


def _innocent(rows: Mapping[str, Row], dtype: str, name: str) -> str:
    run: Iterable[Row] = [r for key, r in rows.items() if key.startswith(f"{dtype}/") and key.endswith(f"/{name}")]
    run = list(run)
    if not run:
        return "not run"
    alarms = sum(r["verdict"] != "pass" for r in run)
    return f"{alarms} of {len(run)}, {max(r.get('worst', float('nan')) for r in run):.2f}"
