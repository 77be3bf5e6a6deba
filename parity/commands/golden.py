"""`parity inspect` and `parity merge`: what is in a golden, and one golden from several.

How. Each command calls one function of `parity.golden` and prints what it returns: tables on a terminal, plain lines
with tabs between fields in a pipe (NO_COLOR and TERM are rich's to keep), or one JSON document. rich is imported only
where a table is drawn.

Cost. Starting: numpy and typer. `inspect` reads `golden.json` alone, unless a step or `--verify` is asked for.
"""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer

from parity.commands.options import JsonOption
from parity.golden import Golden, Problem, Record, StepRecords, fingerprint_bytes, verify
from parity.golden import merge as merge_goldens
from parity.golden.strict import number

Row = tuple[str, ...]


def inspect(
    golden: Annotated[str, typer.Argument(help="Folder or URL of the golden.", metavar="GOLDEN")],
    verify_all: Annotated[
        bool, typer.Option("--verify", help="Check every part; exit 2 where anything is wrong.")
    ] = False,
    step: Annotated[
        int | None, typer.Option("--step", help="List the records of this step (-1: before the loop).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is in a golden."""
    opened = Golden.open(golden)
    problems = verify(golden) if verify_all else None
    records = None if step is None else opened.read_step(step)
    if as_json:
        # ASCII, so that no locale can fail on a site's name.
        print(json_module.dumps(document(opened, problems, records), indent=1))
    else:
        _print_summary(opened)
        if records is not None:
            _print_table(f"Step {records.step}", _RECORD_COLUMNS, [_record_row(records, r) for r in records.records])
        if problems is not None:
            _print_problems(problems)
    if problems:
        raise typer.Exit(2)


def merge(
    out: Annotated[str, typer.Argument(help="Folder or URL of the new golden.", metavar="OUT")],
    parts: Annotated[list[str], typer.Argument(help="The goldens to merge.", metavar="PART...")],
) -> None:
    """Merge goldens: shards add up, disjoint steps stand side by side, conflicts are refused."""
    merge_goldens(out, parts)
    merged = Golden.open(out)
    print(f"{out}: {len(parts)} merged, {_steps(merged)}, {_size(merged.bytes)}", file=sys.stderr)


def document(golden: Golden, problems: list[Problem] | None, records: StepRecords | None) -> dict[str, Any]:
    """What `parity inspect --json` prints; numbers that JSON cannot write are strings such as "nan"."""
    parts = [{"step": part.step, "file": part.file, "bytes": part.bytes, "records": part.records, "sha256": part.sha256}
             for part in golden.manifest.parts]  # fmt: skip
    result: dict[str, Any] = {
        "format": 1,
        "golden": golden.name,
        "complete": golden.complete,
        "bytes": golden.bytes,
        "steps": list(golden.steps),
        "provenance": asdict(golden.provenance),
        "parts": parts,
        "problems": None if problems is None else [asdict(problem) for problem in problems],
    }
    if records is not None:
        result["records"] = [_record_document(records, record) for record in records.records]
    return result


def _record_document(step: StepRecords, record: Record) -> dict[str, Any]:
    floor = step.floors.get(record.key)
    moments = None if record.moments is None else asdict(record.moments)
    scalar = None if record.value is None or isinstance(record.value, np.ndarray) else record.value
    return {
        **asdict(record.key),
        "kind": record.kind,
        "shape": list(record.shape),
        "dtype": record.dtype,
        "rows": record.rows,
        "frame": list(record.frame),
        "moments": moments and {n: number(v) if isinstance(v, float) else v for n, v in moments.items()},
        "scalar": number(scalar) if isinstance(scalar, float) else scalar,
        "sketch": record.sketch is not None,
        "value": isinstance(record.value, np.ndarray),
        "floor": None if floor is None else {"l2": number(floor.l2), "local_l2": number(floor.local_l2)},
    }


def _steps(golden: Golden) -> str:
    """The steps held, runs of them shortened: `3 steps: -1, 0-1`."""
    runs: list[list[int]] = []
    for step in golden.steps:
        if runs and step == runs[-1][-1] + 1 and step > 0:
            runs[-1].append(step)
        else:
            runs.append([step])
    held = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{len(golden.steps)} steps" + (f": {held}" if held else "")


def _size(count: int) -> str:
    if count < 1000:
        return f"{count} bytes"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def _print_summary(golden: Golden) -> None:
    provenance = golden.provenance
    index, count = provenance.shard
    weights = fingerprint_bytes("", (), (f"{name}={value}\n".encode() for name, value in provenance.weights.items()))
    rows: list[Row] = [
        ("golden", golden.name),
        ("state", "complete" if golden.complete else "incomplete: its recording was not finished"),
        ("holds", f"{_steps(golden)}, {sum(p.records for p in golden.manifest.parts)} records, {_size(golden.bytes)}"),
        ("model", provenance.model),
        ("path", f"{provenance.side}, {provenance.backend}"),
        ("run", f"{provenance.steps} steps, seed {provenance.seed}"),
        ("weights", f"{len(provenance.weights)} tensors, {weights}" if provenance.weights else "not fingerprinted"),
        ("devices", ", ".join(provenance.devices)),
        ("commit", provenance.commit),
        ("command", provenance.command),
        ("shard", f"{index} of {count}" if count > 1 else ""),
        *((f"input {name}", value) for name, value in provenance.inputs.items()),
        *((f"version {name}", value) for name, value in provenance.versions.items()),
    ]
    _print_table("", ("", ""), [row for row in rows if row[1]])
    if provenance.settings:
        _print_table("Settings", ("setting", "value"), list(provenance.settings.items()))
    parts = [(str(p.step), p.file, str(p.records), _size(p.bytes)) for p in golden.manifest.parts]
    _print_table("Parts", ("step", "file", "records", "size"), parts)


_RECORD_COLUMNS = ("stage", "branch", "site", "call", "dtype", "shape", "min", "max", "l2", "bad", "floor", "held")


def _record_row(step: StepRecords, record: Record) -> Row:
    key, moments, floor = record.key, record.moments, step.floors.get(record.key)
    value = isinstance(record.value, np.ndarray)
    held = [name for name, there in (("sketch", record.sketch is not None), ("value", value)) if there]
    if record.kind != "tensor":
        held = ["None" if record.value is None else repr(record.value)]
    shape = "x".join(map(str, record.shape)) if record.kind == "tensor" else ""
    return (
        key.stage,
        key.branch,
        key.site,
        str(key.call),
        record.dtype,
        shape,
        *(("", "", "") if moments is None else (f"{n:.4g}" for n in (moments.min, moments.max, moments.l2))),
        "" if moments is None else str(moments.nan + moments.inf),
        "" if floor is None else f"{floor.l2:.3g}",
        " ".join(held),
    )


def _print_problems(problems: list[Problem]) -> None:
    if not problems:
        print("verified: every part is whole")
    for problem in problems:
        print(f"problem: {_one_line(problem.message)}")


def _one_line(text: str) -> str:
    """Names come from a file of somebody else's: control characters and odd ones must not reach the terminal."""
    encoding = sys.stdout.encoding or "ascii"
    printable = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return printable.encode(encoding, "backslashreplace").decode(encoding)


def _print_table(title: str, columns: Row, rows: Sequence[Row]) -> None:
    rows = [tuple(_one_line(cell) for cell in row) for row in rows]
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join((title.lower(), *row) if title else row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_header=bool(title))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a site's brackets are not markup
    Console().print(table)
