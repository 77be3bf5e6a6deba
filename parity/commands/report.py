"""`parity report`: a kept run, or the JSON of a comparison, as one HTML page.

Its pictures are the decoded frames of a kept run in which the two sides differ most. `parity run --stages ...,vae
--out DIR` keeps three videos: the reference's, the candidate's decoder on the reference's latents (`candidate`), and
the candidate's own (`candidate_in_chain`). What a viewer of the candidate sees is the last.
"""

from __future__ import annotations

import base64
import contextlib
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from parity.commands.keep import last_run
from parity.commands.options import command, refuse_read
from parity.errors import ParityError, UsageError
from parity.files import read_bytes, read_object
from parity.golden import Golden
from parity.records import Provenance
from parity.report.formats.html import Picture, Shown, build, number
from parity.report.output import show, write
from parity.runs.request import RESULT, no_run
from parity.versions import installed

MOST_BYTES = 1 << 30
"""Of a document; a site takes about a kilobyte."""
MOST_PICTURE_BYTES = 1 << 23
MOST_PAGE_BYTES = 1 << 21
"""Of all pictures together; the first pair is shown whatever its size."""
PICTURES = 4


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
        refuse_read({"--html": where}, [] if run.is_dir() else [str(run)])
    try:
        page = build(_shown(run), installed("tpu-parity") or "")
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise UsageError(f"'{run}' cannot be shown, its documents are damaged: {error}") from None
    write(where, page, "--html")
    show(str(where))


def _shown(run: Path) -> Shown:
    """A kept run, or a document alone."""
    alone = run.is_file()
    document = read_object(run if alone else run / RESULT, MOST_BYTES)
    if document is None:
        raise no_run(run, "a file that `parity diff --format json` wrote")
    if "verdict" not in document:
        raise UsageError(f"'{run}' cannot be shown: it is no comparison; --format markdown writes others")
    if alone:
        return Shown(document=document, causes=document["causes"] or None)
    explained = read_object(run / "explain.json", MOST_BYTES)
    causes = document["causes"] or None if explained is None else explained["causes"]
    found, note = pictures(run, document)
    return Shown(document=document, causes=causes, sides=_sides(run), pictures=found, pictures_note=note)


def _sides(run: Path) -> list[Provenance]:
    """What both sides were made with, as their goldens have it; of the last check that was kept."""
    for folder in (run / "precision", run):
        with contextlib.suppress(ParityError):
            return [Golden.open(str(folder / role)).provenance for role in ("reference", "candidate")]
    return []


def pictures(run: Path, document: dict[str, Any]) -> tuple[list[Picture], str]:
    """The frames that a page shows, those with the lowest PSNR that are not the same file on both sides, and a sentence
    on them; empty where none were compared.

    Raises:
        LookupError, TypeError, ValueError: the document has no such frames.
    """
    frames = document["frames"]
    if not frames:
        return [], ""
    chain = all(frame["in_chain"] for frame in frames) and (run / "frames" / "candidate_in_chain").is_dir()
    side = "candidate_in_chain" if chain else "candidate"

    numbers = {int(frame["frame"]): dict(frame["in_chain"] if chain else frame) for frame in frames}

    def psnr(frame: int) -> float:
        value = number(numbers[frame]["psnr"])
        return -math.inf if math.isnan(value) else value  # a frame that holds NaN is the worst

    shown: list[Picture] = []
    size = 0
    for frame in sorted(numbers, key=psnr):
        ours, theirs = (_picture(run, run / "frames" / name / f"{frame:04d}.png") for name in ("reference", side))
        if not (ours and theirs) or ours == theirs:
            continue
        size += len(ours) + len(theirs)
        if len(shown) == PICTURES or (shown and size > MOST_PAGE_BYTES):
            break
        shown.append(Picture(frame, ours, theirs, caption=_caption(numbers[frame])))
    if not shown:
        return [], f"{len(frames)} frames were compared; no pictures that differ are kept beside the run."
    what = (
        "Each side's own latents, decoded by its own decoder" if chain else "The reference's latents, by each decoder"
    )
    note = f"{what}; the frames that differ most. Reference left, candidate right."
    return sorted(shown, key=lambda picture: picture.frame), note


def _caption(numbers: dict[str, Any]) -> str:
    psnr, ssim, ratio = (number(numbers[name]) for name in ("psnr", "ssim", "ratio"))
    texts = [f"PSNR {psnr:.1f} dB" if math.isfinite(psnr) else "", f"SSIM {ssim:.4f}" if math.isfinite(ssim) else ""]
    return ", ".join([text for text in texts if text] + [f"{ratio:.3g}x its floor"] * (not math.isnan(ratio)))


def _picture(run: Path, where: Path) -> str:
    """A PNG as a `data:` URL; empty where there is none in the run's own folder, or none of a size for a page."""
    try:
        if not where.resolve().is_relative_to(run.resolve()):
            return ""
        content = read_bytes(where, MOST_PICTURE_BYTES)
    except (OSError, ValueError):
        return ""
    if not content.startswith(b"\x89PNG"):
        return ""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")
