"""`parity run`: both sides on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from parity.commands.options import Generation, Judgement, Observed, Sides, command, stages_option
from parity.compare.places import AROUND
from parity.compare.result import Result
from parity.redact import typed_command
from parity.report.comparison import Comparison
from parity.runs.request import Checks, Isolation, Request, RunSpec


@dataclass(frozen=True, kw_only=True)
class Compared(Observed):
    """What is observed, and how it is compared; see `parity.runs.request.Request`."""

    checks: Annotated[
        Checks, typer.Option(help="logic: float32, dtype settings neutral; precision: as given, against float32.")
    ] = "both"
    isolate: Annotated[Isolation, typer.Option(help="steps: start each step from the reference's latents.")] = "none"


@dataclass(frozen=True, kw_only=True)
class Kept(Judgement):
    """How a comparison is printed, and where the run is kept (`out`; None: as the last run)."""

    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the run in this folder; default: as the last run, in the cache."),
    ] = None


@command
def run(
    generation: Generation,
    sides: Sides,
    compared: Compared,
    output: Kept,
    stages: Annotated[str | None, stages_option("Some of these; default: transformer.", Generation.panel)] = None,
) -> int:
    """Run both sides, and report the first module that diverges.

    Settings are listed by `parity info settings`. Exit code 0: same, 1: diverged, 2: bad input, 125: inconclusive.
    """
    with output.sides(torchax=sides.torchax) as say:
        from parity.commands.keep import KeepLast, KeepRun
        from parity.runs.compare import run as run_both

        asked = {**asdict(compared), "sites": compared.sites or "blocks"}  # not those of a golden given
        request = generation.request(sides, stages, **asked)
        kept = KeepLast(request) if output.out is None else KeepRun(output.out, request)
        result = run_both(request, say, kept)

    def problems() -> Iterator[str]:
        kept.result(result)
        yield from kept.problems

    following = (*_closer(result, request), *_following(result, output.out, sides)) if kept.kept else ()
    document = Comparison(result, following=following, details=output.details)
    return output.judged(document, problems())


def _closer(result: Result, request: Request) -> tuple[str, ...]:
    """What to type where the first divergence is known to a block alone: every module would tell more."""
    if result.origin is None or result.closer or request.sites != "blocks" or result.origin.key.module in AROUND:
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
