"""Options that several commands take, each said once; those that belong together as groups (see `unfold`).

A group checks its own values when it is built, before anything heavy is imported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from parity.commands.parts import choices
from parity.commands.parts.checks import at_revision, check_range, check_seconds, check_text, choose
from parity.commands.parts.choices import SIDES, model, one_of, settings_of
from parity.errors import UsageError
from parity.models.registry import DEFAULT_MODEL, tiny_names
from parity.paths.worker.extras import check_extras, quieten, require_one_process
from parity.report import formats
from parity.report.output import consoles, show
from parity.settings import SETTINGS, Settings, paired, parse

if TYPE_CHECKING:
    from parity.paths.worker.openers import Openers
    from parity.report.document import Document
    from parity.report.progress import Say
    from parity.runs.request import Ports

SETTINGS_HELP = (
    "Settings (K; `parity info settings` has their values V): " + ", ".join(setting.name for setting in SETTINGS) + "."
)
"""Ends the help of commands that take settings."""

Model = Annotated[
    str | None,
    model(f"Built-in ({', '.join(tiny_names())}), folder in diffusers layout, or hub name; default {DEFAULT_MODEL}."),
]
GoldensModel = Annotated[str | None, model("Model; default: the golden's.")]
Revision = Annotated[
    str | None, typer.Option(metavar="REV", help="Branch, tag or commit of a --model on the hub: as owner/name@REV.")
]
Steps = Annotated[int, typer.Option(help="Number of denoising steps.")]
Seed = Annotated[int, typer.Option(help="Seed of the initial noise.")]
Stage1 = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Embeddings: a port's stage1_embeddings.safetensors.")
]
Prompt = Annotated[str | None, typer.Option(help="Prompt; default: the model's example prompt.")]
InputsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Tensors by argument name, for a transformer without a family of its own."),
]

Reference = Annotated[list[str], settings_of("reference")]
Candidate = Annotated[list[str], settings_of("candidate")]
Setting = Annotated[list[str], settings_of("path")]
SideName = Annotated[str, one_of(SIDES, "Which path: reference is torch, candidate torchax.")]
ReferencePath = Annotated[
    str | None, typer.Option(metavar="FILE:FUNCTION", help="A port in place of the reference (parity init writes one).")
]
CandidatePath = Annotated[
    str | None, typer.Option(metavar="FILE:FUNCTION", help="A port in place of the candidate (parity init writes one).")
]
CandidatePython = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Python that runs the candidate, with packages of its own.")
]
PathTimeout = Annotated[float, typer.Option(help="Seconds that importing a port's file may take.")]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What both sides generate.

    Attributes:
        model: None for the default; with a revision `owner/name@revision`. steps: of the loop. seed: of the noise.
        revision: None once it is in the model's name.
        stage1: a port's embeddings, in place of a prompt. prompt: None for the model's example prompt.

    Raises:
        UsageError: steps or seed out of range.
    """

    model: Model = None
    steps: Steps = 1
    seed: Seed = 0
    stage1: Stage1 = None
    prompt: Prompt = None
    revision: Revision = None

    def __post_init__(self) -> None:
        check_range(self.steps, self.seed)
        if self.revision is not None:
            object.__setattr__(self, "model", at_revision(self.model, self.revision))
            object.__setattr__(self, "revision", None)
        check_text("--prompt", self.prompt)
        if self.model is not None and not self.model.strip():
            raise UsageError(f"--model is empty: name a model, or leave it out for {DEFAULT_MODEL}")

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model or DEFAULT_MODEL

    def require_one_input(self) -> None:
        """Raise UsageError where both embeddings and a prompt are chosen."""
        if self.stage1 is not None and self.prompt is not None:
            raise UsageError("--stage1 and --prompt exclude each other: embeddings are already encoded")


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What is observed.

    Attributes:
        sites: `blocks`, `all` or a glob. values: globs of the sites whose values are kept whole.
    """

    sites: Annotated[str, choices.sites("Sites; a glob is over module or module:port.")] = "blocks"
    values: Annotated[
        list[str], typer.Option(metavar="GLOB", help="Sites whose values are kept whole; repeatable.")
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The settings of both sides.

    Attributes:
        reference, candidate: `NAME=VALUE`.

    Raises:
        UsageError: a setting that the side does not take.
    """

    reference: Reference = field(default_factory=list)
    candidate: Candidate = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings()

    def settings(self) -> tuple[Settings, Settings]:
        """The settings of both sides, by parity's own catalogue."""
        return paired(parse("torch", self.reference), parse("torchax", self.candidate))


