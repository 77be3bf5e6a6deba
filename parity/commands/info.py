"""`parity info`: what is here, what can be run, what a golden holds, what is kept.

Cost. Models and settings are known from names: neither torch nor jax is imported. Of a golden `golden.json` alone is
read, unless a step or `--verify` is asked for.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import typer
from rich.filesize import decimal as size

from parity.cache import cache_dir
from parity.commands.options import Listed, command
from parity.errors import UsageError
from parity.golden import Golden, Problem, fingerprint_bytes, verify
from parity.golden.fingerprint import WeightPrint
from parity.models.registry import DEFAULT_MODEL, FAMILIES, tiny_names
from parity.records import Record, StepRecords
from parity.report.document import Cells, Document, Facts, Listing, Section, Table, counted, listed
from parity.report.formats.json import named, plain
from parity.report.output import tell
from parity.settings import SETTINGS, Backend, render

BACKENDS: tuple[Backend, ...] = get_args(Backend)
PARTS = {
    "models": "tiny checkpoints, made where they are missing",
    "jax": "compiled programs; without them the next run compiles again",
    "known_faults": "runs of the known faults, for parity explain",
    "runs": "the last run, for parity explain and parity report",
}
"""Folder in the cache -> what it holds. Nothing else in the cache is ever deleted."""


@command
def info(
    output: Listed,
    topic: Annotated[
        str | None, typer.Argument(metavar="models|settings|cache|GOLDEN", help="Default: this machine.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every part of the golden; exit 2 where anything is wrong.")
    ] = False,
    step: Annotated[
        int | None, typer.Option("--step", help="List the golden's records of this step (-1: before the loop).")
    ] = None,
    clear: Annotated[
        str | None, typer.Option(metavar="PART", help=f"Delete a part of the cache: {', '.join(PARTS)}, or all.")
    ] = None,
) -> int:
    """Show versions and devices, models, settings, or what a golden holds.

    A golden whose name is a topic's is given with its folder: ./models.
    """
    if clear is not None and topic != "cache":
        raise UsageError(f"--clear deletes a part of the cache: parity info cache --clear {clear}")
    code, found = 0, _own(topic, output, clear)
    if found is not None and (verify or step is not None):
        raise UsageError("--verify and --step look into a golden: parity info GOLDEN")
    if found is None:
        found, code = golden_listing(str(topic), step, verify)
    output.show(found)
    return code


def _own(topic: str | None, output: Listed, clear: str | None) -> Document | None:
    """What a topic shows; None for a golden."""
    if topic is None:
        from parity.commands import machine

        with output.working("importing torch, jax and torchax", quiet=output.quiet):
            return machine.listing(machine.examine())
    if topic == "models":
        return _models()
    if topic == "settings":
        return listed(Table("Settings", "setting", ("setting", "default", "values", "meaning"), _settings(),
                            folds=("default", "values", "meaning")))  # fmt: skip
    return _cache(clear) if topic == "cache" else None


def _models() -> Document:
    classes = {family.title: family.transformer for family in FAMILIES if family.transformer}
    families = {name: family.title for family in FAMILIES for name in family.tiny}
    known = tuple((name, families[name], "yes" if name == DEFAULT_MODEL else "no") for name in tiny_names())
    also = ("a folder in diffusers layout, or owner/name on the hub", f"{', '.join(classes)}, any transformer", "no")
    return listed(
        Table("Models", "model", ("model", "family", "default"), (*known, also)),
        Table(
            "Families", "family", ("family", "transformer class"), (*classes.items(), ("any", "by class and config"))
        ),
    )


def _settings() -> tuple[tuple[str, str, str, str], ...]:
    return tuple(
        (
            setting.name,
            _by_backend({backend: render(setting.default_for(backend)) for backend in BACKENDS}),
            _by_backend({backend: setting.allowed(backend) for backend in BACKENDS}),
            setting.meaning,
        )
        for setting in SETTINGS
    )


def _by_backend(texts: Mapping[Backend, str]) -> str:
    """One text where the backends agree."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return " / ".join(f"{backend}: {text}" for backend, text in texts.items())


def _cache(clear: str | None) -> Document:
    folder = cache_dir()
    if clear is not None:
        if clear not in (*PARTS, "all"):
            raise UsageError(f"--clear takes {', '.join(PARTS)} or all; found '{clear}'")
        for name in PARTS if clear == "all" else (clear,):
            _delete(folder / name)
    found = {name: _bytes(folder / name) for name in PARTS}
    rows = tuple((name, size(count), PARTS[name]) for name, count in found.items())
    document = {"folder": str(folder), "bytes": found}
    return Listing(
        document, (Table("Cache", "part", ("part", "size", "holds"), rows), Facts((("folder", str(folder)),)))
    )


