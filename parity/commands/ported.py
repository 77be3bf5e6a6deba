"""A port as the candidate of `parity diff`: recorded as the golden was made, then compared."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parity.commands.parts.like import alike
from parity.commands.parts.options import (
    CandidatePython,
    Generation,
    GoldensModel,
    Observed,
    OneSide,
    PathTimeout,
    Setting,
)
from parity.commands.record import recorded
from parity.errors import UsageError
from parity.golden import Golden

if TYPE_CHECKING:
    from parity.runs.like import Like

_PORT = re.compile(r".+\.py:\w+")
"""A port, and how a golden names its model where that is a port with inputs of its own."""


def is_port(text: str) -> bool:
    return _PORT.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True)
class Ported(Observed):
    """What is said of a port beside its name.

    Attributes:
        model: None for the golden's. reference_path: `FILE:FUNCTION` of the reference, for a golden of a port. setting:
            `NAME=VALUE` of the port. out: where the port's golden is kept; None for nowhere. The others are those of
            `OneSide` and `Observed`.

    Raises:
        UsageError: a kept golden is to be replaced, and none is named.
    """

    model: GoldensModel = None
    reference_path: Annotated[
        str | None,
        typer.Option(metavar="FILE:FUNCTION", help="The reference, where the golden is of a port with its own inputs."),
    ] = None
    setting: Setting = field(default_factory=list)
    candidate_python: CandidatePython = None
    path_timeout: PathTimeout = 60.0
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Keep what is recorded of a port.")] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")] = False

    def __post_init__(self) -> None:
        if self.overwrite and self.out is None:
            raise UsageError("--overwrite replaces what --out holds: give both")

    @contextlib.contextmanager
    def recorded(self, port: str, golden: str) -> Iterator[str]:
        """The folder of the port's golden; without `--out` it is there until the block ends.

        Raises:
            ParityError: the port cannot be recorded as the golden was.
        """
        if self.out is not None and _same(self.out, golden):
            raise UsageError(f"--out: '{self.out}' is the golden itself; name another folder")
        side = OneSide(
            side="candidate",
            setting=self.setting,
            reference_path=self.reference_path,
            candidate_path=port,
            candidate_python=self.candidate_python,
            path_timeout=self.path_timeout,
        )
        generation, like = self._of(golden)
        with contextlib.ExitStack() as stack:
            kept = self.out
            if kept is None:
                kept = str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="parity-")), "candidate"))
            recorded(kept, side, generation, self, like=like, overwrite=self.overwrite)
            yield kept

    def _of(self, golden: str) -> tuple[Generation, Like | None]:
        """What the golden's run generated, and what it gives to the port's.

        Raises:
            UsageError: there is no golden; it is of a port that is not named; see `alike`.
        """
        made = Golden.open(golden).provenance
        if self.model is not None or not is_port(made.model):
            return alike(golden, Generation(model=self.model), {})
        if self.reference_path is None:  # a golden may come from anybody: no file is imported because it says so
            raise UsageError(
                f"'{golden}' is of the port '{made.model}', whose inputs are its own: name it with --reference-path "
                "FILE:FUNCTION, or with --model the model that it is of"
            )
        return Generation(steps=made.steps, seed=made.seed), None


def _same(one: str, other: str) -> bool:
    if "://" in one or "://" in other:
        return one.rstrip("/") == other.rstrip("/")
    return Path(one).resolve() == Path(other).resolve()
