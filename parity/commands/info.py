"""`parity info`: what is here, what can be run, what a golden holds, what is kept.

Cost. Models and settings are known from names: neither torch nor jax is imported. Of a golden `golden.json` alone is
read, unless `--verify` is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.filesize import decimal as size

from parity.cache import cache_dir
from parity.commands.options import Listed, command
from parity.errors import UsageError
from parity.golden import Golden, Problem, fingerprint_bytes, verify
from parity.golden.fingerprint import WeightPrint
from parity.models.registry import DEFAULT_MODEL, FAMILIES, tiny_names
from parity.report.document import Document, Facts, Listing, Section, Table, counted, listed
from parity.report.formats.json import named, plain
from parity.settings import SETTINGS, Backend, render

BACKENDS: tuple[Backend, ...] = get_args(Backend)
PARTS = {
    "models": "tiny checkpoints, made where they are missing",
    "jax": "compiled programs; without them the next run compiles again",
    "known_faults": "runs of the known faults, for parity explain",
    "runs": "the last run, for parity explain and parity report",
}
"""Folder in the cache -> what it holds. Any of them may be deleted."""


@command
def info(
    output: Listed,
    topic: Annotated[
        str | None, typer.Argument(metavar="models|settings|cache|GOLDEN", help="Default: this machine.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every part of the golden; exit 2 where anything is wrong.")
    ] = False,
) -> int:
    """Show versions and devices, models, settings, or what a golden holds.

    A golden whose name is a topic's is given with its folder: ./models.
    """
    code, found = 0, _own(topic, output)
    if found is not None and verify:
        raise UsageError("--verify looks into a golden: parity info GOLDEN")
    if found is None:
        found, code = golden_listing(str(topic), verify)
    output.show(found)
    return code


def _own(topic: str | None, output: Listed) -> Document | None:
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
    return _cache() if topic == "cache" else None


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


def _cache() -> Document:
    folder = cache_dir()
    found = {name: _bytes(folder / name) for name in PARTS}
    rows = tuple((name, size(count), PARTS[name]) for name, count in found.items())
    document = {"folder": str(folder), "bytes": found}
    return Listing(
        document, (Table("Cache", "part", ("part", "size", "holds"), rows), Facts((("folder", str(folder)),)))
    )


def _bytes(folder: Path) -> int:
    """Bytes of all files in a folder; links are not followed."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # deleted meanwhile
            total += 0 if path.is_dir() else path.lstat().st_size
    return total


# --- a golden


def golden_listing(where: str, check: bool) -> tuple[Listing, int]:
    """What is in a golden, and the exit code: 2 where a check, which reads every part, finds damage."""
    golden = Golden.open(where)
    problems = verify(where) if check else None
    document = {
        "golden": golden.name,
        "complete": golden.complete,
        "bytes": golden.bytes,
        "steps": list(golden.steps),
        "provenance": asdict(golden.provenance),
        "parts": [named(part, ("step", "file", "bytes", "records", "sha256")) for part in golden.manifest.parts],
        "problems": plain(problems),
    }
    return Listing(document, tuple(_golden_sections(golden, problems))), 2 if problems else 0


def _golden_sections(golden: Golden, problems: list[Problem] | None) -> Iterator[Section]:
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
        ("floors for", f"a TPU {provenance.chip} too" if provenance.chip else ""),
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
    if problems is not None:
        found = tuple(("problem", problem.message) for problem in problems)
        yield Facts(found or (("verified", "every part is whole"),))
