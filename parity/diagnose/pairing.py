"""Two sides made ready: loaded from explicit inputs, prepared, and compared before any forward."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from parity.compare.result import Check
from parity.diagnose.preflight import preflight
from parity.models.family import family_of, make_case
from parity.models.folder import resolve_model
from parity.models.spec import GenerationSpec
from parity.paths.facts import gather
from parity.paths.inputs import make_inputs
from parity.paths.loop import Loop, prepare
from parity.paths.reference import load_reference
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
        stages: parts of the generation (`parity.diagnose.stages`). stage2: a port's latents, for the VAE alone.
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
    stages: tuple[str, ...] = ("transformer",)
    stage2: Path | None = None


@dataclass(frozen=True)
class Pairing:
    """Two prepared sides and what was found before their first forward."""

    reference: Loop
    candidate: Loop
    differing: tuple[Difference, ...]
    checks: tuple[Check, ...]


def pair(request: Request, say: Say) -> Pairing:
    """Load and prepare both sides and compare them as far as is possible without a forward."""
    say("preparing the checkpoint")
    folder = resolve_model(request.model)
    spec = GenerationSpec.load(folder)
    if request.prompt is not None:
        spec = dataclasses.replace(spec, prompt=request.prompt)
    case, family = make_case(request.model, folder, spec), family_of(folder)
    say("encoding the prompt" if request.stage1 is None else "reading the embeddings")
    ours, theirs = make_inputs(
        family,
        case,
        request.reference,
        request.candidate,
        steps=request.steps,
        seed=request.seed,
        stage1=request.stage1,
    )
    say("loading the reference")
    reference = prepare(load_reference(family, case, request.reference, ours))
    say("loading the candidate")
    from parity.paths.candidate import load_candidate  # jax and torchax, only from here on

    candidate = prepare(load_candidate(family, case, request.candidate, theirs))
    say("preflight")
    differing = differences(request.reference, request.candidate)
    checks = preflight(gather(reference), gather(candidate), [d.setting for d in differing])
    return Pairing(reference, candidate, differing, checks)
