"""`parity record`: one side to a golden."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

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


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What is recorded.

    Attributes:
        side: which. floors: of the reference. stages: those of the golden. script: in place of a side.
        resume, overwrite: what becomes of a golden that is there.
    """

    panel: ClassVar[str] = "Options"

    side: Annotated[Role, typer.Option(help="Which side: reference is torch, candidate torchax.")] = "reference"
    floors: Annotated[
        Floors,
        typer.Option(help="The reference's floors: measured, none, or such as allow for a TPU's elementary functions."),
    ] = "measured"
    stages: Annotated[str | None, stages_option("Some of these, the transformer among them.")] = None
    script: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run this script and record the first diffusers pipeline that it calls (-- ARGS)."
        ),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Resume an unfinished golden of the same run.")] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing golden.")] = False

    @property
    def chip(self) -> str:
        """Whose elementary functions the floors allow for; empty for none's."""
        return self.floors if self.floors in CHIPS else NO_CHIP


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
    asked: Recording,
) -> None:
    """Record one side to a golden: a model, a port, or your own script.

    `parity diff REFERENCE CANDIDATE` compares two.
    """
    if asked.script is not None:
        own = replace(asked, script=None, floors="measured", overwrite=False)
        if (replace(generation, inputs=None), sides, own) != (Generation(), Sides(), Recording()):
            raise UsageError(
                "--script runs a script that has its own model, settings and steps: it takes only --inputs, --sites, "
                "--values, --floors and --overwrite, and the script's own arguments behind --"
            )
        if generation.inputs is not None and asked.chip:
            raise UsageError(
                f"--floors {asked.chip} is of the reference: with --inputs a script is the candidate, without"
            )
        from parity.recorder.record import Asked, sites_of
        from parity.recorder.rerun import RUNS
        from parity.recorder.script import Script, run_script

        sites, runs = observed.sites or sites_of(generation.inputs), 0 if asked.floors == "none" else RUNS
        how = Asked(generation.inputs, sites, observed.values, runs, asked.chip, overwrite=asked.overwrite)
        return run_script(where, Script(asked.script, arguments or [], how))
    if arguments:
        raise UsageError(f"'{arguments[0]}' is no option: arguments after the folder are those of --script FILE")
    if asked.resume and asked.overwrite:
        raise UsageError("--resume and --overwrite exclude each other")
    made = recorded(where, generation, sides, observed, asked)
    for sentence in made.idle:
        tell(f"a comparison would say nothing about the port: {sentence}")
    tell(f"{counted(made.steps, 'step')} written to {where}")


def recorded(where: str, generation: Generation, sides: Sides, observed: Observed, asked: Recording) -> Recorded:
    """Record one side.

    Args:
        where: folder or URL of the golden. The others are those of `parity record`; no script.

    Raises:
        UsageError: options of the side that is not recorded, or stages that a golden is not of.
        ParityError: see `Generation.request` and `parity.runs.record.record`.
    """
    side = asked.side
    if side == "reference" and (sides.candidate or sides.port is not None):
        raise UsageError("--candidate and --port are of the candidate: --side candidate records it")
    if side == "candidate" and asked.chip:
        raise UsageError(f"--floors {asked.chip} is of the reference: a candidate has no floors")
    if side == "candidate" and sides.reference:
        raise UsageError("--reference is of the reference, and the candidate is recorded: leave it out")
    with Output().sides(torchax=side == "candidate" and sides.torchax) as say:
        run = generation.request(sides, asked.stages, sites=observed.sites, values=observed.values)
        if "transformer" not in run.stages:
            raise UsageError("a golden is of a loop: --stages must name the transformer, `--stages transformer,vae`")
        if "text" in run.stages and (run.stage1 is not None or run.inputs is not None):
            raise UsageError(ENCODED)
        request = RecordRequest(
            where=where,
            side=side,
            run=run,
            floors=asked.floors != "none" and side == "reference",
            chip=asked.chip,
            resume=asked.resume,
            overwrite=asked.overwrite,
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
