"""`parity run`: both sides on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from parity.commands.options import Generation, Judgement, Observed, Sides, command, stages_option
from parity.compare.result import Result
from parity.redact import typed_command
from parity.report.comparison import Comparison
from parity.runs.request import Checks, Isolation, Request, RunSpec


@command
def run(
    generation: Generation,
    sides: Sides,
    observed: Observed,
    output: Judgement,
    checks: Annotated[
        Checks,
        typer.Option(
            help="logic: float32, dtype settings neutral; precision: as given, against float32.",
            rich_help_panel="Comparison",
        ),
    ] = "both",
    isolate: Annotated[
        Isolation,
        typer.Option(help="steps: start each step from the reference's latents.", rich_help_panel="Comparison"),
    ] = "none",
    stages: Annotated[str | None, stages_option("Some of these; default: transformer.", "Model and inputs")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the run in this folder; default: as the last run, in the cache.",
            rich_help_panel="Output",
        ),
    ] = None,
) -> int:
    """Run both sides, and report the first module that diverges.

    Settings are listed by `parity info settings`. Exit code 0: same, 1: diverged, 2: bad input, 125: inconclusive.
    """
    with output.sides(torchax=sides.torchax) as say:
        from parity.commands.keep import KeepLast, KeepRun
        from parity.runs.compare import run as run_both

        sites = observed.sites or "blocks"
        request = generation.request(sides, stages, sites=sites, values=observed.values, isolate=isolate, checks=checks)
        kept = KeepLast(request) if out is None else KeepRun(out, request)
        result = run_both(request, say, kept)

    def problems() -> Iterator[str]:
        kept.result(result)
        yield from kept.problems

    following = (*_closer(result, request), *_following(result, out, sides)) if kept.kept else ()
    document = Comparison(result, following=following, details=output.details)
    return output.judged(document, problems())


def _closer(result: Result, request: Request) -> tuple[str, ...]:
    """What to type where the first divergence is known to a block alone: every module would tell more."""
    if result.origin is None or result.closer or request.sites != "blocks" or not result.origin.key.module:
        return ()
    return (f"{replace(RunSpec.of(request), sites='all').command()}   # in every module",)


def _following(result: Result, out: Path | None, sides: Sides) -> tuple[str, ...]:
    """What to type after a run that differs."""
    where = [] if out is None else [str(out)]
    page = f"{typed_command('parity', 'report', *where)}   # the page"
    if not result.has_causes_to_find:
        return (page,) if result.verdict == "fail" else ()
    named = {"--reference-port": sides.reference_port, "--port": sides.port}
    ports = [word for option, path in named.items() if path is not None for word in (option, path)]
    return (f"{typed_command('parity', 'explain', *where, *ports)}   # why", page)
