"""`parity info`: what is here, what can be run, what a golden holds, what is kept.

Cost. Models and settings are known from names: neither torch nor jax is imported. Of a golden `golden.json` alone is
read, unless `--verify` is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from difflib import get_close_matches
from functools import partial
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
from parity.report.document import Facts, Listing, Section, Table, counted, listed
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
    topics: dict[str | None, Callable[[], Listing]] = {
        None: partial(_machine, output), "models": _models, "settings": _settings, "cache": _cache
    }  # fmt: skip
    if topic in topics and verify:
        raise UsageError("--verify looks into a golden: parity info GOLDEN")
    near = get_close_matches(str(topic), [*filter(None, topics)], 1)
    if near and topic not in topics and "://" not in str(topic) and not Path(str(topic)).exists():
        raise UsageError(f"'{topic}' is neither a topic nor a golden; perhaps parity info {near[0]}")
    found, code = (topics[topic](), 0) if topic in topics else golden_listing(str(topic), verify)
    output.show(found)
    return code


def _machine(output: Listed) -> Listing:
    from parity.commands import machine

    with output.working("importing torch, jax and torchax", quiet=output.quiet):
        return machine.listing(machine.examine())


def _models() -> Listing:
    classes = {family.title: family.transformer for family in FAMILIES if family.transformer}
    families = {name: family.title for family in FAMILIES for name in family.tiny}
    known = tuple((name, families[name], "yes" if name == DEFAULT_MODEL else "no") for name in tiny_names())
    also = ("a folder in diffusers layout, or owner/name on the hub", f"{', '.join(classes)}, any transformer", "no")
    return listed(
        Table("Models", ("model", "family", "default"), (*known, also)),
        Table("Families", ("family", "transformer class"), (*classes.items(), ("any", "by class and config"))),
    )


def _settings() -> Listing:
    columns = ("setting", "default", "values", "meaning")
    rows = []
    for setting in SETTINGS:
        default = _by_backend([render(setting.default_for(backend)) for backend in BACKENDS])
        rows.append((setting.name, default, _by_backend([*map(setting.allowed, BACKENDS)]), setting.meaning))
    return listed(Table("Settings", columns, tuple(rows), folds=columns[1:]))


def _by_backend(texts: list[str]) -> str:
    """A text of each backend, in one where they agree."""
    if len(set(texts)) == 1:
        return texts[0]
    return " / ".join(f"{backend}: {text}" for backend, text in zip(BACKENDS, texts, strict=True))


def _cache() -> Listing:
    folder = cache_dir()
    found = {name: _bytes(folder / name) for name in PARTS}
    rows = tuple((name, size(count), PARTS[name]) for name, count in found.items())
    document = {"folder": str(folder), "bytes": found}
    return Listing(document, (Table("Cache", ("part", "size", "holds"), rows), Facts((("folder", str(folder)),))))


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
    yield Table("Settings", ("setting", "value"), tuple(provenance.settings.items()))
    listed = tuple((str(part.step), part.file, str(part.records), size(part.bytes)) for part in parts)
    yield Table("Parts", ("step", "file", "records", "size"), listed, noun="part of step")
    if problems is not None:
        found = tuple(("problem", problem.message) for problem in problems)
        yield Facts(found or (("verified", "every part is whole"),))
