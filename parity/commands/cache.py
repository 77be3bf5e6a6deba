"""`parity cache`: what parity keeps on this machine, how much it is, and forgetting it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from parity.cache import cache_dir
from parity.commands.parts.options import Output
from parity.commands.parts.unfold import command
from parity.errors import UsageError
from parity.report.document import Facts, Listing, Table
from parity.report.output import tell

PARTS = {
    "models": "tiny checkpoints, made where they are missing",
    "jax": "compiled programs; without them the next run compiles again",
    "known_faults": "runs of the known faults, for parity explain",
}
"""Folder in the cache -> what it holds. Nothing else in the cache is ever deleted."""


@command
def cache(
    output: Output,
    clear: Annotated[
        str | None, typer.Option(metavar="PART", help=f"Delete a part: {', '.join(PARTS)}, or all of them: all.")
    ] = None,
) -> None:
    """Show what the cache keeps and how large it is, or delete it.

    Everything in it is made again when it is missing.
    """
    folder = cache_dir()
    if clear is not None:
        if clear not in (*PARTS, "all"):
            raise UsageError(f"--clear takes {', '.join(PARTS)} or all; found '{clear}'")
        for name in PARTS if clear == "all" else (clear,):
            _delete(folder / name)
    found = {name: _size(folder / name) for name in PARTS}
    rows = tuple((name, f"{size / 2**20:.1f} MiB", PARTS[name]) for name, size in found.items())
    document = {"format": 1, "folder": str(folder), "bytes": found}
    table = Table("Cache", "part", ("part", "size", "holds"), rows)
    output.show(Listing(document, (table, Facts((("folder", str(folder)),)))))


def _delete(part: Path) -> None:
    """A folder of the cache and all in it; a link to a folder elsewhere is taken away, not followed.

    Raises:
        UsageError: it cannot be deleted.
    """
    size = _size(part)
    try:
        if part.is_symlink():
            part.unlink()
        elif part.exists():
            shutil.rmtree(part)
        else:
            return
    except OSError as error:
        raise UsageError(f"cannot delete '{part}': {error.strerror}") from None
    tell(f"deleted {part} ({size / 2**20:.1f} MiB)")


def _size(folder: Path) -> int:
    """Bytes of all files in a folder; links are not followed."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += 0 if path.is_dir() else path.lstat().st_size
        except OSError:  # deleted meanwhile
            continue
    return total
