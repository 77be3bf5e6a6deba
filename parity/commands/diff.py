"""`parity diff`: compares two goldens where there is no model, prints the result, writes it for CI.

Cost. Starting: numpy and typer; rich is imported to print, fsspec for URLs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from parity.commands.options import JsonOption
from parity.errors import UsageError

AUTO = "auto"


def diff(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="Golden with floors: folder or URL; or a folder of `run --out`.")
    ],
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
    as_json: JsonOption = False,
) -> None:
    """Compare two goldens: no model, torch or jax is needed.

    Exit code 0: same, 1: diverged, 2: bad input, 125: cannot be judged.
    """
    code = diff_command(
        reference=reference,
        candidate=candidate,
        rules=rules,
        map_out=map_out,
        junit=junit,
        markdown=markdown,
        as_json=as_json,
    )
    raise typer.Exit(code)


def diff_command(
    *,
    reference: str,
    candidate: str | None,
    rules: str | None,
    map_out: Path | None,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> int:
    """Compare, print and write; returns the exit code.

    Raises:
        UsageError: see `parity.compare.diff.diff`; a file cannot be written.
    """
    if map_out is not None and rules != AUTO:
        raise UsageError("--map-out saves what --map auto proposes: give both")
    if candidate is None:
        reference, candidate = both_sides(reference)
    from parity.compare.diff import Auto
    from parity.compare.diff import diff as diff_goldens
    from parity.golden.rename import NONE, load_rename
    from parity.report.console import make_consoles
    from parity.report.progress import progress

    rename = Auto() if rules == AUTO else NONE if rules is None else load_rename(rules)
    console, errors = make_consoles()
    with progress(errors, quiet=as_json or not errors.is_terminal) as say:
        result = diff_goldens(reference, candidate, rename=rename, say=say)
    if isinstance(rename, Auto):
        if map_out is not None and rename.proposal is not None:
            write(map_out, rename.proposal.rename.dumps, "--map-out")
        elif rename.proposal is not None and rename.proposal.rename:
            print(rename.proposal.rename.dumps(), end="", file=sys.stderr)
    if junit is not None:
        from parity.report.junit import junit as as_junit

        write(junit, lambda: as_junit(result), "--junit")
    if markdown is not None:
        from parity.report.markdown import markdown as as_markdown

        write(markdown, lambda: as_markdown(result), "--markdown")
    if as_json:
        from parity.report.json_report import dumps

        print(dumps(result))
    else:
        from parity.report.terminal import print_result

        print_result(result, console)
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


def write(path: Path, text: Callable[[], str], option: str) -> None:
    """Write a file whole, or say why not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(), encoding="utf-8", newline="\n", errors="backslashreplace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{option}: cannot write '{os.fspath(path)}': {reason}") from None