@dataclass(frozen=True, kw_only=True)
class Sides(Chosen):
    """The settings of both sides, and ports in place of them.

    Attributes:
        reference_path, candidate_path: `FILE:FUNCTION`. path_timeout: in seconds.
        candidate_python: the interpreter of the candidate's process; None for this one.
    """

    reference_path: ReferencePath = None
    candidate_path: CandidatePath = None
    candidate_python: CandidatePython = None
    path_timeout: PathTimeout = 60.0

    def __post_init__(self) -> None:
        check_seconds("--path-timeout", self.path_timeout)
        if not self.ported:  # a port's settings are known once its file is imported
            self.settings()

    @property
    def ported(self) -> bool:
        """Whether a port takes part."""
        return self.reference_path is not None or self.candidate_path is not None

    @property
    def pythons(self) -> dict[str, str]:
        """Role -> interpreter, where it is not this one."""
        return interpreters(self.candidate_python)

    def load(self, model: str | None, openers: Openers | None = None) -> tuple[Ports, Settings, Settings]:
        """Import the ports, each where it will run.

        Args:
            model: None where a reference port has inputs of its own. openers: who imports; by default a process a side.

        Raises:
            UsageError: see `parity.paths.port.load.load_entry`.
        """
        from parity.paths.worker.openers import Workers
        from parity.runs.load import load_ports
        from parity.runs.request import Ports

        openers = openers or (Workers(self.pythons) if self.pythons else None)
        if not self.ported:
            return Ports(openers=openers), *self.settings()
        ports = load_ports(self.reference_path, self.candidate_path, model, self.path_timeout, openers)
        return ports, *ports.settings(self.reference, self.candidate)


@dataclass(frozen=True, kw_only=True)
class OneSide:
    """One side, run on this machine.

    Attributes:
        side: `reference` or `candidate`. setting: `NAME=VALUE` of it. The others are those of `Sides`.

    Raises:
        UsageError: another side, or a setting that it does not take.
    """

    side: SideName = "reference"
    setting: Setting = field(default_factory=list)
    reference_path: ReferencePath = None
    candidate_path: CandidatePath = None
    candidate_python: CandidatePython = None
    path_timeout: PathTimeout = 60.0

    def __post_init__(self) -> None:
        choose("--side", self.side, SIDES)
        self._sides()

    @property
    def role(self) -> Literal["reference", "candidate"]:
        """The side, checked."""
        return cast(Literal["reference", "candidate"], self.side)

    @property
    def pythons(self) -> dict[str, str]:
        """Role -> interpreter, where it is not this one."""
        return interpreters(self.candidate_python)

    def load(self, model: str | None, openers: Openers | None = None) -> tuple[Ports, Settings, Settings]:
        """Import the ports; the settings of the side that is not run are the defaults; see `Sides.load`."""
        return self._sides().load(model, openers)

    def _sides(self) -> Sides:
        return Sides(
            reference=self.setting if self.side == "reference" else [],
            candidate=self.setting if self.side == "candidate" else [],
            reference_path=self.reference_path,
            candidate_path=self.candidate_path,
            candidate_python=self.candidate_python,
            path_timeout=self.path_timeout,
        )


@dataclass(frozen=True, kw_only=True)
class Output:
    """How a result is printed.

    Attributes:
        as_json: short for the format json. format: one of `parity.report.formats.NAMES`; None for text.

    Raises:
        UsageError: no such format, or two formats.
    """

    as_json: Annotated[bool, typer.Option("--json", help="As --format json: one document, nothing else.")] = False
    format: Annotated[str | None, one_of(choices.FORMATS, "Format on stdout; default text.")] = None

    def __post_init__(self) -> None:
        formats.require(self.name)
        if self.as_json and self.format not in (None, "json"):
            raise UsageError(f"--json and --format {self.format} exclude each other")

    @property
    def name(self) -> str:
        """The format's name."""
        return self.format or ("json" if self.as_json else "text")

    @property
    def quiet(self) -> bool:
        """Whether a program reads the result, and short commands leave stderr empty."""
        return self.name != "text"

    def show(self, document: Document) -> None:
        """Print a result."""
        show(formats.pieces(document, self.name))

    @contextlib.contextmanager
    def working(self, stage: str, *, quiet: bool = False) -> Iterator[Say]:
        """Report progress on stderr while the block runs, whatever the format; `stage` begins; `quiet`: none."""
        from parity.report.progress import progress

        with progress(consoles()[1], quiet=quiet) as say:
            say(stage)
            yield say

    @contextlib.contextmanager
    def sides(self, *, torchax: bool = True, quiet: bool = False) -> Iterator[Say]:
        """`working`, for a command whose sides have processes of their own; a reference alone needs no torchax."""
        require_one_process()
        quieten()
        check_extras(torchax=torchax)
        with self.working("starting the sides", quiet=quiet) as say:
            yield say


@dataclass(frozen=True, kw_only=True)
class Judgement(Output):
    """How a comparison is printed.

    Attributes:
        details: whole tables, where a terminal shows those rows that the first divergence is in.
    """

    details: Annotated[
        bool, typer.Option("--details", help="Whole tables on a terminal, and the sites that only carry on.")
    ] = False


def interpreters(candidate: Path | None) -> dict[str, str]:
    """Role -> interpreter, where it is not this one.

    Raises:
        UsageError: it cannot be run.
    """
    if candidate is None:
        return {}
    if candidate.is_dir() or not os.access(candidate, os.X_OK):
        raise UsageError(f"--candidate-python: '{candidate}' is no Python that can be run")
    return {"candidate": str(candidate)}