def _delete(part: Path) -> None:
    """A folder of the cache and all in it; a link to a folder elsewhere is taken away, not followed.

    Raises:
        UsageError: it cannot be deleted.
    """
    count = _bytes(part)
    try:
        if part.is_symlink():
            part.unlink()
        elif part.exists():
            shutil.rmtree(part)
        else:
            return
    except OSError as error:
        raise UsageError(f"cannot delete '{part}': {error.strerror}") from None
    tell(f"deleted {part} ({size(count)})")


def _bytes(folder: Path) -> int:
    """Bytes of all files in a folder; links are not followed."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # deleted meanwhile
            total += 0 if path.is_dir() else path.lstat().st_size
    return total


# --- a golden


def golden_listing(where: str, step: int | None, check: bool) -> tuple[Listing, int]:
    """What is in a golden, and the exit code: 2 where a check finds damage.

    Args:
        step: whose records are listed; None for no step's. check: every part is read.
    """
    opened = Golden.open(where)
    problems = verify(where) if check else None
    records = None if step is None else opened.read_step(step)
    shown = tuple(_golden_sections(opened, problems, records))
    return Listing(golden_document(opened, problems, records), shown), 2 if problems else 0


def golden_document(golden: Golden, problems: list[Problem] | None, records: StepRecords | None) -> dict[str, Any]:
    """As JSON; what was not measured is null."""
    result: dict[str, Any] = {
        "golden": golden.name,
        "complete": golden.complete,
        "bytes": golden.bytes,
        "steps": list(golden.steps),
        "provenance": asdict(golden.provenance),
        "parts": [named(part, ("step", "file", "bytes", "records", "sha256")) for part in golden.manifest.parts],
        "problems": plain(problems),
    }
    if records is not None:
        result["records"] = [_record_document(records, record) for record in records.records]
    return result


def _record_document(step: StepRecords, record: Record) -> dict[str, Any]:
    floor, held = step.floors.get(record.key), isinstance(record.value, np.ndarray)
    return {
        **asdict(record.key),
        **named(record, ("kind", "shape", "dtype", "rows", "frame", "moments")),
        "scalar": None if held else plain(record.value),
        "sketch": record.sketch is not None,
        "value": held,
        "floor": None if floor is None else named(floor, ("l2",)),
    }


def _golden_sections(golden: Golden, problems: list[Problem] | None, records: StepRecords | None) -> Iterator[Section]:
    provenance, parts = golden.provenance, golden.manifest.parts
    held, (index, count) = sum(part.records for part in parts), provenance.shard
    named = (f"{name}={WeightPrint.parse(text).digits}\n" for name, text in provenance.weights.items())
    weights = fingerprint_bytes("", (), (line.encode("utf-8", "surrogatepass") for line in named))
    rows = [
        ("golden", golden.name),
        ("state", "complete" if golden.complete else "incomplete: its recording was not finished"),
        ("holds", f"{counted(len(parts), 'part')}, {held} records, {size(golden.bytes)}"),
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
    listed = tuple((str(part.step), part.file, str(part.records), size(part.bytes)) for part in parts)
    yield Table("Parts", "part of step", ("step", "file", "records", "size"), listed)
    if records is not None:
        cells = tuple(_record_cells(records, record) for record in records.records)
        yield Table(f"Step {records.step}", "record", _COLUMNS, cells, folds=("site",))
    if problems is not None:
        found = tuple(("problem", problem.message) for problem in problems)
        yield Facts(found or (("verified", "every part is whole"),))


_COLUMNS = ("site", "stage", "branch", "call", "dtype", "shape", "min", "max", "l2", "bad", "floor", "holds")


def _record_cells(step: StepRecords, record: Record) -> Cells:
    key, moments, floor = record.key, record.moments, step.floors.get(record.key)
    numbers = ["-"] * 4
    if moments is not None:
        numbers = [*(f"{n:.4g}" for n in (moments.min, moments.max, moments.l2)), str(record.nonfinite)]
    holds = ["sketch"] * (record.sketch is not None) + ["value"] * isinstance(record.value, np.ndarray)
    return (
        key.site,
        key.stage,
        key.branch or "-",
        str(key.call),
        record.dtype or "-",
        "x".join(map(str, record.shape)) or "-",
        *numbers,
        "-" if floor is None else f"{floor.l2:.3g}",
        (" ".join(holds) or "-") if record.kind == "tensor" else repr(record.value),
    )
