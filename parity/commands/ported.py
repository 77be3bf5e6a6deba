"""A port as the candidate of `parity diff`: recorded as the golden was made, then compared."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from parity.commands.parts.options import Candidate, Generation, GoldensModel, Observed, ReferencePort, Sides, is_port
from parity.commands.record import recorded
from parity.errors import UsageError
from parity.golden import Golden


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

    def words(self) -> list[str]:
        """Its options as they are typed, without the folder."""
        given = [
            ("-m", self.model),
            *(("-c", text) for text in self.settings),
            ("--reference-port", self.reference_port),
        ]
        given += [("--sites", None if self.sites == "blocks" else self.sites), *(("--values", x) for x in self.values)]
        return [word for option, value in given if value is not None for word in (option, value)]

    @contextlib.contextmanager
    def recorded(self, port: str, golden: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The folder of the port's golden, without `--out` there until the block ends; and why a comparison would not
        rest on what the port installed.

        Raises:
            ParityError: the port cannot be recorded as the golden was.
        """
        if self.out is not None and _same(self.out, golden):
            raise UsageError(f"--out: '{self.out}' is the golden itself; name another folder")
        sides = Sides(candidate=self.settings, port=port, reference_port=self.reference_port)
        start = self._generation(golden).read()
        with contextlib.ExitStack() as stack:
            kept = self.out
            if kept is None:
                kept = str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="parity-")), "candidate"))
            made = recorded(kept, start, sides, "candidate", self, overwrite=self.overwrite)
            yield kept, made.idle

    def _generation(self, golden: str) -> Generation:
        """What the golden's run generated, from what it carries unless it is of a port that has its own inputs.

        Raises:
            UsageError: there is no golden; it is of a port that is not named.
        """
        made = Golden.open(golden).provenance
        if self.model is not None or not is_port(made.model):
            return Generation(model=self.model, inputs=golden)
        if self.reference_port is None:  # a golden may come from anybody: no file is imported because it says so
            raise UsageError(
                f"'{golden}' is of the port '{made.model}', whose inputs are its own: name it with --reference-port "
                "FILE.py:FUNCTION, or with --model the model that it is of"
            )
        return Generation(steps=made.steps, seed=made.seed)


def _same(one: str, other: str) -> bool:
    if "://" in one or "://" in other:
        return one.rstrip("/") == other.rstrip("/")
    return Path(one).resolve() == Path(other).resolve()
