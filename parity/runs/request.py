"""What a comparison is asked for, and by which ports. Imports neither torch nor jax."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from parity.paths.plan import LOOP_STAGE
from parity.paths.port.settings import PortInfo, chosen
from parity.settings import Settings, paired

if TYPE_CHECKING:
    from parity.paths.side import Openers
    from parity.runs.like import Like


class Say(Protocol):
    """Names the stage that begins, or how far it has come."""

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None: ...


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
        return paired(chosen(self.reference, "torch", reference), chosen(theirs, "torchax", candidate))


NO_PORTS = Ports()

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
        stages: parts of the generation (`parity.runs.stages.run`); `compare` runs one. part: which encoder of the text
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

    @property
    def by_itself(self) -> bool:
        """Whether the compared stage is outside the loop: the runs that measure its floors take the same inputs."""
        return self.stage != LOOP_STAGE

    def candidate_at(self, step: int) -> str:
        """What the candidate does at a step, for who waits for it."""
        compiles = step == 0 and self.candidate.backend == "torchax"
        return f"candidate{' (tracing and compiling)' * compiles}"
