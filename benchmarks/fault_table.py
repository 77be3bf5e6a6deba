"""The fault bench's rows as a Markdown page: what was detected, where, and by its rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import stamp
from fault_catalogue import FAULTS, Variant
from innocents import INNOCENTS

Row = Mapping[str, Any]

DTYPES = ("float32", "bfloat16")
SEEDS = range(5)
"""Of each innocent variant."""


def parent(module: str) -> str:
    """The callable module above; a list of modules is none."""
    above = module.rpartition(".")[0]
    return parent(above) if above.rpartition(".")[2] in LISTS else above


LISTS = ("net", "transformer_blocks", "to_out", "refiner_blocks")


def right(fault: Variant, row: Row) -> bool:
    """Whether a row's origin is the exact module, its attention call or its direct parent.

    Where a module's own code gives a child the wrong input, that input is the exact place; rotary tables are compared
    by preflight.
    """
    found = row.get("origin", "").partition(":")[0]
    if row["verdict"] != "fail":
        return False
    if fault.at in ("preflight", "loop"):
        return bool(found == fault.at)
    if found == "preflight":
        return fault.at == "rope" and row["reason"].removeprefix("preflight: ").startswith("rotary tables")
    above = parent(found) if row.get("birth") == "input" else None
    return found in {fault.at, f"{fault.at}.attention", parent(fault.at)} or above == fault.at


HEAD = """# Fault bench

`make fault-bench` runs it on the tiny HunyuanVideo-1.5 and renders this page from
`benchmarks/results/fault-bench.json`. float32 is the logic check as `parity run` does it. bfloat16, precision
alone, is what `parity run --checks precision` does with bfloat16 on both sides. By default a
bfloat16 pair goes through the logic check first: the row of both checks counts what either finds. An alarm is any
verdict but a pass. The faults and the rules that find them have one author, and the set is exhausted: it shows what
was lost, not how good the verdict is (`mutants`, history).
"""


def markdown(kept: Mapping[str, Any]) -> str:
    """The page of a whole run."""
    rows = kept["rows"]
    out = [HEAD, stamp.line(kept), "", *_summary(rows), ""]
    out += ["| fault | group | sits at | float32 | bfloat16 |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        cells = [_cell(rows[f"{dtype}/{fault.name}"], fault) for dtype in DTYPES]
        out.append(f"| {fault.name} | {fault.group} | `{fault.at or '(model)'}` | {' | '.join(cells)} |")
    out += [
        "",
        "| innocent variant | float32: alarms, largest ratio | bfloat16, precision alone |",
        "|---|---|---|",
    ]
    for innocent in INNOCENTS:
        cells = [_alarms([rows[f"{dtype}/{seed}/{innocent.name}"] for seed in SEEDS]) for dtype in DTYPES]
        out.append(f"| {innocent.name} | {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def _summary(rows: Mapping[str, Row]) -> list[str]:
    faults = [[rows[f"{dtype}/{fault.name}"] for fault in FAULTS] for dtype in DTYPES]
    clean = [[rows[f"{dtype}/{seed}/{i.name}"] for i in INNOCENTS for seed in SEEDS] for dtype in DTYPES]
    # Of a bfloat16 pair by default: the logic check first.
    faults.append([first if _found(first) else second for first, second in zip(*faults, strict=True)])
    clean.append([first if first["verdict"] != "pass" else second for first, second in zip(*clean, strict=True)])
    out = ["| | detected | origin right | false alarms |", "|---|---|---|---|"]
    titles = ("float32", "bfloat16, precision alone", "bfloat16, both checks")
    for title, judged, rest in zip(titles, faults, clean, strict=True):
        found = [(fault, row) for fault, row in zip(FAULTS, judged, strict=True) if _found(row)]
        placed, alarms = sum(right(*pair) for pair in found), sum(row["verdict"] != "pass" for row in rest)
        figures = ((len(found), judged), (placed, found), (alarms, rest))
        out.append(f"| parity, {title} | " + " | ".join(f"{n} of {len(of)}" for n, of in figures) + " |")
    return out


def _found(row: Row) -> bool:
    return row["verdict"] in ("fail", "inconclusive")


def _cell(row: Row, fault: Variant) -> str:
    if row["verdict"] == "pass" and row.get("local") is not None:
        return f"pass: at most {row['local']:.2f} local floors, at `{row['local_at']}`"
    if row["verdict"] != "fail":
        return str(row["verdict"])
    return "found" if right(fault, row) else f"found, origin `{row['origin']}`"


def _alarms(run: list[Row]) -> str:
    alarms = sum(row["verdict"] != "pass" for row in run)
    local = [row["local"] for row in run if row.get("local") is not None]
    alone = f", {max(local):.2f}" if local else ""
    return f"{alarms} of {len(run)}, {max(row.get('worst', float('nan')) for row in run):.2f}{alone}"
