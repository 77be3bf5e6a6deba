"""Options that several commands take, each said once; those that belong together as groups.

Typer reads options from a function's parameters, so options that several commands share would stand in each signature
and again in its calls. Here a command takes groups of options and the command line takes their fields: a group is a
frozen dataclass whose fields carry Typer's annotations and defaults; its `panel` is that of the help.
`command` gives a function that takes groups the signature that Typer reads, with each group replaced by its fields, and
builds the groups when it is called:

    @command
    def inspect(golden: Golden, output: Output) -> int: ...

    inspect(golden="folder", format="json")    # as Typer calls it: every option by name

A group checks its own values when it is built, before anything heavy is imported.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from parity.errors import Say, UsageError
from parity.models.registry import DEFAULT_MODEL, require_model, tiny_names
from parity.paths.plan import Openers
from parity.paths.worker.extras import check_extras, quieten, require_one_process
from parity.records import Provenance
from parity.report import formats
from parity.report.comparison import Comparison
from parity.report.document import Document
from parity.report.output import console, progress, show, tell, write
from parity.runs.given import Given, read_given
from parity.runs.request import NO_PORTS, STAGES, Checks, Isolation, Request, load_ports
from parity.settings import parse

_PORT = re.compile(r".+\.py:\w+")
"""A port, and how a golden names its model where that is a port with inputs of its own."""
MOST_STEPS = 100_000
"""Denoising steps, at most: schedules are made whole."""


def model_option(help: str) -> OptionInfo:
    """An option for a model."""
    return typer.Option("--model", "-m", metavar="NAME", help=help)


def stages_option(help: str, panel: str | None = None) -> OptionInfo:
    """An option for stages; panel: of the help."""
    return typer.Option(metavar=",".join(STAGES), help=help, rich_help_panel=panel)


def settings_of(side: str, short: str) -> OptionInfo:
    """An option for settings, repeatable."""
    help = f"Setting of the {side}, see parity info settings; repeatable."
    return typer.Option(f"--{side}", short, metavar="K=V", help=help)


# --- options

Model = Annotated[
    str | None,
    model_option(
        f"Built-in ({', '.join(tiny_names())}), folder in diffusers layout, or hub name; default {DEFAULT_MODEL}."
    ),
]
GoldensModel = Annotated[str | None, model_option("Model; default: the golden's.")]
Prompt = Annotated[str | None, typer.Option(help="Prompt; default: the model's example prompt.")]
Candidate = Annotated[list[str], settings_of("candidate", "-c")]
ReferencePort = Annotated[
    str | None, typer.Option(metavar="FILE.py:FUNCTION", help="A port in place of the reference.")
]
Port = Annotated[
    str | None,
    typer.Option("--port", "-p", metavar="FILE.py:FUNCTION", help="A port as the candidate (parity init writes one)."),
]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What both sides generate.

    Attributes:
        model: None for the default, or a golden's. steps: of the loop. seed: of the noise. inputs: what both sides
            start from, see `parity.runs.given`. prompt: None for the model's example prompt.

    Raises:
        UsageError: steps or seed out of range, or a prompt that is no text.
    """

    panel: ClassVar[str] = "Model and inputs"

    model: Model = None
    steps: Annotated[int | None, typer.Option(help="Number of denoising steps; default 1, or the golden's.")] = None
    seed: Annotated[int | None, typer.Option(help="Seed of the initial noise; default 0.")] = None
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|GOLDEN",
            help="What both sides start from: a golden, a port's embeddings or latents, or tensors by argument name.",
        ),
    ] = None
    prompt: Prompt = None

    def __post_init__(self) -> None:
        if self.steps is not None and not 1 <= self.steps <= MOST_STEPS:
            raise UsageError(f"--steps must be from 1 to {MOST_STEPS}, found {str(self.steps)[:20]}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed must be from 0 to 2^63 - 1, found {self.seed}")
        if self.prompt is not None and any(0xD800 <= ord(char) < 0xE000 for char in self.prompt):
            raise UsageError(f"--prompt: '{ascii(self.prompt)[1:-1][:80]}' is not valid UTF-8; retype it")
        if self.model is not None and not self.model.strip():
            raise UsageError(f"--model is empty: name a model, or leave it out for {DEFAULT_MODEL}")
        if self.model is not None:
            require_model(self.model)

    def request(
        self,
        sides: Sides,
        stages: str | None = None,
        *,
        sites: str | None = "blocks",
        values: Sequence[str] = (),
        isolate: Isolation = "none",
        checks: Checks = "both",
        openers: Openers | None = None,
    ) -> Request:
        """What both sides are asked for, with every default filled in; the ports are imported, each where it will run.

        Args:
            stages: names of stages, comma-separated; None for the transformer, or the VAE where latents are given.
            sites: None for those of the golden given, or blocks. values, isolate, checks: see `Request`. openers: see
                `load_ports`.

        Raises:
            UsageError: an input that is not right, or that says what another option says; an unknown stage; a port that
                cannot be loaded; settings that a side does not take, or that the stages have no place for.
        """
        given = read_given(self.inputs)
        chosen = parse_stages(stages, latents=given.stage2 is not None)
        if self.prompt is not None and given != Given() and not (given.stage1 is not None and "text" in chosen):
            raise UsageError("--inputs and --prompt exclude each other: what is given is encoded already")
        model, steps, seed = self.model, self.steps, self.seed
        if given.like is not None:
            made = given.like.provenance
            self._require_like(made, chosen)
            model, steps, seed, sites = model or made.model, steps or made.steps, made.seed, sites or made.sites
        ports = load_ports(sides.reference_port, sides.port, model, openers)
        reference, candidate = ports.settings(sides.reference, sides.candidate)
        for settings in (reference, candidate):
            settings.require_stages(chosen)
        alone = ports.reference if ports.alone else None
        return Request(
            model=(model or DEFAULT_MODEL) if alone is None else alone.text,
            reference=reference,
            candidate=candidate,
            steps=steps or 1,
            seed=seed or 0,
            stage1=given.stage1,
            prompt=self.prompt,
            inputs=given.arguments,
            ports=ports,
            stages=chosen,
            stage2=given.stage2,
            like=given.like,
            sites=sites or "blocks",
            values=tuple(values),
            isolate=isolate,
            checks=checks,
        )

    def _require_like(self, made: Provenance, stages: tuple[str, ...]) -> None:
        """Refuse what does not go with the inputs of a golden."""
        if "text" in stages:
            raise UsageError(ENCODED)
        if self.model is None and is_port(made.model):
            raise UsageError(f"'{self.inputs}' is of the port '{made.model}', whose inputs are its own: leave it out")
        if self.seed not in (None, made.seed):
            raise UsageError(f"--seed is {self.seed}, and the noise of '{self.inputs}' is of {made.seed}: leave it out")


