"""Two goldens compared and reported: what `parity diff` does, and `parity gate` after it has recorded one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
    from parity.report.comparison import Comparison

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


def compared(reference: str, candidate: str, renames: Renames, output: Output) -> tuple[Result, str]:
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
        result = diff_goldens(reference, candidate, rename=rename, say=say)
    if not isinstance(rename, Auto) or rename.proposal is None:
        return result, ""
    proposed = rename.proposal.rename
    if renames.map_out is not None:
        return result, proposed.dumps()
    for line in proposed.dumps().splitlines() if proposed else ():
        tell(line)
    return result, ""


def reported(
    result: Result, proposed: str, following: Sequence[str], output: Judgement, renames: Renames, reports: Reports
) -> int:
    """Print the result, then write the side files; returns the exit code.

    Args:
        proposed: of `compared`. following: commands to go on with, where there are causes to find.
    """
    from parity.report.comparison import Comparison

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


def shown(output: Judgement, document: Comparison, save: Callable[[int], int]) -> int:
    """Print a result, then save it, even if stdout is full or closed; returns the exit code.

    Args:
        save: writes the files; takes the exit code of the verdict and gives the command's.
    """
    code = document.result.exit_code
    try:
        output.show(document)
    finally:
        code = save(code)
    return code


def saved(code: int, path: Path, text: Callable[[], str], option: str) -> int:
    """Write a side file after the result was shown; a failure goes to stderr.

    Args:
        code: the exit code of the verdict. option: that named the file.

    Returns:
        The same code; of a pass whose file could not be written, 2.
    """
    try:
        write(path, text, option)
    except UsageError as error:
        tell(f"parity: {error}")
        return code or UsageError.exit_code
    return code
