"""`parity sweep`: many candidates against one reference, as a price list."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parity.commands.parts import choices
from parity.commands.parts.options import Chosen, Output, Seed, check_range
from parity.commands.parts.unfold import command
from parity.errors import UsageError
from parity.models.registry import DEFAULT_MODEL
from parity.report.formats import render
from parity.report.output import write
from parity.report.prices import Prices, to_csv
from parity.runs.sweep.plan import every, grid, one_at_a_time, parse_sets


@command
def sweep(
    sides: Chosen,
    output: Output,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V,V", help="Values of a candidate's setting; repeatable.")
    ] = None,
    all_values: Annotated[
        bool, typer.Option("--all", help="A row for each value of each setting of the loop that is not its default.")
    ] = False,
    as_grid: Annotated[
        bool, typer.Option("--grid/--one-at-a-time", help="Every combination, or each value alone.")
    ] = True,
    model: Annotated[
        list[str] | None, choices.model("Built-in model, folder in diffusers layout, or hub name; repeatable.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Number of denoising steps.")] = 2,
    seed: Seed = 0,
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep rows here as they come; a stopped sweep is resumed.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as Markdown too.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows for a spreadsheet too.")] = None,
) -> None:
    """Price settings: error, bits, time and memory of each.

    All are held against one reference, which runs once. Exit code 0 whatever the rows' verdicts, 2: bad input. Rows
    that a side does not take are listed as refused.
    """
    check_range(steps, seed)
    if all_values == bool(sets):
        raise UsageError("give --set SETTING=VALUE,VALUE (repeatable), or --all: one of the two")
    chosen = parse_sets(sets or [])
    repeated = [name for name in chosen if name in {text.partition("=")[0] for text in sides.candidate}]
    if repeated:
        raise UsageError(f"'{repeated[0]}' is given by --set and by --candidate: every row's, or each row's own?")
    combined = grid if as_grid else one_at_a_time
    reference, candidate = tuple(sides.reference), tuple(sides.candidate)
    question = {
        "reference": " ".join(reference), "candidate": " ".join(candidate), "steps": str(steps), "seed": str(seed),
    }  # fmt: skip
    lists = []
    with output.sides() as say:
        from parity.paths.worker.openers import Workers
        from parity.runs.sweep.state import SweepState
        from parity.runs.sweep.sweep import Sweep, SweepRequest

        kept = SweepState(state, question)
        for name in model or [DEFAULT_MODEL]:
            with Workers() as openers:
                swept = Sweep(SweepRequest(name, reference, candidate, steps, seed), openers, say)
                rows = []
                for row in swept.rows(every(swept.blocks) if all_values else combined(chosen), kept.known(name)):
                    kept.add(name, row)
                    rows.append(row)
                lists.append(swept.list_of(rows))
    document = Prices(lists)
    if markdown is not None:
        write(markdown, render(document, "markdown"), "--markdown")
    if csv is not None:
        write(csv, to_csv(lists), "--csv")
    output.show(document)
