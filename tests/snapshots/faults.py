"""Rows of the fault bench as they were, and what has become worse in a later state file.

A row is worse where a fault that failed does not fail any more, or where its first divergence is no longer where the
fault sits; a row that finds another place is listed for a person to judge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

ROWS = Path(__file__).with_name("fault_rows.json")
KEPT = ("verdict", "origin", "birth")

Row = Mapping[str, str]


def keep(state: Path) -> int:
    """Write the rows of a state file of `benchmarks/fault_bench.py`; returns how many."""
    rows = _rows(state)
    text = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    ROWS.write_text("{\n" + text + "\n}\n")
    return len(rows)


def worse(state: Path, rows: Path = ROWS) -> list[str]:
    """What differs from the kept rows, one line each; rows that the state file lacks are listed too."""
    return compare_rows(_rows(rows), _rows(state))


def compare_rows(old: Mapping[str, Row], new: Mapping[str, Row]) -> list[str]:
    """See `worse`."""
    found = []
    for name, row in old.items():
        now = new.get(name)
        if now is None:
            found.append(f"{name}: not run")
        elif now["verdict"] != row["verdict"]:
            word = "WORSE" if row["verdict"] == "fail" else "better"
            found.append(f"{name}: {word}: {row['verdict']} -> {now['verdict']}")
        elif (now["origin"], now["birth"]) != (row["origin"], row["birth"]):
            found.append(f"{name}: elsewhere: {row['origin']} {row['birth']} -> {now['origin']} {now['birth']}")
    return found


def _rows(state: Path) -> dict[str, dict[str, str]]:
    return {name: {key: str(row.get(key, "")) for key in KEPT} for name, row in json.loads(state.read_text()).items()}
