"""`parity info`: what is here, what can be run, what a golden holds, what is kept.

Cost. Models and settings are known from names: neither torch nor jax is imported.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.filesize import decimal as size

from parity.cache import cache_dir
from parity.commands.options import Output
from parity.commands.unfold import command
from parity.errors import UsageError
from parity.models.registry import DEFAULT_MODEL, FAMILIES, tiny_names
from parity.report.document import Document, Facts, Listing, Table, listed
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
    output: Output,
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
        from parity.commands import golden

        found, code = golden.listing(str(topic), step, verify)
    output.show(found)
    return code


def _own(topic: str | None, output: Output, clear: str | None) -> Document | None:
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
    document = {"format": 1, "folder": str(folder), "bytes": found}
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
        try:
            total += 0 if path.is_dir() else path.lstat().st_size
        except OSError:  # deleted meanwhile
            continue
    return total
