"""Two sides made ready: loaded from explicit inputs, prepared, and compared before any forward."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from parity.compare.preflight import preflight
from parity.compare.result import Check
from parity.paths.facts import gather
from parity.paths.inputs import Encoded, make_inputs
from parity.paths.loop import Loop, prepare
from parity.paths.ported import Ported
from parity.paths.reference import load_reference
from parity.runs.ports import NO_PORTS, Ports, base_of, families, load_candidate_side, port_checks
from parity.settings import Difference, Settings, differences


class Say(Protocol):
    """Names the stage that begins, or how far it has come."""

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Request:
    """What `parity run` was asked for.

    Attributes:
        model: tiny name, folder or hub name. reference, candidate: settings of the two sides.
        steps: denoising steps. seed: of the initial noise. stage1: a port's embeddings in place of the prompt.
        sites: `blocks`, `all` or a glob. values: globs of sites whose values are kept.
        rounds: `structure`, `precision` or `both`.
        forcing: `none`, `step` or `module`. prompt: in place of the model's own, None to keep it.
        inputs: tensors by argument name, for a transformer that no family knows. ports: in place of parity's paths.
        stages: parts of the generation (`parity.runs.stages`). stage2: a port's latents, for the VAE alone.
    """

    model: str
    reference: Settings
    candidate: Settings
    steps: int = 1
    seed: int = 0
    stage1: Path | None = None
    sites: str = "blocks"
    values: tuple[str, ...] = ()
    forcing: str = "none"
    prompt: str | None = None
    rounds: str = "both"
    inputs: Path | None = None
    ports: Ports = NO_PORTS
    stages: tuple[str, ...] = ("transformer",)
    stage2: Path | None = None


@dataclass(frozen=True)
class Pairing:
    """Two prepared sides and what was found before their first forward."""

    reference: Loop
    candidate: Loop
    differing: tuple[Difference, ...]
    checks: tuple[Check, ...]

    @property
    def strict(self) -> bool:
        """Whether a site that only one side has is a difference: not for ports, which are built otherwise."""
        return not isinstance(self.candidate.side.family, Ported)


def pair(request: Request, say: Say, encoded: tuple[Encoded, Encoded] | None = None) -> Pairing:
    """Load and prepare both sides and compare them as far as is possible without a forward.

    Args:
        encoded: each side's own embeddings, where the text stage has made them.
    """
    say("preparing the checkpoint")
    base, case = base_of(request.model, request.reference, request.ports, request.prompt, request.inputs)
    family, other = families(base, case, request.ports)
    if encoded is None:
        say("encoding the prompt" if request.stage1 is None else "reading the embeddings")
    ours, theirs = make_inputs(
        family,
        case,
        request.reference,
        request.candidate,
        steps=request.steps,
        seed=request.seed,
        stage1=request.stage1,
        other=other,
        encoded=encoded,
    )
    say("loading the reference")
    reference = prepare(load_reference(family, case, request.reference, ours))
    say("loading the candidate")
    candidate = prepare(load_candidate_side(other, case, request.candidate, theirs))
    say("preflight")
    differing = differences(request.reference, request.candidate)
    checks = preflight(gather(reference), gather(candidate), [d.setting for d in differing])
    remarks = base.remarks(case)
    checks = (Check("inputs", "pass", remarks), *checks) if remarks else checks
    return Pairing(reference, candidate, differing, (*port_checks(family, other), *checks))
