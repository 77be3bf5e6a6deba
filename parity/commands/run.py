"""`parity run`: both sides on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from parity.commands.parts.choices import FORCINGS, ROUNDS, STAGES, choose, one_of, some_of
from parity.commands.parts.judged import shown
from parity.commands.parts.options import Generation, Judgement, Observed, Sides
from parity.commands.parts.unfold import command
from parity.compare.result import Result
from parity.errors import UsageError
from parity.report.comparison import Comparison
from parity.report.output import tell


@command
def run(
    generation: Generation,
    sides: Sides,
    observed: Observed,
    output: Judgement,
    rounds: Annotated[
        str,
        one_of(
            ROUNDS, "structure: float32, dtype settings neutralised; precision: as given, against the float32 truth."
        ),
    ] = "both",
    forcing: Annotated[
        str,
        one_of(
            FORCINGS,
            "none: free run; step: each step starts from the reference's latents; module: each block is also run "
            "on the reference's inputs.",
        ),
    ] = "none",
    stages: Annotated[
        str | None,
        some_of(STAGES, "Some of these; default: transformer."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the run in this folder.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that --out keeps.")] = False,
) -> int:
    """Run both sides, and report the first module that diverges.

    Settings are listed by `parity info settings`. Exit code 0: same, 1: diverged, 2: bad input, 125: cannot be judged.
    """
    if overwrite and out is None:
        raise UsageError("--overwrite replaces a kept run: give its folder with --out")
    choose("--forcing", forcing, FORCINGS)
    choose("--rounds", rounds, ROUNDS)
    start = generation.read(stages)
    with output.sides() as say:
        from parity.commands.parts.keep import KeepRun
        from parity.runs.stages.run import run_stages

        request = start.request(
            sides.load(start.model),
            sites=observed.sites,
            values=tuple(observed.values),
            forcing=forcing,
            rounds=rounds,
        )
        kept = None if out is None else KeepRun(out, request, overwrite)
        result = run_stages(request, say, kept)
        if kept is not None:
            result = result.noted(*kept.notes)

    def save(code: int) -> int:
        if kept is not None:
            kept.result(result)
            for problem in kept.problems:
                tell(f"parity: {problem}")
                code = code or UsageError.exit_code
        return code

    document = Comparison(result, following=_following(result, out, sides), details=output.details)
    return shown(output, document, save)


def _following(result: Result, out: Path | None, sides: Sides) -> tuple[str, ...]:
    """What to type after a run that differs."""
    where = None if out is None else shlex.quote(str(out))
    if not result.has_causes_to_find:
        return (f"parity report {where}   # the page",) if where and result.verdict == "fail" else ()
    if where is None:
        return ("this command with --out RUN, which keeps it; then: parity explain RUN",)
    named = {"--reference-port": sides.reference_port, "--port": sides.port}
    ports = "".join(f" {option} {shlex.quote(path)}" for option, path in named.items() if path is not None)
    return (f"parity explain {where}{ports}   # why", f"parity report {where}   # the page")
