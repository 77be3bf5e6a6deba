"""`parity diff`: two goldens where there is no model.

Cost. Starting: numpy and typer; rich is imported to print, fsspec for URLs.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from parity.commands.parts.judged import Renames, Reports, compared, reported
from parity.commands.parts.options import Judgement
from parity.commands.parts.unfold import command
from parity.errors import UsageError


@command
def diff(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="Golden with floors: folder or URL; or a folder of `run --out`.")
    ],
    output: Judgement,
    candidate: Annotated[
        str | None,
        typer.Argument(metavar="CANDIDATE", help="Golden to judge; left out for a folder of `run --out`."),
    ] = None,
    *,
    renames: Renames,
    reports: Reports,
) -> int:
    """Compare two goldens: no model, torch or jax is needed.

    Exit code 0: same, 1: diverged, 2: bad input, 125: cannot be judged.
    """
    kept = candidate is None and Path(reference, "result.json").is_file()
    run = shlex.quote(reference)
    if candidate is None:
        reference, candidate = both_sides(reference)
    result, proposed = compared(reference, candidate, renames, output)
    pair = shlex.join([reference, candidate])
    page = f"parity report {run}" if kept else f"parity diff {pair} --format html > diff.html"
    following = (f"parity explain {run if kept else pair}   # why", f"{page}   # the page")
    return reported(result, proposed, following, output, renames, reports)


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
