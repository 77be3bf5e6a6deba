"""`parity record`: one side to a golden."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from parity.commands.options import ENCODED, Generation, Observed, Output, Sides, command, stages_option
from parity.errors import UsageError
from parity.paths.plan import Role
from parity.redact import typed_command
from parity.report.document import counted
from parity.report.output import tell
from parity.runs.record import Recorded, RecordRequest, record as record_side
from parity.settings.chips import CHIPS, NO_CHIP

Floors = Literal["measured", "none", "v4", "v5e", "v5p", "v6e", "tpu7x"]
"""A chip's also allow for what its elementary functions may err by (`parity.settings.chips`)."""


@command
def record(
    where: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder or URL (gs://, s3://, hf://) of the golden to write.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments of --script.", show_default=False)
    ] = None,
    *,
    generation: Generation,
    sides: Sides,
    observed: Observed,
    side: Annotated[Role, typer.Option(help="Which side: reference is torch, candidate torchax.")] = "reference",
    floors: Annotated[
        Floors,
        typer.Option(help="The reference's floors: measured, none, or such as allow for a TPU's elementary functions."),
    ] = "measured",
    stages: Annotated[str | None, stages_option("Some of these, the transformer among them.")] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run this script and record the first diffusers pipeline that it calls (-- ARGS)."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an unfinished golden of the same run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing golden.")] = False,
) -> None:
    """Record one side to a golden: a model, a port, or your own script.

    `parity diff REFERENCE CANDIDATE` compares two.
    """
    if script is not None:
        theirs = (replace(generation, inputs=None), sides, side, stages, resume)
        if theirs != (Generation(), Sides(), "reference", None, False):
            raise UsageError(
                "--script runs a script that has its own model, settings and steps: it takes only --inputs, --sites, "
                "--values, --floors and --overwrite, and the script's own arguments behind --"
            )
        if generation.inputs is not None and floors in CHIPS:
            raise UsageError(f"--floors {floors} is of the reference: with --inputs a script is the candidate, without")
        from parity.recorder.record import Asked
        from parity.recorder.rerun import RUNS
        from parity.recorder.script import Script, run_script

        sites, chip = observed.sites or "blocks", floors if floors in CHIPS else NO_CHIP
        runs = 0 if floors == "none" else RUNS
        asked = Asked(generation.inputs, sites, observed.values, runs, chip, overwrite=overwrite)
        return run_script(where, Script(script, arguments or [], asked))
    if arguments:
        raise UsageError(f"'{arguments[0]}' is no option: arguments after the folder are those of --script FILE")
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other")
    made = recorded(
        where, generation, sides, side, observed, stages=stages, floors=floors, resume=resume, overwrite=overwrite
    )
    for sentence in made.idle:
        tell(f"a comparison would say nothing about the port: {sentence}")
    tell(f"{counted(made.steps, 'step')} written to {where}")


def recorded(
    where: str,
    generation: Generation,
    sides: Sides,
    side: Role,
    observed: Observed,
    *,
    stages: str | None = None,
    floors: Floors = "measured",
    resume: bool = False,
    overwrite: bool = False,
) -> Recorded:
    """Record one side.

    Args:
        where: folder or URL of the golden. The others are those of `parity record`.

    Raises:
        UsageError: options of the side that is not recorded, or stages that a golden is not of.
        ParityError: see `Generation.request` and `parity.runs.record.record`.
    """
    if side == "reference" and (sides.candidate or sides.port is not None):
        raise UsageError("--candidate and --port are of the candidate: --side candidate records it")
    if side == "candidate" and floors in CHIPS:
        raise UsageError(f"--floors {floors} is of the reference: a candidate has no floors")
    if side == "candidate" and sides.reference:
        raise UsageError("--reference is of the reference, and the candidate is recorded: leave it out")
    with Output().sides(torchax=side == "candidate" and sides.torchax) as say:
        run = generation.request(sides, stages, sites=observed.sites, values=observed.values)
        if "transformer" not in run.stages:
            raise UsageError("a golden is of a loop: --stages must name the transformer, `--stages transformer,vae`")
        if "text" in run.stages and (run.stage1 is not None or run.inputs is not None):
            raise UsageError(ENCODED)
        request = RecordRequest(
            where=where,
            side=side,
            run=run,
            floors=floors != "none" and side == "reference",
            chip=floors if floors in CHIPS else NO_CHIP,
            resume=resume,
            overwrite=overwrite,
            command=command_line(),
        )
        return record_side(request, say)


def command_line() -> str:
    """The command without folders of this machine (a path that leads to one keeps its last part) and without secrets
    of URLs."""
    return typed_command("parity", *map(_without_folders, sys.argv[1:]))


def _without_folders(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    path = value.removeprefix("file://")
    of_this_machine = path != value or value.startswith(("/", "~", "..", "./"))
    return option + equals + (Path(path).name if of_this_machine else value)