ENCODED = "with text among the --stages the prompt is encoded here: leave --inputs or text out"


def is_port(text: str) -> bool:
    return _PORT.fullmatch(text) is not None


def parse_stages(text: str | None, *, latents: bool) -> tuple[str, ...]:
    """The stages of a run, in their order.

    Args:
        latents: whether a port's latents are given, which the VAE alone takes.

    Raises:
        UsageError: an unknown stage, or latents given to others than the VAE.
    """
    if text is None:
        return ("vae",) if latents else ("transformer",)
    named = [name.strip() for name in text.split(",")]
    unknown = [name for name in named if name not in STAGES]
    if unknown:
        raise UsageError(f"--stages takes {', '.join(STAGES)}, comma-separated; found '{unknown[0]}'")
    if latents and set(named) != {"vae"}:
        raise UsageError("--inputs holds latents, which the VAE decodes and no other stage: leave --stages out")
    return tuple(name for name in STAGES if name in named)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What is observed.

    Attributes:
        sites: `blocks`, `all` or a glob; None for `blocks`, or a golden's. values: globs of the sites whose values are
            kept whole.
    """

    panel: ClassVar[str] = "Comparison"

    sites: Annotated[
        str | None,
        typer.Option(
            metavar="blocks|all|GLOB",
            help="Sites; a glob is over module or module:port. Default: blocks; of record and diff, a golden's.",
        ),
    ] = None
    values: Annotated[
        list[str], typer.Option(metavar="GLOB", help="Sites whose values are kept whole; repeatable.")
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The settings of both sides, and ports in place of them.

    Attributes:
        reference, candidate: `NAME=VALUE`. reference_port, port: `FILE.py:FUNCTION`.

    Raises:
        UsageError: a setting that the side does not take.
    """

    panel: ClassVar[str] = "Settings and ports"

    reference: Annotated[list[str], settings_of("reference", "-r")] = field(default_factory=list)
    candidate: Candidate = field(default_factory=list)
    port: Port = None
    reference_port: ReferencePort = None

    def __post_init__(self) -> None:
        if self.port is None and self.reference_port is None:  # a port's settings are known once its file is imported
            NO_PORTS.settings(self.reference, self.candidate)

    @property
    def torchax(self) -> bool:
        """Whether the candidate needs torchax; of a port, whoever loads it knows."""
        return self.port is None and parse("torchax", self.candidate).backend == "torchax"


