"""Two goldens compared and reported: what `parity diff` does, and `parity gate` after it has recorded one of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parity.commands.parts.options import Judgement, Output
from parity.errors import UsageError
from parity.report.formats import render
from parity.report.output import tell, write

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

    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML, one case a block and step.")
    ] = None
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write a summary for a pull request.")
    ] = None


def compared(reference: str, candidate: str, renames: Renames, output: Output) -> Result:
    """Compare two goldens; rules that were proposed are saved or told.

    Raises:
        ParityError: see `parity.compare.diff.diff` and `parity.golden.rename.load_rename`.
    """
    from parity.compare.diff import Auto
    from parity.compare.diff import diff as diff_goldens
    from parity.golden.rename import NONE, load_rename

    rules = renames.rules
    rename = Auto() if rules == AUTO else NONE if rules is None else load_rename(rules)
    with output.working("reading the goldens", quiet=output.quiet or not sys.stderr.isatty()) as say:
        result = diff_goldens(reference, candidate, rename=rename, say=say)
    if isinstance(rename, Auto) and rename.proposal is not None:
        proposed = rename.proposal.rename
        if renames.map_out is not None:
            write(renames.map_out, proposed.dumps, "--map-out")
        elif proposed:
            for line in proposed.dumps().splitlines():
                tell(line)
    return result


def reported(result: Result, following: Sequence[str], output: Judgement, reports: Reports) -> None:
    """Write the reports and print the result.

    Args:
        following: commands to go on with, where there are causes to find.

    Raises:
        UsageError: a report cannot be written.
    """
    from parity.report.comparison import Comparison

    following = tuple(following) if result.has_causes_to_find else ()
    document = Comparison(result, following=following, details=output.details)
    for name, path in (("junit", reports.junit), ("markdown", reports.markdown)):
        if path is not None:
            write(path, render(document, name), f"--{name}")
    output.show(document)
