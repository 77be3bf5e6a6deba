"""`parity report`: a kept run, or the JSON of a comparison, as one HTML page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from parity.commands.parts.keep import last_run
from parity.commands.parts.pictures import pictures
from parity.commands.parts.unfold import command
from parity.errors import ParityError, UsageError
from parity.files import read_text
from parity.golden import Golden
from parity.records import Provenance
from parity.report.output import show, write
from parity.report.page.build import DocumentError, Shown, Side, build
from parity.versions import installed

MOST_BYTES = 1 << 30
"""Of a document; a site takes about a kilobyte."""


@command
def report(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN|RESULT.json",
            help="A folder of `parity run --out`, or a comparison's JSON; default: the last run.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File to write; default: RUN/report.html, RESULT.html, or parity-report.html."
        ),
    ] = None,
) -> None:
    """Write a run or a comparison as an HTML page.

    One file that opens anywhere; after `parity explain` it has the causes.
    """
    if run is None:
        run, where = last_run(), html or Path("parity-report.html")
    else:
        where = html or (run / "report.html" if run.is_dir() else run.with_suffix(".html"))
    try:
        page = build(_shown(run), installed("tpu-parity") or "")
    except (DocumentError, LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise UsageError(f"'{run}' cannot be shown, its documents are damaged: {error}") from None
    write(where, page, "--html")
    show(str(where))


def _shown(run: Path) -> Shown:
    """A kept run, or a document alone."""
    alone = run.is_file()
    document = read_document(run if alone else run / "result.json")
    if document is None:
        raise UsageError(
            f"'{run}' is not a run folder: it has no result.json. Create one with `parity run --out {run}`, or name a "
            "file that `parity diff --format json` wrote"
        )
    if "verdict" not in document:
        raise UsageError(f"'{run}' cannot be shown: it is no comparison; --format markdown writes others")
    if alone:
        return Shown(document=document, causes=document["causes"] or None)
    explained = read_document(run / "explain.json")
    frames = pictures(run, document)
    return Shown(
        document=document,
        causes=None if explained is None else explained["causes"],
        pictures=frames.shown,
        pictures_are=frames.what,
        pictures_missing=frames.missing,
        sides=_sides(run),
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
    """What both sides were made with, as their goldens have it; of the last check that was kept."""
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
