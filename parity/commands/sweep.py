"""`parity sweep`: many candidates against one reference, as a price list."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parity.commands.options import JsonOption, ReferenceOption
from parity.commands.run import check_common, quieten, require_extras
from parity.errors import UsageError
from parity.models.registry import DEFAULT_MODEL
from parity.report.console import make_consoles
from parity.report.progress import Say, progress
from parity.report.sections import print_sections
from parity.runs.sweep_plan import Row, every, grid, one_at_a_time, parse_sets
from parity.settings import parse

if TYPE_CHECKING:
    from parity.compare.prices import PriceList


def sweep(
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V,V", help="Values of a candidate's setting; repeatable.")
    ] = None,
    all_values: Annotated[
        bool, typer.Option("--all", help="A row for each value of each setting that is not its default.")
    ] = False,
    as_grid: Annotated[
        bool, typer.Option("--grid/--one-at-a-time", help="Every combination, or each value alone.")
    ] = True,
    model: Annotated[
        list[str] | None, typer.Option(help="Built-in model, folder in diffusers layout, or hub name; repeatable.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Denoising steps.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the initial noise.")] = 0,
    reference: ReferenceOption = None,
    candidate: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Setting of every row; repeatable.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows are kept here as they come: a stopped sweep goes on.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables there too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Price settings: error, bits of agreement, time and memory of each against one reference, measured once.

    Exit code 0 whatever the rows' verdicts, 2: bad input. Rows that a side does not take are listed as refused.
    """
    check_common(steps=steps, seed=seed, stage1=None, prompt=None)
    if all_values == bool(sets):
        raise UsageError("give --set SETTING=VALUE,VALUE (repeatable), or --all: one of the two")
    given = parse_sets(sets or [])
    parse("torch", reference or [])
    parse("torchax", candidate or [])
    repeated = [name for name in given if name in {text.partition("=")[0] for text in candidate or []}]
    if repeated:
        raise UsageError(f"'{repeated[0]}' is given by --set and by --candidate: every row's, or each row's own?")
    rows = None if all_values else (grid(given) if as_grid else one_at_a_time(given))
    asked = (tuple(reference or ()), tuple(candidate or ()), steps, seed)
    quieten()
    console, errors = make_consoles()
    with progress(errors, quiet=as_json) as say:
        say("loading torch and diffusers")
        require_extras()
        lists = _swept(model or [DEFAULT_MODEL], rows, asked, state, say)
    from parity.report import price_list

    if markdown is not None:
        try:
            markdown.write_text(price_list.markdown(lists))
        except OSError as error:
            raise UsageError(f"cannot write '{markdown}': {error.strerror or error}") from None
    if as_json:
        print(price_list.dumps(lists))
    else:
        for found in lists:
            print_sections(price_list.sections(found), console)


def _swept(
    models: list[str],
    rows: tuple[Row, ...] | None,
    asked: tuple[tuple[str, ...], tuple[str, ...], int, int],
    state: Path | None,
    say: Say,
) -> list[PriceList]:
    """The price lists of the models; `rows` None for every value of every setting."""
    from parity.runs.sweep import Sweep, SweepRequest
    from parity.runs.sweep_state import SweepState

    reference, candidate, steps, seed = asked
    question = {
        "reference": " ".join(reference),
        "candidate": " ".join(candidate),
        "steps": str(steps),
        "seed": str(seed),
    }
    kept = SweepState(state, question)
    lists = []
    for name in models:
        swept = Sweep(SweepRequest(name, reference, candidate, steps, seed), say)
        wanted = every(swept.blocks) if rows is None else rows
        found = []
        for row in swept.rows(wanted, kept.known(name)):
            kept.add(name, row)
            found.append(row)
        lists.append(swept.list_of(found))
    return lists
