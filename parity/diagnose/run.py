"""`parity run`: both paths side by side, judged step by step.

Prepares two sides from explicit inputs, checks them before any forward, then walks both loops together, one step at
a time: the reference with its floors, the candidate, the comparison. Nothing is kept but the comparison; with `out`
both sides' records are written as goldens while they are made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from parity.compare.conclude import Collected, conclude
from parity.compare.excuses import excuses
from parity.compare.judge import Judge
from parity.compare.result import Check, Result
from parity.diagnose.preflight import failed, preflight
from parity.golden.records import LOOP, StepRecords
from parity.hooks.sites import SitePlan, plan_sites
from parity.models.family import family_of, make_case
from parity.models.folder import resolve_model
from parity.models.spec import GenerationSpec
from parity.paths.facts import gather
from parity.paths.floors import Variant, make_variants, with_floors
from parity.paths.inputs import make_inputs
from parity.paths.loop import Loop, denoise, prepare
from parity.paths.reference import load_reference
from parity.reached import Reached
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
        forcing: `none` or `step`. prompt: in place of the model's own, None to keep it.
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


@dataclass(frozen=True)
class Pairing:
    """Two prepared sides and what was found before their first forward."""

    reference: Loop
    candidate: Loop
    differing: tuple[Difference, ...]
    checks: tuple[Check, ...]


class Sink(Protocol):
    """Takes the records of a run as they are made."""

    def begin(self, pairing: Pairing) -> None: ...

    def step(self, reference: StepRecords, candidate: StepRecords) -> None: ...

    def finish(self, pairing: Pairing) -> None: ...


class NoSink:
    """Keeps nothing."""

    def begin(self, pairing: Pairing) -> None: ...

    def step(self, reference: StepRecords, candidate: StepRecords) -> None: ...

    def finish(self, pairing: Pairing) -> None: ...


def run(request: Request, say: Say, sink: Sink | None = None) -> Result:
    """Run both paths and compare them.

    Raises:
        UsageError: bad input. UnjudgedError: a chosen site never fired, or a setting's code was not reached.
    """
    sink = sink or NoSink()
    pairing = pair(request, say)
    problem = failed(pairing.checks)
    if problem is not None:
        reason = f"preflight: {problem.check}: {problem.detail}"
        found = {"model": request.model, "differing_settings": pairing.differing, "preflight": pairing.checks}
        return Result("fail", "preflight", reason, **found)  # type: ignore[arg-type]
    sink.begin(pairing)
    collected = Collected()
    judge = Judge(excuses(d.setting for d in pairing.differing))
    for reference, candidate in _both(pairing, request, say):
        sink.step(reference, candidate)
        collected.add(reference, candidate, judge.step(reference, candidate))
    sink.finish(pairing)
    return conclude(
        collected,
        model=request.model,
        differing=pairing.differing,
        preflight=(*pairing.checks, _reached_check(pairing)),
    )


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


def _both(pairing: Pairing, request: Request, say: Say) -> Iterator[tuple[StepRecords, StepRecords]]:
    """The records of each step of both sides, the reference's with floors."""
    side = pairing.reference.side
    plan = plan_sites(["", *side.modules], request.sites, request.values)
    forced_latents: dict[int, np.ndarray] = {}
    forced = forced_latents.get if request.forcing == "step" else None
    say("preparing the floors")
    variants = make_variants(side)
    own = denoise(pairing.reference, plan)
    floored = _floored(own, variants, plan, forced_latents, request, say)
    candidate = denoise(pairing.candidate, plan, forced)
    for reference_step in floored:
        step = reference_step.step
        compiling = " (tracing and compiling)" if step == 0 else ""
        say(f"candidate{compiling}", step, request.steps)
        candidate_step = next(candidate)
        if step == 0:
            pairing.reference.side.reached.require()
            pairing.candidate.side.reached.require()
        forced_latents.pop(step, None)
        yield reference_step, candidate_step


def _floored(
    own: Iterator[StepRecords],
    variants: list[Variant],
    plan: SitePlan,
    forced_latents: dict[int, np.ndarray],
    request: Request,
    say: Callable[..., None],
) -> Iterator[StepRecords]:
    def remember(steps: Iterator[StepRecords]) -> Iterator[StepRecords]:
        for s in steps:
            forced_latents[s.step] = latents_before(s)
            say("reference and its floors", s.step, request.steps)
            yield s

    forced = forced_latents.get if request.forcing == "step" else None
    return with_floors(remember(own), variants, plan, forced)


def latents_before(step: StepRecords) -> np.ndarray:
    """The latents a step started from."""
    site = f"{LOOP}:latents.before"
    return next(np.asarray(r.value) for r in step.records if r.key.site == site)


def _reached_check(pairing: Pairing) -> Check:
    """One line that says which settings proved that their code ran."""

    def names(reached: Reached) -> str:
        return ", ".join(reached.expected) or "none given"

    sides = (pairing.reference.side, pairing.candidate.side)
    detail = "; ".join(f"{s.role}: {names(s.reached)}" for s in sides)
    return Check("settings reached", "pass", f"code replaced by settings ran ({detail})")
