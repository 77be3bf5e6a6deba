"""The command line: parses, calls one function, prints, exits. Exit codes: 0 same, 1 diverged, 2 wrong usage or bad
input, 125 cannot be judged. Imports nothing heavy until a command runs, so `parity --help` answers at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from parity.commands import bisect as bisect_command
from parity.commands import diff as diff_command
from parity.commands import doctor as doctor_command
from parity.commands import golden as golden_command
from parity.commands import init as init_command
from parity.commands import models as models_command
from parity.commands import report as report_command
from parity.commands import sweep as sweep_command
from parity.commands.options import (
    CandidateOption,
    CandidatePathOption,
    InputsOption,
    JsonOption,
    PathTimeoutOption,
    PromptOption,
    ReferenceOption,
    ReferencePathOption,
    SeedOption,
    SettingOption,
    SitesOption,
    Stage1Option,
    StepsOption,
    ValuesOption,
)
from parity.errors import ParityError
from parity.models.registry import DEFAULT_MODEL
from parity.settings import SETTINGS

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Why a TPU port of a diffusion video model does not compute what the GPU original computes.",
)

SETTINGS_HELP = (
    "Settings (K; `parity models` has their values V): " + ", ".join(setting.name for setting in SETTINGS) + "."
)

app.command("models")(models_command.models)
app.command("doctor")(doctor_command.doctor)
app.command("init")(init_command.init)
app.command("diff")(diff_command.diff)
app.command("inspect")(golden_command.inspect)
app.command("merge")(golden_command.merge)
app.command("report")(report_command.report)
app.command("sweep", epilog=SETTINGS_HELP)(sweep_command.sweep)
app.add_typer(bisect_command.app, name="bisect")


@app.callback()
def _root() -> None:
    """Compare a reference path with a candidate path, module by module and step by step."""


@app.command(epilog=SETTINGS_HELP)
def run(
    model: Annotated[
        str | None,
        typer.Option(help=f"Built-in model, folder in diffusers layout, or hub name; default {DEFAULT_MODEL}."),
    ] = None,
    steps: StepsOption = 1,
    reference: ReferenceOption = None,
    candidate: CandidateOption = None,
    reference_path: ReferencePathOption = None,
    candidate_path: CandidatePathOption = None,
    path_timeout: PathTimeoutOption = 60.0,
    rounds: Annotated[
        str,
        typer.Option(
            help="structure: float32, dtype settings neutralised; precision: as given, against the float32 truth; both."
        ),
    ] = "both",
    forcing: Annotated[
        str,
        typer.Option(
            help="none: free run; step: each step starts from the reference's latents; module: each block is also run "
            "on the reference's inputs."
        ),
    ] = "none",
    sites: SitesOption = "blocks",
    values: ValuesOption = None,
    stages: Annotated[
        str | None,
        typer.Option(help="Comma-separated: text, transformer, vae. Default: transformer (vae with --stage2)."),
    ] = None,
    stage1: Stage1Option = None,
    stage2: Annotated[
        Path | None, typer.Option(help="A port's stage2_latents.safetensors: decode it on both sides, nothing else.")
    ] = None,
    prompt: PromptOption = None,
    seed: SeedOption = 0,
    inputs: InputsOption = None,
    out: Annotated[Path | None, typer.Option(help="Keep the run in this folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the reference and the candidate side by side and say where they part.

    Settings are listed by `parity models`. Exit code 0: same, 1: diverged, 2: bad input, 125: cannot be judged.
    """
    from parity.commands.run import run_command

    code = run_command(
        model=model,
        steps=steps,
        reference=reference or [],
        candidate=candidate or [],
        rounds=rounds,
        forcing=forcing,
        sites=sites,
        values=values or [],
        stages=stages,
        stage1=stage1,
        stage2=stage2,
        prompt=prompt,
        seed=seed,
        out=out,
        as_json=as_json,
        inputs=inputs,
        reference_path=reference_path,
        candidate_path=candidate_path,
        path_timeout=path_timeout,
    )
    raise typer.Exit(code)


