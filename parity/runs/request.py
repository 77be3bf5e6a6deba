"""What a comparison is asked for, and by which ports, each imported where it will run. As plain data it is kept beside
the run's records, and typed again as a command.

To run a kept run again its ports are named on the command line, with their files as they were: a run folder may come
from somebody else, so its request.json never decides which file is executed. Imports neither torch nor jax.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec.structs import replace

from parity.errors import UsageError
from parity.files import read_bytes
from parity.hooks.sites import split_sites
from parity.models.registry import DEFAULT_MODEL, opened
from parity.paths.plan import Openers, Role
from parity.paths.port.settings import PortInfo, chosen
from parity.paths.worker.process import Workers
from parity.records import LOOP_STAGE
from parity.redact import typed_command, without_secrets
from parity.runs.given import Like
from parity.settings import SETTINGS, Settings


def no_run(where: Path, instead: str = "two goldens") -> UsageError:
    """The error for a folder in which no run that ended is kept; `instead`: what else could be named."""
    if (where / FILE).is_file():
        how = "whose documents are damaged" if (where / RESULT).exists() else "that did not end"
        return UsageError(f"'{where}' holds a run {how}: delete it, and run it again with --out {where}")
    return UsageError(f"'{where}' is not a run folder. Create one with `parity run --out DIR`, or name {instead}")


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a run.

    Attributes:
        reference, candidate: None for parity's own path. alone: whether there is no model behind the reference.
        openers: who imported them, and so loads the sides; None where none is there.
    """

    reference: PortInfo | None = None
    candidate: PortInfo | None = None
    alone: bool = False
    openers: Openers | None = None

    @property
    def any(self) -> bool:
        """Whether either side is a port."""
        return self.reference is not None or self.candidate is not None

    def settings(self, reference: list[str], candidate: list[str]) -> tuple[Settings, Settings]:
        """The settings of both sides, of `NAME=VALUE` texts.

        Raises:
            UsageError: one that a side does not take.
        """
        theirs = self.candidate or self.reference
        return chosen(self.reference, "torch", reference), chosen(theirs, "torchax", candidate)


NO_PORTS = Ports()
Checks = Literal["both", "logic", "precision"]
Isolation = Literal["none", "steps"]
Stage = Literal["text", "transformer", "vae"]
STAGES: tuple[Stage, ...] = get_args(Stage)

Choice = tuple[str, tuple[str, ...]]
"""Sites and values of a stage."""


@dataclass(frozen=True, slots=True)
class Request:
    """What `parity run` was asked for.

    Attributes:
        model: tiny name, folder or hub name. reference, candidate: settings of the two sides.
        steps: denoising steps. seed: of the initial noise. stage1: a port's embeddings in place of the prompt.
        sites: `blocks`, `all` or a glob. values: globs of sites whose values are kept.
        checks: `logic`, `precision` or `both`.
        isolate: `none` or `steps`. prompt: in place of the model's own, None to keep it.
        inputs: tensors by argument name, for a transformer that no family knows. ports: in place of parity's paths.
        stages: parts of the generation (`parity.runs.compare`); `compare` runs one. part: which encoder of the text
            stage it is. stage2: a port's latents, for the VAE alone.
        like: embeddings and noise of a golden, in place of the prompt's and the seed's.
    """

    model: str
    reference: Settings
    candidate: Settings
    steps: int = 1
    seed: int = 0
    stage1: Path | None = None
    sites: str = "blocks"
    values: tuple[str, ...] = ()
    isolate: str = "none"
    prompt: str | None = None
    checks: str = "both"
    inputs: Path | None = None
    ports: Ports = NO_PORTS
    stages: tuple[str, ...] = ("transformer",)
    part: str = ""
    stage2: Path | None = None
    like: Like | None = None

    @property
    def alone(self) -> bool:
        """Whether there is no model behind the reference port."""
        return self.ports.alone

    @property
    def stage(self) -> str:
        """The one stage of a comparison."""
        (stage,) = self.stages
        return stage

    def of(self, check: str) -> Request:
        """The same with the settings that a check gives both sides: in `logic` every dtype is neutral."""
        if check != "logic":
            return self
        return dataclasses.replace(self, reference=self.reference.neutral, candidate=self.candidate.neutral)

    def choices(self) -> Mapping[str, Choice]:
        """Stage or encoder -> its own sites and values: a glob goes to those that have a module it names."""
        if self.stages == (LOOP_STAGE,) or (self.sites in ("blocks", "all", "none") and not self.values):
            return defaultdict(lambda: (self.sites, self.values))
        from parity.paths.stage import stage_modules  # torch, to name what no config names

        family, case = opened(self.model, prompt=self.prompt)
        return split_sites(stage_modules(case, family, self.stages), self.sites, self.values)


