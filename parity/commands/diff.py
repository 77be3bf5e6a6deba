"""`parity diff`: two goldens where there is no model; or a golden and a port, which is recorded first.

Cost. Starting: numpy and typer; rich is imported to print, fsspec for URLs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from parity.commands.github import annotate, errors_at
from parity.commands.parts.judged import saved, shown
from parity.commands.parts.options import Judgement, Output, is_port
from parity.commands.parts.unfold import command
from parity.commands.ported import Ported
from parity.errors import UsageError
from parity.redact import typed_command
from parity.report.comparison import Comparison
from parity.report.formats import render
from parity.report.output import tell

if TYPE_CHECKING:
    from parity.compare.result import Result

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Renames:
    """How the candidate's sites are called on the reference.

    Attributes:
        rules: file of rename rules, or `auto`. map_out: where proposed rules are saved.

    Raises:
        UsageError: rules are to be saved, and none are proposed.
    """

    panel: ClassVar[str] = "Comparison"

    rules: Annotated[
        str | None,
        typer.Option("--map", metavar="RENAMES", help="File of rename rules, or auto to propose them."),
    ] = None
    map_out: Annotated[
        Path | None, typer.Option("--map-out", metavar="FILE", help="Save the rules that --map auto proposes.")
    ] = None

    def __post_init__(self) -> None:
        if self.map_out is not None and self.rules != AUTO:
            raise UsageError("--map-out saves what --map auto proposes: give both")


@dataclass(frozen=True, kw_only=True)
class Reports:
    """Files that a CI machine shows.

    Attributes:
        junit: one case a block and step. markdown: the summary.
    """

    panel: ClassVar[str] = "Output"

    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML, one case a block and step.")
    ] = None
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write a summary for a pull request.")
    ] = None


@command
def diff(
    reference: Annotated[str, typer.Argument(metavar="REFERENCE", help="Golden with floors: folder or URL.")],
    candidate: Annotated[
        str,
        typer.Argument(
            metavar="CANDIDATE|FILE.py:FUNCTION", help="Golden to judge, or a port, which is recorded first."
        ),
    ],
    *,
    output: Judgement,
    renames: Renames,
    reports: Reports,
    ported: Ported,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Compare the first steps alone, as of an unfinished golden.", rich_help_panel="Comparison"
        ),
    ] = None,
) -> int:
    """Compare a golden with another golden or with a port.

    Two goldens need no model, torch or jax. A port is recorded first: model, steps, seed, embeddings and noise are
    the golden's. Exit code 0: same, 1: diverged, 2: bad input, 125: inconclusive.
    """
    if is_port(candidate):
        with errors_at(candidate), ported.recorded(candidate, reference) as (recorded, idle):
            result, proposed = compared(reference, recorded, renames, output, steps)
            result = result.resting_on(idle)
            if result.verdict != "pass":
                failed = f" ({result.failed})" if result.failed else ""
                annotate(candidate, f"parity: {result.verdict}{failed}", f"{result.reason} (golden: {reference})")
            return _reported(result, proposed, _following(reference, candidate, ported), output, renames, reports)
    if ported != Ported():
        raise UsageError("a golden is compared as it was recorded: the options of a port are for FILE.py:FUNCTION")
    result, proposed = compared(reference, candidate, renames, output, steps)
    following = (
        f"{typed_command('parity', 'explain', reference, candidate)}   # why",
        f"{typed_command('parity', 'diff', reference, candidate)} --format html > diff.html   # the page",
    )
    return _reported(result, proposed, following, output, renames, reports)


def compared(
    reference: str, candidate: str, renames: Renames, output: Output, steps: int | None = None
) -> tuple[Result, str]:
    """Compare two goldens; returns also the rules that were proposed, as a file's text, where they are to be saved.

    Raises:
        ParityError: see `parity.compare.diff.diff` and `parity.golden.rename.load_rename`.
    """
    from parity.compare.diff import Auto
    from parity.compare.diff import diff as diff_goldens
    from parity.golden.rename import NONE, load_rename

    rules = renames.rules
    rename = Auto() if rules == AUTO else NONE if rules is None else load_rename(rules)
    with output.working("reading the goldens", quiet=output.quiet or not sys.stderr.isatty()) as say:
        result = diff_goldens(reference, candidate, rename=rename, steps=steps, say=say)
    if not isinstance(rename, Auto) or rename.proposal is None:
        return result, ""
    proposed = rename.proposal.rename
    if renames.map_out is not None:
        return result, proposed.dumps()
    for line in proposed.dumps().splitlines() if proposed else ():
        tell(line)
    return result, ""


def _reported(
    result: Result, proposed: str, following: Sequence[str], output: Judgement, renames: Renames, reports: Reports
) -> int:
    """Print the result, then write the side files; returns the exit code.

    Args:
        proposed: of `compared`. following: commands to go on with, where there are causes to find.
    """
    following = tuple(following) if result.has_causes_to_find else ()
    document = Comparison(result, following=following, details=output.details)
    files: list[tuple[str, Path | None, Callable[[], str]]] = [
        ("--junit", reports.junit, lambda: render(document, "junit")),
        ("--markdown", reports.markdown, lambda: render(document, "markdown")),
        ("--map-out", renames.map_out if proposed else None, lambda: proposed),
    ]

    def save(code: int) -> int:
        for option, path, text in files:
            if path is not None:
                code = saved(code, path, text, option)
        return code

    return shown(output, document, save)


def _following(golden: str, port: str, ported: Ported) -> tuple[str, ...]:
    """What to type after a divergence of a port; its causes are looked for in what was kept."""
    kept = ported.out or "candidate"
    explain = typed_command("parity", "explain", golden, kept)
    if ported.out is not None:
        return (explain,)
    return (f"{typed_command('parity', 'diff', golden, port, *ported.words(), '--out', kept)}; {explain}",)
