"""`parity report`: a kept run, a golden, or the JSON of a comparison, as one HTML page.

Two comparisons are shown beside each other.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from parity.commands.parts.pictures import pictures
from parity.commands.parts.unfold import command
from parity.errors import ParityError, UsageError
from parity.files import read_text
from parity.golden import Golden
from parity.golden.disk.format import MANIFEST
from parity.golden.records import Provenance
from parity.report.output import show, write
from parity.report.page.build import Shown, Side, build
from parity.report.page.golden import GoldenShown, build_golden, chosen
from parity.report.page.shell import DocumentError

MOST_BYTES = 1 << 30
"""Of a document; a site takes about a kilobyte."""


@command
def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A folder that `parity run --out` kept; a golden; or a file that `--json` of a comparison wrote.",
        ),
    ],
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="A second comparison, shown beside it.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; default: RUN/report.html, else RUN.html.")
    ] = None,
) -> None:
    """Write a run, a comparison or a golden as an HTML page.

    One file that opens anywhere. After `parity explain RUN` it has the run's causes; a second RUN is shown beside it.
    """
    alone = _alone(run) if other is None else None
    if alone is not None:
        where = html or run.resolve().with_name(f"{run.resolve().name.removesuffix('.json')}.html")
        write(where, alone, "--html")
        show(str(where))
        return
    kept = [run] if other is None else [run, other]
    names = _names(kept)
    where = html or (run / "report.html" if run.is_dir() else run.with_suffix(".html"))
    shown = []
    for folder, name in zip(kept, names, strict=True):
        try:
            shown.append(_shown(folder, name))
            build(shown[-1:])  # one at a time, so that the message names the one that is damaged
        except (DocumentError, LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise UsageError(f"'{folder}' cannot be shown, its documents are damaged: {error}") from None
    write(where, build(shown, _version()), "--html")
    show(str(where))


def _alone(run: Path) -> str | None:
    """The page of a golden; None where it is none.

    Raises:
        UsageError: it is damaged.
    """
    if (run / MANIFEST).is_file():
        golden = Golden.open(str(run))
        counts = {part.step: part.records for part in golden.manifest.parts}
        return build_golden(
            GoldenShown(
                name=golden.name,
                complete=golden.complete,
                bytes=golden.bytes,
                counts=counts,
                provenance=golden.provenance,
                steps=map(golden.read_step, chosen(counts)),
            ),
            _version(),
        )
    return None


def _shown(run: Path, name: str) -> Shown:
    """A kept run, or a document alone."""
    alone = run.is_file()
    document = read_document(run if alone else run / "result.json")
    if document is None:
        raise UsageError(
            f"'{run}' is no kept run: it has no result.json (`parity run --out {run}` makes one); "
            "a golden, and a file that `parity diff --json` wrote, are shown as well"
        )
    if "verdict" not in document:
        raise UsageError(f"'{run}' cannot be shown: it is no comparison or golden; --format markdown writes others")
    if alone:
        return Shown(document=document, causes=document["causes"] or None, name=name)
    explained = read_document(run / "explain.json")
    frames = pictures(run, document)
    return Shown(
        document=document,
        causes=None if explained is None else explained["causes"],
        name=name,
        pictures=frames.shown,
        pictures_are=frames.what,
        pictures_missing=frames.missing,
        sides=_sides(run),
    )


def _names(kept: list[Path]) -> list[str]:
    """What two runs are called: by their folders, or as given where those are alike."""
    names = [folder.resolve().name for folder in kept]
    return (
        names
        if len(set(names)) == len(names)
        else [f"{letter}: {path}" for letter, path in zip("AB", kept, strict=True)]
    )


def read_document(where: Path) -> dict[str, Any] | None:
    """A kept JSON document; None where there is no file.

    Raises:
        UsageError: it cannot be read or is no JSON document.
    """
    try:
        document = json.loads(read_text(where, MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"cannot read '{where}': {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{where}' is no JSON document: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"'{where}' is no JSON document of parity's: not an object")
    return document


def _sides(run: Path) -> list[Side]:
    """What both sides were made with, as their goldens have it; of the last round that was kept."""
    for folder in (run / "precision", run):
        try:
            found = [Golden.open(str(folder / role)).provenance for role in ("reference", "candidate")]
        except ParityError:
            continue
        return [_side(role, facts) for role, facts in zip(("reference", "candidate"), found, strict=True)]
    return []


def _side(role: str, facts: Provenance) -> Side:
    versions = ", ".join(f"{package} {version}" for package, version in facts.versions.items())
    told = {
        "command": facts.command,
        "backend": facts.backend,
        "model": facts.model,
        "steps, seed": f"{facts.steps}, {facts.seed}",
        "devices": ", ".join(facts.devices),
        "versions": versions,
        "code": facts.commit,
    }
    return Side(role, {name: text or "–" for name, text in told.items()}, facts.settings)


def _version() -> str:
    try:
        return importlib.metadata.version("tpu-parity")
    except importlib.metadata.PackageNotFoundError:
        return ""
