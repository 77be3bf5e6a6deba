"""`parity report`: a kept run as one HTML page."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from parity.commands.parts.unfold import command
from parity.errors import UsageError
from parity.files import read_bytes, read_text
from parity.report.formats.html import DocumentError, Picture, to_html
from parity.report.output import show, write

MOST_BYTES = 1 << 30
"""Of a document; a site takes about a kilobyte."""

MOST_PICTURE_BYTES = 1 << 23
PICTURES = 3


@command
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `parity run --out` kept.")],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write; default: RUN/report.html.")] = None,
) -> None:
    """Write a kept run as one HTML page, with its causes after `parity explain RUN`."""
    document = read_document(run / "result.json")
    if document is None:
        raise UsageError(f"'{run}' is no kept run: it has no result.json (`parity run --out {run}` makes one)")
    explained = read_document(run / "explain.json")
    where = html or run / "report.html"
    try:
        causes = None if explained is None else explained["causes"]
        page = to_html(document, causes, _pictures(run, document))
    except (DocumentError, LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise UsageError(f"'{run}' cannot be shown, its documents are damaged: {error}") from None
    write(where, page, "--html")
    show(str(where))


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


def _pictures(run: Path, document: dict[str, Any]) -> list[Picture]:
    """The frames with the lowest PSNR, where both sides' pictures are kept."""

    def psnr(frame: dict[str, Any]) -> float:
        return float((frame["in_chain"] or frame)["psnr"])

    frames = sorted(document["frames"], key=psnr)[:PICTURES]
    found = []
    for number in sorted(int(frame["frame"]) for frame in frames):
        sides = [_picture(run, run / "frames" / side / f"{number:04d}.png") for side in ("reference", "candidate")]
        if all(sides):
            found.append(Picture(number, *sides))
    return found


def _picture(run: Path, where: Path) -> str:
    """A PNG as a `data:` URL; empty where there is none in the run's own folder, or none of a size for a page."""
    try:
        inside = where.resolve().is_relative_to(run.resolve())
        if not inside:
            return ""
        content = read_bytes(where, MOST_PICTURE_BYTES)
    except OSError:
        return ""
    if not content.startswith(b"\x89PNG"):
        return ""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")
