"""The fault bench's rows as a Markdown page: what was detected, where, and by its rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import stamp
from fault_catalogue import FAULTS, Fault
from innocents import INNOCENTS

Row = Mapping[str, Any]

DTYPES = ("float32", "bfloat16")


def parent(module: str) -> str:
    """The callable module above; a list of modules is none."""
    above = module.rpartition(".")[0]
    return parent(above) if above.rpartition(".")[2] in LISTS else above


LISTS = ("net", "transformer_blocks", "to_out", "refiner_blocks")


def right(fault: Fault, row: Row) -> bool:
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
`benchmarks/results/fault-bench.json`. float32 is the structure round as `parity run` does it. bfloat16, precision
alone, is what `parity run --rounds precision --forcing module` does with bfloat16 on both sides, but that every
module, not only the blocks, is run alone on the reference's inputs and judged by its local floor. By default a
bfloat16 pair goes through the structure round first: the row of both rounds counts what either finds. An alarm is any
verdict but a pass. The faults and the rules that find them have one author, and the set is exhausted: it shows what
was lost, not how good the verdict is (`mutants`, history).
"""


def markdown(kept: Mapping[str, Any]) -> str:
    """The page."""
    rows = kept["rows"]
    out = [HEAD, stamp.line(kept), "", *_summary(rows), ""]
    out += ["| fault | group | sits at | float32 | bfloat16 |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        cells = [_cell(rows.get(f"{dtype}/{fault.name}"), fault) for dtype in DTYPES]
        out.append(f"| {fault.name} | {fault.group} | `{fault.at or '(model)'}` | {' | '.join(cells)} |")
    out += [
        "",
        "| innocent variant | float32: alarms, largest ratio | bfloat16, with modules run alone |",
        "|---|---|---|",
    ]
    for innocent in INNOCENTS:
        cells = [_innocent(rows, dtype, innocent.name) for dtype in DTYPES]
        out.append(f"| {innocent.name} | {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def _summary(rows: Mapping[str, Row]) -> list[str]:
    out = ["| | detected | origin right | false alarms |", "|---|---|---|---|"]
    for dtype, title in zip(DTYPES, ("float32", "bfloat16, precision alone"), strict=True):
        held = [(f, rows[f"{dtype}/{f.name}"]) for f in FAULTS if f"{dtype}/{f.name}" in rows]
        out.append(_line(title, held, _innocents(rows, dtype)))
    both = [[(f, rows.get(f"{dtype}/{f.name}")) for dtype in DTYPES] for f in FAULTS]
    held = [(f, a if _found(a) else b) for (f, a), (_, b) in both if a is not None and b is not None]
    pairs = [(r, rows.get(name.replace("bfloat16/", "float32/"))) for name, r in rows.items() if _is_innocent(name)]
    clean = [b if a["verdict"] == "pass" else a for a, b in pairs if b is not None]
    return [*out, _line("bfloat16, both rounds", held, clean)]


def _line(title: str, held: Sequence[tuple[Fault, Row]], clean: Sequence[Row] | None = None) -> str:
    found = [(f, r) for f, r in held if _found(r)]
    placed = sum(right(f, r) for f, r in found)
    alarms = "-" if clean is None else f"{sum(r['verdict'] != 'pass' for r in clean)} of {len(clean)}"
    return f"| parity, {title} | {len(found)} of {len(held)} | {placed} of {len(found)} | {alarms} |"


def _found(row: Row) -> bool:
    return row["verdict"] in ("fail", "unjudged")


def _is_innocent(name: str, dtype: str = "bfloat16") -> bool:
    return name.startswith(f"{dtype}/") and name.count("/") == 2


def _innocents(rows: Mapping[str, Row], dtype: str) -> list[Row]:
    return [r for name, r in rows.items() if _is_innocent(name, dtype)]


def _cell(row: Row | None, fault: Fault) -> str:
    if row is None:
        return "not run"
    if row["verdict"] == "pass" and row.get("local") is not None:
        return f"pass: at most {row['local']:.2f} local floors, at `{row['local_at']}`"
    if row["verdict"] != "fail":
        return str(row["verdict"])
    return "found" if right(fault, row) else f"found, origin `{row['origin']}`"


def _innocent(rows: Mapping[str, Row], dtype: str, name: str) -> str:
    run = [r for key, r in rows.items() if _is_innocent(key, dtype) and key.endswith(f"/{name}")]
    if not run:
        return "not run"
    alarms = sum(r["verdict"] != "pass" for r in run)
    local = [r["local"] for r in run if r.get("local") is not None]
    alone = f", {max(local):.2f}" if local else ""
    return f"{alarms} of {len(run)}, {max(r.get('worst', float('nan')) for r in run):.2f}{alone}"
