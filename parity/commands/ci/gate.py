"""`parity gate`: a port held to a golden, for CI: `parity record` of the port, then `parity diff`."""

from __future__ import annotations

import contextlib
import re
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parity.commands.ci.annotate import error_line, errors_at, place_of, wanted
from parity.commands.parts.judged import Renames, Reports, compared, reported
from parity.commands.parts.like import alike
from parity.commands.parts.options import (
    CandidatePython,
    Generation,
    GoldensModel,
    Judgement,
    Observed,
    OneSide,
    PathTimeout,
    Setting,
)
from parity.commands.parts.unfold import command
from parity.commands.record import recorded
from parity.errors import UsageError
from parity.golden import Golden
from parity.report.output import tell

if TYPE_CHECKING:
    from parity.compare.result import Result
    from parity.runs.like import Like

_OF_A_PORT = re.compile(r".+\.py:\w+")
"""How a golden names its model where that is a port with inputs of its own."""


@dataclass(frozen=True, kw_only=True)
class Ported:
    """What is said of a port beside its name.

    Attributes:
        model: None for the golden's. reference_path: `FILE:FUNCTION` of the reference, for a golden of a port. setting:
            `NAME=VALUE` of the port. The others are those of `OneSide`.
    """

    model: GoldensModel = None
    reference_path: Annotated[
        str | None,
        typer.Option(metavar="FILE:FUNCTION", help="The reference, where the golden is of a port with its own inputs."),
    ] = None
    setting: Setting = field(default_factory=list)
    candidate_python: CandidatePython = None
    path_timeout: PathTimeout = 60.0

    def side(self, port: str) -> OneSide:
        """The port as the side to record.

        Raises:
            UsageError: an option that cannot be.
        """
        return OneSide(
            side="candidate",
            setting=self.setting,
            reference_path=self.reference_path,
            candidate_path=port,
            candidate_python=self.candidate_python,
            path_timeout=self.path_timeout,
        )


@command
def gate(
    port: Annotated[str, typer.Argument(metavar="PORT", help="The port, FILE:FUNCTION (parity init writes one).")],
    golden: Annotated[
        str, typer.Option("--golden", metavar="DIR", help="Golden of the reference, with floors: folder or URL.")
    ],
    *,
    ported: Ported,
    observed: Observed,
    renames: Renames,
    reports: Reports,
    output: Judgement,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Keep what was recorded of the port: folder or URL.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")] = False,
    annotate: Annotated[
        bool, typer.Option("--annotate", help="Print GitHub's ::error line; default where GITHUB_ACTIONS is true.")
    ] = False,
) -> int:
    """Hold a port to a golden: record it, and compare.

    Model, steps, seed, embeddings and noise are the golden's. Exit code 0: same, 1: diverged, 2: bad input, 125: cannot
    be judged.
    """
    if overwrite and out is None:
        raise UsageError("--overwrite replaces what --out holds: give both")
    if out is not None and _same(out, golden):
        raise UsageError(f"--out: '{out}' is the golden itself; name another folder")
    place = place_of(port)
    with errors_at(place if wanted(annotate) else None):
        generation, like = _of_golden(golden, ported)
        with _folder(out) as candidate:
            recorded(candidate, ported.side(port), generation, observed, like=like, overwrite=overwrite)
            result, proposed = compared(golden, candidate, renames, output)
            if wanted(annotate) and result.verdict != "pass":
                tell(error_line(place, _title(result), f"{result.reason} (golden: {golden})"))
            return reported(result, proposed, _following(golden, out), output, renames, reports)


def _same(one: str, other: str) -> bool:
    if "://" in one or "://" in other:
        return one.rstrip("/") == other.rstrip("/")
    return Path(one).resolve() == Path(other).resolve()


def _title(result: Result) -> str:
    return f"parity: {result.verdict}" + (f" ({result.failed})" if result.failed else "")


def _of_golden(golden: str, ported: Ported) -> tuple[Generation, Like | None]:
    """What the golden's run generated, and what it gives to the port's.

    Raises:
        UsageError: there is no golden; it is of a port that is not named; see `alike`.
    """
    told = Golden.open(golden).provenance
    if ported.model is not None or not _OF_A_PORT.fullmatch(told.model):
        return alike(golden, Generation(model=ported.model), {})
    if ported.reference_path is None:  # a golden may come from anybody: no file is imported because it says so
        raise UsageError(
            f"'{golden}' is of the port '{told.model}', whose inputs are its own: name it with --reference-path "
            "FILE:FUNCTION, or with --model the model that it is of"
        )
    return Generation(steps=told.steps, seed=told.seed), None


@contextlib.contextmanager
def _folder(out: str | None) -> Iterator[str]:
    """Where the port is recorded: what `--out` names, or a folder that is removed."""
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="parity-gate-") as folder:
        yield str(Path(folder, "candidate"))


def _following(golden: str, out: str | None) -> tuple[str, ...]:
    """What to type after a divergence; its causes are looked for in what was kept."""
    explain = f"parity explain {shlex.join([golden, out or 'candidate'])}"
    return (explain,) if out is not None else ("the same command with --out candidate", explain)
