"""`parity record`: one path, to a golden, on the machine that has it.

The golden is written step by step, so that a killed recording keeps what it had finished and `resume` goes on from
there; the stages outside the loop are one part at the end (`parity.runs.record_stages`). Resuming starts the loop
from the last step's latents; floors cannot be resumed so (their variants' latents are not kept), and with floors the
finished steps are computed again, unwritten, which gives the same bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from parity.errors import UnjudgedError, UsageError
from parity.golden import Golden
from parity.golden.records import StepRecords
from parity.hooks.calls import Call
from parity.hooks.sites import SitePlan, plan_sites
from parity.paths.families import base_of, load_candidate_side, with_names
from parity.paths.floors import DEFAULT_KINDS, KINDS, Variant, make_variants, with_floors
from parity.paths.inputs import make_inputs
from parity.paths.loaded import Loaded
from parity.paths.local import local_calls
from parity.paths.loop import LATENTS, Loop, denoise, prepare, state_of
from parity.paths.provenance import provenance
from parity.paths.reference import load_reference
from parity.paths.stage import STEP
from parity.runs.ports import behind, families
from parity.runs.record_stages import Chain
from parity.runs.record_writer import Silent, require_alike, writer_of
from parity.runs.replay_inputs import recorded_calls
from parity.runs.request import NO_PORTS, Ports, Say
from parity.settings import DeepCache, Settings


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """What `parity record` was asked for.

    Attributes:
        where: folder or URL of the golden. side: which path. settings: of that path.
        floors: of `parity.paths.floors.KINDS`; empty for none. resume: go on with an unfinished golden.
        command: for the provenance. ports: in place of parity's paths. inputs: tensors by argument name.
        stages: the transformer among them. stage1_out: where the embeddings are written as a port's first stage does.
        The others are those of `parity.runs.run.Request`.
    """

    where: str
    side: Literal["reference", "candidate"]
    settings: Settings
    model: str
    steps: int = 1
    seed: int = 0
    stage1: Path | None = None
    sites: str = "blocks"
    values: tuple[str, ...] = ()
    floors: tuple[str, ...] = DEFAULT_KINDS
    prompt: str | None = None
    resume: bool = False
    overwrite: bool = False
    command: str = ""
    ports: Ports = NO_PORTS
    inputs: Path | None = None
    stages: tuple[str, ...] = ("transformer",)
    stage1_out: Path | None = None


def record(request: RecordRequest, say: Say) -> int:
    """Record one path; returns the number of steps written now.

    Of several processes that run the path together (`parity.paths.processes`) each calls this, and the first writes.

    Raises:
        UsageError: bad input; a golden is there already, or is of another run. UnjudgedError: a setting's code was
        not reached, or a chosen site never fired.
    """
    loop, chain = _prepared(request, say)
    if request.stage1_out is not None:
        _write_stage1(request.stage1_out, loop.side)
    plan = plan_sites(["", *loop.side.modules], *chain.choices["transformer"])
    told = provenance(loop)
    told = dataclasses.replace(told, command=request.command, weights={**told.weights, **chain.weights})
    written = 0
    with writer_of(request.where, told, resume=request.resume, overwrite=request.overwrite) as writer:
        if STEP in writer.steps_done:
            return 0  # it is the last to be written
        done = len(writer.steps_done)
        variants = _variants(request, loop, done, say)
        for step in _steps(request, loop, plan, variants, done, say):
            if step.step == done or step.step == 0:
                loop.side.reached.require()
            if request.floors and request.side == "reference":
                step = _with_local_floors(loop.side, step, say)
            if step.step == done > 0 and (held := _like(loop.side.settings.deep_cache, done)) is not None:
                require_alike(request.where, Golden.open(request.where).read_step(held), step)
            if step.step >= done:
                writer.write_step(step)
                written += not isinstance(writer, Silent)
        if chain.vae is not None:
            chain.decode(loop, loop.side.backend.to_torch(loop.latents), variants, say)
        if chain.records:
            writer.write_step(chain.step())
    return written


def _write_stage1(where: Path, side: Loaded) -> None:
    if not side.family.write_stage1(where, side.inputs.conditions):
        raise UsageError(f"--stage1-out: ports of a {side.family.title} have no stage-1 file; leave it out")


def _like(cache: DeepCache | None, step: int) -> int | None:
    """The last step before this one at which the same blocks run; None where there is none."""
    return next((i for i in reversed(range(step)) if cache is None or cache.full(i) == cache.full(step)), None)


def _prepared(request: RecordRequest, say: Say) -> tuple[Loop, Chain]:
    say("preparing the checkpoint")
    settings = request.settings
    base, case = base_of(request.model, settings, behind(request.ports), request.prompt, request.inputs)
    family, other = families(request.ports, base, case)
    choice = (request.sites, request.values)
    chain = Chain.of(case, base, request.side, settings, request.floors, request.stages, choice)
    encoded = None
    if "text" in request.stages:
        made = chain.encode(say)
        encoded = made, made
    else:
        say("encoding the prompt" if request.stage1 is None else "reading the embeddings")
    inputs, _ = make_inputs(
        family if request.side == "reference" else other,
        case,
        settings,
        settings,
        steps=request.steps,
        seed=request.seed,
        stage1=request.stage1,
        encoded=encoded,
    )
    say(f"loading the {request.side}")
    if request.side == "reference":
        return prepare(load_reference(family, case, settings, inputs)), chain
    return with_names(prepare(load_candidate_side(other, case, settings, inputs))), chain


def _variants(request: RecordRequest, loop: Loop, done: int, say: Say) -> list[Variant]:
    """The runs that measure the floors, which walk all steps again; where nothing needs them, none.

    A loop without them stands before the first step that is not done yet.
    """
    left = done < request.steps or "vae" in request.stages
    if request.floors and left:
        say("preparing the floors")
        return make_variants(loop.side, request.floors)
    if done and left:
        _go_to(loop, request, done)
    return []


def _steps(
    request: RecordRequest, loop: Loop, plan: SitePlan, variants: list[Variant], done: int, say: Say
) -> Iterator[StepRecords]:
    if done >= request.steps and not variants:
        return  # resumed, and no step is left to do
    first = 0 if variants else done
    for step in with_floors(denoise(loop, plan, first=first), variants, plan, None):
        say(f"recording the {request.side}", step.step, request.steps)
        yield step


def _with_local_floors(side: Loaded, step: StepRecords, say: Say) -> StepRecords:
    """The step with local floors at the outputs of the modules whose inputs it holds whole, for `parity replay`."""
    targets = sorted({call.module for call, _ in recorded_calls(step)})
    if not targets:
        return step
    say("local floors", step.step, side.inputs.steps)
    floors = dict(step.floors)

    def take(call: Call, truth: StepRecords) -> None:
        for key, local in truth.floors.items():
            if key in floors:
                floors[key] = dataclasses.replace(floors[key], local_l2=local.l2)

    local_calls(side, step.step, state_of(step, "before"), targets, take, {})
    return StepRecords(step.step, step.records, floors)


def _go_to(loop: Loop, request: RecordRequest, step: int) -> None:
    """Put a loop where the last recorded step left it: its latents, and the scheduler's own state."""
    state = state_of(Golden.open(request.where).read_step(step - 1), "after")
    if LATENTS not in state:
        raise UnjudgedError(f"'{request.where}' holds no latents of step {step - 1}: record it anew")
    if step < request.steps:
        loop.continue_from(step, state)
    else:  # all that is left is to decode them
        loop.latents = loop.side.backend.tensor(torch.from_numpy(np.array(state[LATENTS]))).to(loop.latents.dtype)


def check_floors(text: str, side: str) -> tuple[str, ...]:
    """The floors a comma-separated option names; `none` for none, `default` for those of the side.

    Raises:
        UsageError: an unknown name, or floors for the candidate.
    """
    if text == "default":
        return DEFAULT_KINDS if side == "reference" else ()
    names = tuple(n for n in text.split(",") if n and n != "none")
    unknown = [n for n in names if n not in KINDS]
    if unknown:
        raise UsageError(f"--floors takes none or {', '.join(KINDS)} (comma-separated), found '{unknown[0]}'")
    if names and side == "candidate":
        raise UsageError("--floors are measured on the reference: a candidate is judged against its floors")
    return names
