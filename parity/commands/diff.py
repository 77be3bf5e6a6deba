"""`parity diff`: two goldens where there is no model.

Cost. Starting: numpy and typer; rich is imported to print, fsspec for URLs.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from parity.commands.parts.options import Output
from parity.commands.parts.unfold import command
from parity.errors import UsageError
from parity.report.formats import render
from parity.report.output import tell, write

AUTO = "auto"


@command
def diff(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="Golden with floors: folder or URL; or a folder of `run --out`.")
    ],
    output: Output,
    candidate: Annotated[
        str | None,
        typer.Argument(metavar="CANDIDATE", help="Golden to judge; left out for a folder of `run --out`."),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option("--map", metavar="RENAMES", help="File of rename rules, or auto to propose them."),
    ] = None,
    map_out: Annotated[
        Path | None, typer.Option("--map-out", metavar="FILE", help="Save the rules that --map auto proposes.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML, one case a block and step.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write a summary for a pull request.")
    ] = None,
) -> int:
    """Compare two goldens: no model, torch or jax is needed.

    Exit code 0: same, 1: diverged, 2: bad input, 125: cannot be judged.
    """
    if map_out is not None and rules != AUTO:
        raise UsageError("--map-out saves what --map auto proposes: give both")
    if candidate is None:
        reference, candidate = both_sides(reference)
    from parity.compare.diff import Auto
    from parity.compare.diff import diff as diff_goldens
    from parity.golden.rename import NONE, load_rename
    from parity.report.comparison import Comparison

    rename = Auto() if rules == AUTO else NONE if rules is None else load_rename(rules)
    with output.working("reading the goldens", quiet=output.quiet or not sys.stderr.isatty()) as say:
        result = diff_goldens(reference, candidate, rename=rename, say=say)
    if isinstance(rename, Auto) and rename.proposal is not None:
        proposed = rename.proposal.rename
        if map_out is not None:
            write(map_out, proposed.dumps, "--map-out")
        elif proposed:
            for line in proposed.dumps().splitlines():
                tell(line)
    both = shlex.join([reference, candidate])
    document = Comparison(result, following=(f"parity explain {both}",) if result.has_causes_to_find else ())
    for name, path in (("junit", junit), ("markdown", markdown)):
        if path is not None:
            write(path, render(document, name), f"--{name}")
    output.show(document)
    return result.exit_code


def both_sides(run: str) -> tuple[str, str]:
    """The two goldens of a kept run.

    Raises:
        UsageError: the folder is not one.
    """
    root = run.rstrip("/")
    if "://" not in run and not (Path(run, "reference").is_dir() and Path(run, "candidate").is_dir()):
        raise UsageError(
            f"'{run}' holds no reference/ and candidate/: give two goldens, or the folder of a `parity run --out`"
        )
    return f"{root}/reference", f"{root}/candidate"