@dataclass(frozen=True, kw_only=True)
class Output:
    """How a result is printed.

    Attributes:
        format: of what is printed.
    """

    panel: ClassVar[str] = "Output"

    format: Annotated[formats.Name, typer.Option(help="Format on stdout; json is one document alone.")] = "text"

    @property
    def quiet(self) -> bool:
        """Whether a program reads the result, and short commands leave stderr empty."""
        return self.format != "text"

    def show(self, document: Document) -> None:
        """Print a result."""
        show(formats.pieces(document, self.format))

    @contextlib.contextmanager
    def working(self, stage: str, *, quiet: bool = False) -> Iterator[Say]:
        """Report progress on stderr while the block runs, whatever the format; `stage` begins; `quiet`: none."""
        with progress(console(stderr=True), quiet=quiet) as say:
            say(stage)
            yield say

    def sides(self, *, torchax: bool = True, extras: bool = True) -> contextlib.AbstractContextManager[Say]:
        """`working`, for a command whose sides have processes of their own; a reference alone needs no torchax.

        Args:
            extras: whether torch has to be there.
        """
        require_one_process()
        quieten()
        if extras:
            check_extras(torchax=torchax)
        return self.working("starting the sides")


@dataclass(frozen=True, kw_only=True)
class Listed(Output):
    """How an answer that is no comparison is printed."""

    format: Annotated[Literal["json", "markdown", "text"], typer.Option(help="Format on stdout.")] = "text"


@dataclass(frozen=True, kw_only=True)
class Judgement(Output):
    """How a comparison is printed.

    Attributes:
        details: all rows, where a terminal shows those that the first divergence is in.
    """

    details: Annotated[bool, typer.Option("--details", "-v", help="Show all rows on a terminal.")] = False

    def judged(self, document: Comparison, problems: Iterable[str]) -> int:
        """Print a result, then save it, even if stdout is full or closed; returns the exit code.

        Args:
            problems: writes the files as it is read, and names those that cannot be: of a pass the exit code is then 2.
        """
        code = document.result.exit_code
        try:
            self.show(document)
        finally:
            for problem in problems:
                tell(f"parity: {problem}")
                code = code or UsageError.exit_code
        return code


def unwritten(*files: tuple[str, Path | None, Callable[[], str]]) -> Iterator[str]:
    """Write side files: the option that named each, its path, if there is one, and its text. Says why one cannot be."""
    for option, path, text in files:
        try:
            if path is not None:
                write(path, text, option)
        except UsageError as error:
            yield str(error)


def refuse_read(files: Mapping[str, str | Path | None], read: Iterable[str | None]) -> None:
    """Refuse, before anything is computed, to write two things to one place, or into what is read.

    Args:
        files: what is written, by its option. read: files, folders, and ports as `FILE.py:FUNCTION`.
    """
    where = {option: str(path) for option, path in files.items() if path is not None}
    places = [_resolved(x.rpartition(":")[0] if is_port(x) else x) for x in read if x is not None]
    for option, path in where.items():
        if option != "--out" and ":/" in path:  # a path has one slash of two
            raise UsageError(f"{option}: '{path}' is a URL; name a file")
        if any(_resolved(path).is_relative_to(place) for place in places):
            raise UsageError(f"{option}: '{path}' is read, or lies in what is read; name another")
    if len(set(map(_resolved, where.values()))) < len(where):
        raise UsageError(f"{', '.join(where)}: name another place for each")


def _resolved(place: str) -> Path:
    """A place on this machine without links; of a URL something like it."""
    return Path(place) if "://" in place else Path(place).resolve()


# --- groups in a command's signature


def command(function: Callable[..., int | None]) -> Callable[..., int]:
    """The function with its option groups unfolded; no returned exit code is 0.

    Raises:
        ValueError: two groups have a field of the same name.
    """
    groups: dict[str, type[Any]] = {}
    parameters: list[Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            groups[parameter.name] = kind
            parameters += _parameters(kind)
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def unfolded(**options: object) -> int:
        for name, group in groups.items():
            options[name] = group(**{own.name: options.pop(own.name) for own in fields(group)})
        return function(**options) or 0

    unfolded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(unfolded)["__signature__"] = inspect.Signature(parameters)
    return unfolded


def _parameters(group: type[Any]) -> Iterator[Parameter]:
    hints, defaults = get_type_hints(group, include_extras=True), group()
    for own in fields(group):
        kind, option = get_args(hints[own.name])
        option = copy.copy(option)  # an option may stand in several groups, in the help under each one's panel
        option.rich_help_panel = group.panel
        default, annotation = getattr(defaults, own.name), Annotated[kind, option]
        yield Parameter(own.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