@app.command(epilog=SETTINGS_HELP)
def record(
    where: Annotated[str, typer.Argument(metavar="DIR", help="Folder or URL (gs://, s3://) of the golden to write.")],
    side: Annotated[str, typer.Option(help="Which path: reference (torch) or candidate (torchax).")] = "reference",
    setting: SettingOption = None,
    model: Annotated[
        str | None,
        typer.Option(help=f"Built-in model, folder in diffusers layout, or hub name; default {DEFAULT_MODEL}."),
    ] = None,
    reference_path: ReferencePathOption = None,
    candidate_path: CandidatePathOption = None,
    path_timeout: PathTimeoutOption = 60.0,
    steps: StepsOption = 1,
    seed: SeedOption = 0,
    stage1: Stage1Option = None,
    prompt: PromptOption = None,
    sites: SitesOption = "blocks",
    values: ValuesOption = None,
    floors: Annotated[
        str,
        typer.Option(
            help="fp64, rounding, dtype, kernel (comma-separated) or none; default: all but kernel, on the reference."
        ),
    ] = "default",
    stages: Annotated[
        str | None, typer.Option(help="Comma-separated, the transformer among them: text, transformer, vae.")
    ] = None,
    stage1_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the embeddings as a port's first stage does, for --stage1."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished golden of the same run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a golden that is there.")] = False,
    inputs: InputsOption = None,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="The candidate runs in N processes that record one golden; auto: as JAX finds them out."
        ),
    ] = None,
    process: Annotated[int | None, typer.Option(metavar="I", help="Which of them this is, from 0.")] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where process 0 listens; or JAX_COORDINATOR_ADDRESS.")
    ] = None,
    process_timeout: Annotated[float, typer.Option(help="Seconds to wait for another process.")] = 120.0,
) -> None:
    """Record one path to a golden, to be compared with `parity diff` where there is no model."""
    from parity.commands.record import record_command

    record_command(
        where=where,
        side=side,
        settings=setting or [],
        model=model,
        steps=steps,
        seed=seed,
        stage1=stage1,
        prompt=prompt,
        sites=sites,
        values=values or [],
        floors=floors,
        resume=resume,
        overwrite=overwrite,
        inputs=inputs,
        reference_path=reference_path,
        candidate_path=candidate_path,
        path_timeout=path_timeout,
        processes=processes,
        process=process,
        coordinator=coordinator,
        process_timeout=process_timeout,
        stages=stages,
        stage1_out=stage1_out,
    )


@app.command()
def replay(
    golden: Annotated[str, typer.Argument(metavar="GOLDEN", help="Folder or URL of a golden with recorded inputs.")],
    side: Annotated[str, typer.Option(help="Which of this machine's paths: candidate (torchax) or reference.")] = (
        "candidate"
    ),
    setting: SettingOption = None,
    model: Annotated[str | None, typer.Option(help="In place of the golden's own.")] = None,
    stage1: Annotated[Path | None, typer.Option(help="The embeddings that the golden was recorded with.")] = None,
    reference_path: Annotated[
        str | None, typer.Option(metavar="FILE:FUNCTION", help="The port that the golden was recorded of.")
    ] = None,
    candidate_path: Annotated[
        str | None, typer.Option(metavar="FILE:FUNCTION", help="A port in place of the candidate: torch modules.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Tensors by argument name that it was recorded with.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a golden's recorded inputs through this machine's modules, one at a time: their local errors.

    Record them with `parity record DIR --values 'transformer_blocks.?:in'`. Exit codes as of `parity run`.
    """
    from parity.commands.replay import replay_command

    code = replay_command(
        golden=golden,
        side=side,
        settings=setting or [],
        model=model,
        stage1=stage1,
        as_json=as_json,
        reference_path=reference_path,
        candidate_path=candidate_path,
        inputs=inputs,
    )
    raise typer.Exit(code)


@app.command()
def explain(
    first: Annotated[str, typer.Argument(metavar="RUN|REFERENCE", help="A kept run, or the reference golden.")],
    second: Annotated[str | None, typer.Argument(metavar="[CANDIDATE]", help="The candidate golden.")] = None,
    model: Annotated[str | None, typer.Option(help="In place of the reference golden's own.")] = None,
    stage1: Annotated[Path | None, typer.Option(help="The embeddings that both were recorded with.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt, where it was not the model's own.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Name the causes of a difference, with shares and evidence: of a kept run, or of two goldens.

    Exit codes as of `parity diff`.
    """
    from parity.commands.explain import explain_command

    raise typer.Exit(
        explain_command(first=first, second=second, model=model, stage1=stage1, prompt=prompt, as_json=as_json)
    )


def main() -> None:
    """Entry point of the `parity` script: errors that a user can mend are one message without a traceback."""
    try:
        app()
    except ParityError as error:
        print(f"parity: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("parity: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`| head`) has gone: point stdout at nothing so that the flush at exit stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
