"""`parity diff`: two goldens where there is no model; or a golden and a port, which is first recorded as that was.

On GitHub's machines all but a pass is annotated: a line that GitHub shows with the job, and if a port is compared, at a
place of its file, among a pull request's changes.

    ::error file=my_port.py,line=12,title=parity%3A fail::first divergence: ...

The runner reads such lines on stdout and stderr alike. They go to stderr here, so that stdout stays the result alone.

Cost. Starting: numpy and typer; rich is imported to print, fsspec for URLs.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from typer.models import OptionInfo

from parity.commands.options import (
    Candidate,
    Generation,
    GoldensModel,
    Judgement,
    Observed,
    Output,
    ReferencePort,
    Sides,
    command,
    is_port,
    refuse_read,
    unwritten,
)
from parity.commands.record import Recording, recorded
from parity.compare.result import Result
from parity.errors import InconclusiveError, ParityError, UsageError
from parity.files import unused
from parity.golden import Golden
from parity.golden.rename import NONE, Rename, load_rename
from parity.records import Provenance
from parity.redact import typed_command
from parity.report.comparison import Comparison
from parity.report.formats import render
from parity.report.output import tell

AUTO = "auto"


def file_option(help: str) -> OptionInfo:
    """An option for a file to be written."""
    return typer.Option(metavar="FILE", help=help)


@dataclass(frozen=True, kw_only=True)
class Ported(Observed):
    """The options of a port.

    Attributes:
        model: None for the golden's. settings: `NAME=VALUE` of the port. reference_port: of a golden that is of a
            port. out: where the port's golden is kept; None for nowhere. The others are those of `Observed`.

    Raises:
        UsageError: a kept golden is to be replaced, and none is named.
    """

    panel: ClassVar[str] = "Port"

    model: GoldensModel = None
    settings: Candidate = field(default_factory=list)
    reference_port: ReferencePort = None
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Keep what is recorded of a port.")] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")] = False

    def __post_init__(self) -> None:
        if self.overwrite and self.out is None:
            raise UsageError("--overwrite replaces what --out holds: give both")

    @contextlib.contextmanager
    def recorded(self, port: str, golden: str) -> Iterator[str]:
        """The folder of the port's golden, without `--out` there until the block ends; of a golden its own.

        Raises:
            ParityError: the port cannot be recorded as the golden was, or a port's options were given with a golden.
        """
        if not is_port(port):
            if port.endswith(".py"):
                raise UsageError(f"'{port}' is a file; name its function that makes the port, as in {port}:build")
            if self != Ported():
                raise UsageError(
                    "a golden is compared as it was recorded: the options of a port are for FILE.py:FUNCTION"
                )
            yield port
            return
        sides = Sides(candidate=self.settings, port=port, reference_port=self.reference_port)
        made = Golden.open(golden).provenance
        observed = Observed(sites=self.sites or made.sites, values=self.values)
        with tempfile.TemporaryDirectory(prefix="parity-") as spare:
            kept = self.out or str(Path(spare, "candidate"))
            asked = Recording(side="candidate", overwrite=self.overwrite)
            recorded(kept, self._generation(golden, made), sides, observed, asked)
            yield kept

    def _generation(self, golden: str, made: Provenance) -> Generation:
        """What the golden's run generated, from what it carries unless it is of a port that has its own inputs.

        Raises:
            UsageError: it is of a port that is not named.
        """
        if self.model is not None or not is_port(made.model):
            return Generation(model=self.model, inputs=golden)
        if self.reference_port is None:  # a golden may come from anybody: no file is imported because it says so
            raise UsageError(
                f"'{golden}' is of the port '{made.model}', whose inputs are its own: name it with --reference-port "
                "FILE.py:FUNCTION, or with --model the model that it is of"
            )
        return Generation(steps=made.steps, seed=made.seed)


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """What is compared with what.

    Attributes:
        rules: a file of rename rules, or `auto` to propose them. map_out: where those are saved. steps: how many are
            compared; None for all.

    Raises:
        UsageError: rules are to be saved, and none are proposed.
    """

    panel: ClassVar[str] = "Comparison"

    rules: Annotated[
        str | None, typer.Option("--map", metavar="RENAMES", help="File of rename rules, or auto to propose them.")
    ] = None
    map_out: Annotated[Path | None, file_option("Save the rules that --map auto proposes.")] = None
    steps: Annotated[
        int | None, typer.Option(min=1, help="Compare the first steps alone, as of an unfinished golden.")
    ] = None

    def __post_init__(self) -> None:
        if self.map_out is not None and self.rules != AUTO:
            raise UsageError("--map-out saves what --map auto proposes: give both")

    def compared(self, reference: str, candidate: str, output: Output) -> tuple[Result, Rename]:
        """Compare two goldens; returns also the rules that were proposed.

        Raises:
            ParityError: see `parity.compare.diff.diff` and `parity.golden.rename.load_rename`.
        """
        from parity.compare.diff import Auto, diff as diff_goldens

        rename = Auto() if self.rules == AUTO else NONE if self.rules is None else load_rename(self.rules)
        gc.disable()  # hundreds of thousands of sites stay to the end, and nothing of them is a cycle
        try:
            with output.working("reading the goldens", quiet=output.quiet or not sys.stderr.isatty()) as say:
                result = diff_goldens(reference, candidate, rename=rename, steps=self.steps, say=say)
        finally:
            gc.enable()
        return result, rename.proposal.rename if isinstance(rename, Auto) and rename.proposal is not None else NONE


@dataclass(frozen=True, kw_only=True)
class Filed(Judgement):
    """How a comparison is printed, and the files of CI that it is written to."""

    junit: Annotated[Path | None, file_option("Write JUnit XML, one case a block and step.")] = None
    markdown: Annotated[Path | None, file_option("Write a summary for a pull request.")] = None


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
    output: Filed,
    pairing: Pairing,
    ported: Ported,
) -> int:
    """Compare a golden with another golden or with a port.

    Two goldens need no model, torch or jax. A port is recorded first: model, steps, seed, embeddings and noise are
    the golden's. Exit code 0: same, 1: diverged, 2: bad input, 125: inconclusive.
    """
    made = {"--junit": output.junit, "--markdown": output.markdown, "--map-out": pairing.map_out, "--out": ported.out}
    rules = None if pairing.rules == AUTO else pairing.rules
    try:
        refuse_read(made, (reference, candidate, rules, ported.reference_port))
        with ported.recorded(candidate, reference) as recorded:
            result, proposed = pairing.compared(reference, recorded, output)
    except ParityError as error:
        inconclusive = error.exit_code == InconclusiveError.exit_code
        annotate(candidate, "inconclusive" if inconclusive else "error", str(error))
        raise
    if result.verdict != "pass":
        failed = f" ({result.failed})" if result.failed else ""
        annotate(candidate, f"{result.verdict}{failed}", f"{result.reason} (golden: {reference})")
    if is_port(candidate):
        following = _following(reference, ported.out)
    else:
        both = reference, candidate
        following = (
            f"{typed_command('parity', 'explain', places=both)}   # why",
            f"{typed_command('parity', 'diff', '--format', 'html', places=both)} > diff.html   # the page",
        )
    for line in proposed.dumps().splitlines() if proposed and pairing.map_out is None else ():
        tell(line)
    following = following if result.has_causes_to_find else ()
    document = Comparison(result, following=following, details=output.details)
    files = unwritten(
        ("--junit", output.junit, lambda: render(document, "junit")),
        ("--markdown", output.markdown, lambda: render(document, "markdown")),
        ("--map-out", pairing.map_out, proposed.dumps),
    )
    return output.judged(document, files)


def _following(golden: str, kept: str | None) -> tuple[str, ...]:
    """What to type after a divergence of a port; its causes are looked for in what was kept."""
    where, words = kept or unused("candidate"), sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)  # behind it are no options
    again = typed_command("parity", *words[:end], "--out", where, *words[end:])
    explain = typed_command("parity", "explain", places=[golden, where])
    return (explain if kept else f"{again}; {explain}",)


_IN_MESSAGES = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTIES = {**_IN_MESSAGES, **str.maketrans({":": "%3A", ",": "%2C"})}


def annotate(candidate: str, title: str, message: str) -> None:
    """Show a message, of a port at its function, `FILE.py:FUNCTION`; on GitHub's machines only."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        name, _, function = candidate.rpartition(":") if is_port(candidate) else ("", "", "")
        place = {"file": _in_repository(Path(name)), "line": str(_line(Path(name), function))} if name else {}
        tell(error_line(message, **place, title=f"parity: {title}"))


def error_line(message: str, **properties: str) -> str:
    """One error as a workflow command, escaped as its format asks."""
    named = ",".join(f"{name}={text.translate(_IN_PROPERTIES)}" for name, text in properties.items())
    return f"::error {named}::{message.translate(_IN_MESSAGES)}"


def _in_repository(file: Path) -> str:
    """The file as GitHub names it: from the repository's root, where it lies in it."""
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    whole = file.resolve()
    return str(whole.relative_to(root) if whole.is_relative_to(root) else file)


def _line(file: Path, function: str) -> int:
    """The line where the file last defines the function, read and not imported; 1 where it is not seen."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return 1
    defined = re.compile(
        rf"(async )?def {re.escape(function)}\b|class {re.escape(function)}\b|{re.escape(function)} *[:=]"
    )
    return max((i for i, line in enumerate(lines, 1) if defined.match(line)), default=1)
