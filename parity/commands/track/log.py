"""`parity log`: a comparison into an experiment tracker."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated, Any

import typer

from parity.commands.parts.choices import one_of
from parity.commands.parts.pictures import pictures
from parity.commands.parts.unfold import command
from parity.commands.report import read_document
from parity.errors import ParityError, UsageError
from parity.golden import Golden
from parity.report.output import show
from parity.report.tracked import Image, tracked
from parity.report.trackers import NAMES, Target
from parity.report.trackers import log as write_log


@command
def log(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A folder that `parity run --out` kept, or a file that `--json` of a comparison wrote."
        ),
    ],
    to: Annotated[str, one_of(NAMES, "Tracker; its library is an extra of the same name.")],
    project: Annotated[
        str, typer.Option(help="Project (wandb), experiment (mlflow), folder (tensorboard).")
    ] = "parity",
    name: Annotated[str | None, typer.Option(help="Name of the run; default: that of the folder.")] = None,
    into: Annotated[
        str | None,
        typer.Option(metavar="DIR|URI", help="Folder, or mlflow's tracking URI; default: the tracker's own."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Send nothing (wandb).")] = False,
) -> None:
    """Log a comparison to TensorBoard, Weights & Biases or MLflow.

    Distances with floors and limits over the steps, the worst sites, the verdict, causes, settings and frames. Prints
    where it is to be seen. Exit code 0 whatever the verdict, 2: bad input.
    """
    alone = run.is_file()
    document = read_document(run if alone else run / "result.json")
    if document is None or "verdict" not in document:
        raise UsageError(
            f"'{run}' is no kept run and no comparison: parity run --out DIR keeps one, parity diff --json prints one"
        )
    try:
        explained = None if alone else read_document(run / "explain.json")
        made = tracked(
            document,
            name or run.resolve().name.removesuffix(".json"),
            _settings(run, document),
            [] if alone else _images(run, document),
            () if explained is None else explained["causes"],
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"'{run}' cannot be logged, its documents are damaged: {error}") from None
    show(write_log(made, to, Target(project=project, into=into, offline=offline)))


def _settings(run: Path, document: dict[str, Any]) -> dict[str, str]:
    """Settings, model and seed of both sides of a kept run; of a document alone what it says."""
    found = {"model": str(document["model"])}
    for role in ("reference", "candidate"):
        try:
            made = Golden.open(str(run / role)).provenance
        except ParityError:
            found |= {f"{role}/{d['setting']}": str(d[role]) for d in document["differing_settings"]}
            continue
        found |= {"steps": str(made.steps), "seed": str(made.seed)}
        found |= {f"{role}/{setting}": value for setting, value in made.settings.items()}
    return found


def _images(run: Path, document: dict[str, Any]) -> list[Image]:
    """The frames that differ most, of both sides."""
    return [
        Image(f"frames/{side}", picture.frame, base64.b64decode(url.partition(",")[2]))
        for picture in pictures(run, document).shown
        for side, url in (("reference", picture.reference), ("candidate", picture.candidate))
    ]