FILE = "request.json"
"""In the folder of a kept run."""
RESULT, FOUND = "result.json", "found.json"
"""There too, once the run has ended: what `--format json` prints, and the same as `parity explain` reads it."""
_KEPT_BYTES = 1 << 20
_AS_ASKED = ("steps", "seed", "prompt", "stages", "sites", "values", "checks", "isolate")
"""What a request holds under the same names."""


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run was asked for.

    Attributes:
        model: as named; None where a reference port has inputs of its own. reference, candidate: `NAME=VALUE` of the
            settings that are not the defaults. steps, seed, prompt, stages, sites, values, checks, isolate: see
            `Request`.
        golden, embeddings, latents, arguments: what both sides start from, a path each; at most one of them.
        reference_port, port: `FILE.py:FUNCTION`. reference_code, port_code: digests of their files.
    """

    model: str | None
    reference: tuple[str, ...]
    candidate: tuple[str, ...]
    steps: Annotated[int, msgspec.Meta(ge=0)]
    seed: Annotated[int, msgspec.Meta(ge=0)]
    prompt: str | None
    golden: str | None
    embeddings: str | None
    latents: str | None
    arguments: str | None
    reference_port: str | None
    port: str | None
    reference_code: str | None
    port_code: str | None
    stages: tuple[Stage, ...]
    sites: str
    values: tuple[str, ...]
    checks: Checks
    isolate: Isolation

    @classmethod
    def of(cls, request: Request) -> RunSpec:
        """What a request asks for; paths are absolute."""
        ports = request.ports
        return cls(
            model=None if ports.alone else request.model,
            reference=texts_of(request.reference),
            candidate=texts_of(request.candidate),
            golden=None if request.like is None else _absolute(request.like.where),
            embeddings=_path(request.stage1),
            latents=_path(request.stage2),
            arguments=_path(request.inputs),
            reference_port=_entry(ports.reference),
            port=_entry(ports.candidate),
            reference_code=None if ports.reference is None else ports.reference.digest,
            port_code=None if ports.candidate is None else ports.candidate.digest,
            **{name: getattr(request, name) for name in _AS_ASKED},
        )

    @classmethod
    def read(cls, run: Path) -> RunSpec:
        """That of a kept run's folder.

        Raises:
            OSError: there is no such file. msgspec.ValidationError: it is another than a run writes.
        """
        return msgspec.json.decode(read_bytes(run / FILE, _KEPT_BYTES), type=cls)

    def to_json(self) -> str:
        """As it is kept."""
        return msgspec.json.encode(self).decode()

    @property
    def inputs(self) -> str | None:
        """`--inputs`."""
        return self.golden or self.embeddings or self.latents or self.arguments

    def with_settings(self, *, reference: Sequence[str] = (), candidate: Sequence[str] = ()) -> RunSpec:
        """The same run with these settings (`NAME=VALUE`) in place of its own of those names."""
        return replace(
            self, reference=replaced(self.reference, reference), candidate=replaced(self.candidate, candidate)
        )

    def at(self, stages: Sequence[str]) -> RunSpec:
        """The same run of these stages alone, with the settings that apply there."""

        def own(texts: Sequence[str]) -> tuple[str, ...]:
            names = {setting.name for setting in SETTINGS if setting.is_of(stages)}
            return tuple(text for text in texts if text.partition("=")[0] in names)

        taken = tuple(stage for stage in self.stages if stage in stages)
        return replace(self, stages=taken, reference=own(self.reference), candidate=own(self.candidate))

    def command(self) -> str:
        """The command that asks for it."""
        return typed_command("parity", "run", *self._options())

    def _options(self) -> Iterator[str]:
        own = self.golden is None  # a golden has a model, steps and a seed of its own
        given: list[tuple[str, str | None, object]] = [
            ("-m", self.model, DEFAULT_MODEL if own else None),
            ("--steps", str(self.steps), "1" if own else None),
            ("--seed", str(self.seed) if own else None, "0"),
            ("--prompt", self.prompt, None),
            ("--inputs", self.inputs, None),
            ("-p", self.port, None),
            ("--reference-port", self.reference_port, None),
            *(("-r", text, None) for text in self.reference),
            *(("-c", text, None) for text in self.candidate),
            ("--stages", ",".join(self.stages), LOOP_STAGE),
            ("--sites", self.sites, "blocks"),
            *(("--values", glob, None) for glob in self.values),
            ("--checks", self.checks, "both"),
            ("--isolate", self.isolate, "none"),
        ]
        for option, value, default in given:
            if value is not None and value != default:
                yield from (option, value)


def texts_of(settings: Settings) -> tuple[str, ...]:
    """`NAME=VALUE` of those that are not the defaults."""
    return tuple(f"{name}={value}" for name, value in settings.as_text().items() if settings.changed(name))


def replaced(texts: Sequence[str], to: Sequence[str]) -> tuple[str, ...]:
    """`NAME=VALUE` texts with these in place of those of their names."""
    names = {text.partition("=")[0] for text in to}
    return (*(text for text in texts if text.partition("=")[0] not in names), *to)


def _path(file: Path | None) -> str | None:
    return None if file is None else str(file.resolve())


def _absolute(where: str) -> str:
    return without_secrets(where) if "://" in where else str(Path(where).resolve())


def _entry(port: PortInfo | None) -> str | None:
    return None if port is None else f"{port.file}:{port.text.rpartition(':')[2]}"


def load_ports(
    reference_port: str | None, port: str | None, model: str | None, openers: Openers | None = None
) -> Ports:
    """Import the ports of a command.

    Args:
        reference_port, port: `FILE.py:FUNCTION`; None for parity's own path. model: None where a reference port has
            inputs of its own. openers: who imports; by default a process a side.

    Raises:
        UsageError: see `parity.paths.port.load.load_entry`.
    """
    if reference_port is None and port is None:
        return NO_PORTS
    openers = openers or Workers()
    option = _OPTIONS["reference"]
    reference = None if reference_port is None else openers.of("reference").port(option, reference_port)
    if reference_port is not None and port is None:  # torchax runs the reference's own module
        openers.of("candidate").port(option, reference_port)
    candidate = None if port is None else openers.of("candidate").port(_OPTIONS["candidate"], port)
    return Ports(reference, candidate, reference is not None and model is None, openers)


_PORT_BYTES = 1 << 26
"""Of a port's file."""
_OPTIONS = {"reference": "--reference-port", "candidate": "--port"}


def ports_of(spec: RunSpec, openers: Openers, named: Mapping[Role, str | None]) -> Ports:
    """The ports of a kept run, which the user names again.

    Args:
        named: `FILE:FUNCTION` by role.

    Raises:
        UsageError: a port of the run is not named, was edited since, or cannot be loaded.
    """

    def port(role: Role, path: str | None, code: str | None) -> str | None:
        again = named.get(role)
        if path is None:
            return None
        if again is None:
            raise UsageError(f"this run was created with a port; name it again: {_OPTIONS[role]} {path}")
        _require_unchanged(Path(again.rpartition(":")[0]), code)
        return again

    reference = port("reference", spec.reference_port, spec.reference_code)
    candidate = port("candidate", spec.port, spec.port_code)
    return load_ports(reference, candidate, spec.model, openers)


def _require_unchanged(file: Path, digest: str | None) -> None:
    """Refuse a port's file that is not what ran, before any of it is executed."""
    try:
        found = hashlib.sha256(read_bytes(file, _PORT_BYTES)).hexdigest()[:16]
    except (OSError, ValueError):  # a path with a null is a ValueError
        found = None
    if found is None or found != digest:
        raise UsageError(f"'{file}' is not the port that was run, or was edited since: run it again with --out")
