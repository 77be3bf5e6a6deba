"""`parity record`: one side to a golden."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parity.commands.parts.choices import STAGES, some_of
from parity.commands.parts.like import LikeOption, alike
from parity.commands.parts.options import Generation, InputsFile, Observed, OneSide, Output
from parity.commands.parts.unfold import command
from parity.commands.run import parse_stages
from parity.errors import UsageError
from parity.redact import without_secrets
from parity.report.output import tell

if TYPE_CHECKING:
    from parity.runs.like import Like


@command
def record(
    where: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder or URL (gs://, s3://, hf://) of the golden to write.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Arguments of --script.", show_default=False)
    ] = None,
    *,
    one: OneSide,
    generation: Generation,
    observed: Observed,
    floors: Annotated[
        str,
        typer.Option(
            help="fp64, rounding, dtype, kernel (comma-separated) or none; default: all but kernel, on the reference."
        ),
    ] = "default",
    stages: Annotated[str | None, some_of(STAGES, "Some of these, the transformer among them.")] = None,
    stage1_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the embeddings as a port's first stage does, for --stage1."),
    ] = None,
    inputs: InputsFile = None,
    like: LikeOption = None,
    script: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run this script and record the first diffusers pipeline that it calls (-- ARGS)."
        ),
    ] = None,
    causes: Annotated[
        bool, typer.Option("--causes", help="Of --script: keep what known faults would do, for `parity explain`.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an unfinished golden of the same run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing golden.")] = False,
) -> None:
    """Record one side to a golden: a model, a port, or your own script.

    `parity diff REFERENCE CANDIDATE` compares two.
    """
    if script is not None:
        theirs = (generation, one, stages, stage1_out, inputs, like, resume)
        if theirs != (Generation(), OneSide(), None, None, None, None, False):
            raise UsageError(
                "--script runs a script that has its own model, settings and steps: beside it only --sites, --values, "
                "--floors, --causes and --overwrite are taken, and the script's own arguments behind --"
            )
        return _script(where, script, arguments or [], observed, floors, overwrite=overwrite, causes=causes)
    if causes:
        raise UsageError("--causes is for --script FILE: of parity's own models `parity explain` runs the known faults")
    if arguments:
        raise UsageError(f"'{arguments[0]}' is no option: arguments after the folder are those of --script FILE")
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other")
    generation.require_one_input()
    generation, alike_to = alike(like, generation, {"--inputs": inputs})
    if one.candidate_path is not None and one.side == "reference":
        raise UsageError("--candidate-path is recorded with --side candidate")
    chosen = parse_stages(stages, None)
    if "transformer" not in chosen:
        raise UsageError("a golden is of a loop: --stages must name the transformer, `--stages transformer,vae`")
    if "text" in chosen and generation.stage1 is not None:
        raise UsageError("with text among the --stages the prompt is encoded here: leave --stage1 or text out")
    if "text" in chosen and like is not None:
        raise UsageError("with text among the --stages the prompt is encoded here: leave --like or text out")
    written = recorded(
        where,
        one,
        generation,
        observed,
        floors=floors,
        stages=chosen,
        stage1_out=stage1_out,
        inputs=inputs,
        like=alike_to,
        resume=resume,
        overwrite=overwrite,
    )
    tell(f"{written} step{'s' * (written != 1)} written to {where}")


def recorded(
    where: str,
    one: OneSide,
    generation: Generation,
    observed: Observed,
    *,
    floors: str = "default",
    stages: tuple[str, ...] = ("transformer",),
    stage1_out: Path | None = None,
    inputs: Path | None = None,
    like: Like | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> int:
    """Record one side, of options that fit each other; returns the number of steps written now.

    Args:
        where: folder or URL of the golden. like: what a golden gives to it. The others are those of `parity record`.

    Raises:
        ParityError: see `OneSide.load` and `parity.runs.recording.record.record`.
    """
    with Output().sides(torchax=one.side == "candidate" and not one.pythons) as say:
        from parity.runs.recording.record import RecordRequest, check_floors
        from parity.runs.recording.record import record as record_side
        from parity.runs.request import Request

        ports, reference, candidate = one.load(generation.model)
        run = Request(
            model=str(one.reference_path) if ports.alone else generation.name,
            reference=reference,
            candidate=candidate,
            steps=generation.steps,
            seed=generation.seed,
            stage1=generation.stage1,
            prompt=generation.prompt,
            sites=observed.sites,
            values=tuple(observed.values),
            inputs=inputs,
            ports=ports,
            stages=stages,
            like=like,
        )
        request = RecordRequest(
            where=where,
            side=one.role,
            run=run,
            floors=check_floors(floors, one.side),
            resume=resume,
            overwrite=overwrite,
            command=command_line(),
            stage1_out=stage1_out,
        )
        request.settings.require_stages(stages)
        return record_side(request, say)


def _script(
    where: str, script: Path, arguments: list[str], observed: Observed, floors: str, *, overwrite: bool, causes: bool
) -> None:
    """Record a script of somebody's own."""
    from parity.recorder.rerun import RUNS
    from parity.recorder.script import Script, run_script

    if floors not in ("default", "rounding", "none"):
        raise UsageError(f"--floors of a script are 'rounding' or 'none': it is run again; found '{floors}'")
    asked = Script(script, arguments, observed.sites, observed.values, causes)
    run_script(where, asked, 0 if floors == "none" else RUNS, overwrite=overwrite)


def command_line() -> str:
    """The command without folders of this machine (a path that leads to one keeps its last part) and without secrets
    of URLs."""
    words = map(_without_folders, sys.argv[1:])
    return shlex.join(["parity", *map(without_secrets, words)])


def _without_folders(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    path = value.removeprefix("file://")
    of_this_machine = path != value or value.startswith(("/", "~", "..", "./"))
    return option + equals + (Path(path).name if of_this_machine else value)
