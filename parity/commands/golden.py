"""What is in a golden: `parity info GOLDEN`.

Cost. Starting: numpy. `golden.json` alone is read, unless a step or `--verify` is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.filesize import decimal as size

from parity.golden import Golden, Problem, fingerprint_bytes, verify
from parity.golden.fingerprint import WeightPrint
from parity.records import Record, StepRecords
from parity.report.document import Cells, Facts, Listing, Section, Table, counted, finite


def listing(where: str, step: int | None, check: bool) -> tuple[Listing, int]:
    """What is in a golden, and the exit code: 2 where a check finds damage.

    Args:
        step: whose records are listed; None for no step's. check: every part is read.
    """
    opened = Golden.open(where)
    problems = verify(where) if check else None
    records = None if step is None else opened.read_step(step)
    shown = tuple(_sections(opened, problems, records))
    return Listing(document(opened, problems, records), shown), 2 if problems else 0


def document(golden: Golden, problems: list[Problem] | None, records: StepRecords | None) -> dict[str, Any]:
    """As JSON; what was not measured is null."""
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
        "moments": moments and {n: finite(v) if isinstance(v, float) else v for n, v in moments.items()},
        "scalar": finite(scalar) if isinstance(scalar, float) else scalar,
        "sketch": record.sketch is not None,
        "value": isinstance(record.value, np.ndarray),
        "floor": None if floor is None else {"l2": finite(floor.l2), "local_l2": finite(floor.local_l2)},
    }


def _steps(golden: Golden) -> str:
    """The steps of a golden, neighbours by their ends: `3 steps: -1, 0-1`."""
    runs: list[list[int]] = []
    for step in golden.steps:
        if runs and step == runs[-1][-1] + 1 and step > 0:
            runs[-1].append(step)
        else:
            runs.append([step])
    listed = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return counted(len(golden.steps), "step") + (f": {listed}" if listed else "")


def _sections(golden: Golden, problems: list[Problem] | None, records: StepRecords | None) -> Iterator[Section]:
    provenance = golden.provenance
    index, count = provenance.shard
    named = (f"{name}={WeightPrint.parse(text).digits}\n" for name, text in provenance.weights.items())
    weights = fingerprint_bytes("", (), (line.encode("utf-8", "surrogatepass") for line in named))
    rows = [
        ("golden", golden.name),
        ("state", "complete" if golden.complete else "incomplete: its recording was not finished"),
        ("holds", f"{_steps(golden)}, {sum(p.records for p in golden.manifest.parts)} records, {size(golden.bytes)}"),
        ("model", provenance.model),
        ("path", f"{provenance.side}, {provenance.backend}"),
        ("run", f"{counted(provenance.steps, 'step')}, seed {provenance.seed}"),
        ("weights", f"{len(provenance.weights)} tensors, {weights}" if provenance.weights else "not fingerprinted"),
        ("devices", ", ".join(provenance.devices)),
        ("commit", provenance.commit),
        ("command", provenance.command),
        ("shard", f"{index} of {count}" if count > 1 else ""),
        *((f"input {name}", value) for name, value in provenance.inputs.items()),
        *((f"version {name}", value) for name, value in provenance.versions.items()),
    ]
    yield Facts(tuple(row for row in rows if row[1]))
    yield Table("Settings", "setting", ("setting", "value"), tuple(provenance.settings.items()))
    parts = [(str(part.step), part.file, str(part.records), size(part.bytes)) for part in golden.manifest.parts]
    yield Table("Parts", "part of step", ("step", "file", "records", "size"), tuple(parts))
    if records is not None:
        cells = tuple(_record_cells(records, record) for record in records.records)
        yield Table(f"Step {records.step}", "record", _COLUMNS, cells, folds=("site",))
    if problems is not None:
        yield Facts(
            tuple(("problem", problem.message) for problem in problems) or (("verified", "every part is whole"),)
        )


_COLUMNS = ("site", "stage", "branch", "call", "dtype", "shape", "min", "max", "l2", "bad", "floor", "holds")


def _record_cells(step: StepRecords, record: Record) -> Cells:
    key, moments, floor = record.key, record.moments, step.floors.get(record.key)
    value = isinstance(record.value, np.ndarray)
    holds = [name for name, there in (("sketch", record.sketch is not None), ("value", value)) if there]
    if record.kind != "tensor":
        holds = ["None" if record.value is None else repr(record.value)]
    shape = "x".join(map(str, record.shape)) if record.kind == "tensor" else ""
    return tuple(
        cell or "-"
        for cell in (
            key.site,
            key.stage,
            key.branch,
            str(key.call),
            record.dtype,
            shape,
            *(("", "", "") if moments is None else (f"{n:.4g}" for n in (moments.min, moments.max, moments.l2))),
            "" if moments is None else str(moments.nan + moments.inf),
            "" if floor is None else f"{floor.l2:.3g}",
            " ".join(holds),
        )
    )
