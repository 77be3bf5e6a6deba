"""`parity record`: one path, to a golden, on the machine that has it.

The golden is written step by step, so that a killed recording keeps what it had finished and `resume` goes on from
there; the stages outside the loop are one part at the end (`parity.runs.record_stages`). Resuming starts the loop
from the last step's latents; floors cannot be resumed so (their variants' latents are not kept), and with floors the
finished steps are computed again, unwritten, which gives the same bytes.

The side runs in a process of its own, as in a comparison; imports neither torch nor jax where the loop alone is
recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from parity.errors import InconclusiveError, UsageError
from parity.golden import Golden, GoldenWriter
from parity.hooks.sites import SitePlan, plan_sites
from parity.paths.plan import (
    DEFAULT_KINDS,
    KINDS,
    LOOP_STAGE,
    STAGES_STEP,
    Ends,
    Openers,
    Plan,
    Role,
    Side,
    Spec,
    Start,
    State,
    state_of,
)
from parity.records import Facts, StepRecords
from parity.runs.given import carry
from parity.runs.request import Request, Say
from parity.runs.sides import arrays, counted, spec_of, workers
from parity.settings import DeepCache, Settings

if TYPE_CHECKING:
    from parity.runs.record_stages import Chain


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRequest:
    """What `parity record` was asked for.

    Attributes:
        where: folder or URL of the golden. side: which path. run: what both sides of a run of it would be; of
            `stages`, the transformer is among them.
        floors: of `KINDS`; empty for none. resume: go on with an unfinished golden. command: for the provenance.
    """

    where: str
    side: Role
    run: Request
    floors: tuple[str, ...] = DEFAULT_KINDS
    resume: bool = False
    overwrite: bool = False
    command: str = ""

    @property
    def settings(self) -> Settings:
        """Of the side."""
        return self.run.reference if self.side == "reference" else self.run.candidate


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recording came to.

    Attributes:
        steps: written now. idle: why a comparison would not rest on what a port installed, one sentence each.
    """

    steps: int
    idle: tuple[str, ...] = ()


def record(request: RecordRequest, say: Say, openers: Openers | None = None) -> Recorded:
    """Record one path.

    Args:
        openers: who loads the side; by default a process of its own.

    Raises:
        UsageError: bad input; a golden is there already, or is of another run. InconclusiveError: a setting's code was
        not reached, or a chosen site never fired.
    """
    with contextlib.ExitStack() as stack:
        openers = openers or request.run.ports.openers or stack.enter_context(workers(request.run))
        chain = None
        if request.run.stages != (LOOP_STAGE,):
            from parity.runs.record_stages import Chain  # torch and transformers, only from here on

            say("preparing the checkpoint")
            chain = Chain.of(request, openers)
        own = None if chain is None or "text" not in request.run.stages else chain.encode(say)
        say("encoding the prompt" if own is None and request.run.stage1 is None else f"loading the {request.side}")
        side = openers.of(request.side).open(_spec(request, openers, own))
        stack.callback(side.close)
        return _recorded(request, side, side.facts(), chain, say)


def _spec(request: RecordRequest, openers: Openers, own: Start | None) -> Spec:
    """What the side is; it encodes the prompt itself, unless its text stage has done so."""
    run = replace(request.run, stages=(LOOP_STAGE,))
    spec = replace(spec_of(run, request.side, own), named=True)
    if request.side == "candidate" and run.ports.alone and run.ports.candidate is not None:
        facts = openers.of("reference").open(spec_of(run, "reference")).facts()
        spec = replace(spec, tensors=arrays(facts.tensors, facts.input_dtypes))
    return spec


def _recorded(request: RecordRequest, side: Side, facts: Facts, chain: Chain | None, say: Say) -> Recorded:
    assert facts.provenance is not None
    choice = (request.run.sites, request.run.values) if chain is None else chain.choices["transformer"]
    plan = plan_sites(["", *(m for m in facts.provenance.modules if m)], *choice)
    weights = dict(facts.provenance.weights) | ({} if chain is None else chain.weights)
    provenance = replace(facts.provenance, command=request.command, weights=weights, sites=request.run.sites)
    written = 0
    with GoldenWriter(request.where, provenance, resume=request.resume, overwrite=request.overwrite) as writer:
        if STAGES_STEP in writer.steps_done:
            return Recorded(0)  # it is the last to be written
        done = len(writer.steps_done)
        over = done >= request.run.steps and "vae" not in request.run.stages
        if over:
            say(f"nothing is left of {request.run.steps} steps to record")
        steps = iter(()) if over else _steps(request, side, plan, done, say)
        for step in counted(steps, f"recording the {request.side}", request.run.steps, say):
            if step.step == done > 0 and (held := _like(request.settings.deep_cache, done)) is not None:
                _require_alike(request.where, Golden.open(request.where).read_step(held), step)
            if step.step < done:
                continue
            writer.write_step(step)
            written += 1
            if written == 1:
                carry(request.where, facts, provenance, resumed=done > 0)
        if not written:  # it may have been killed before it could
            carry(request.where, facts, provenance, resumed=done > 0)
        ends = Ends() if over else side.ends()
        if chain is not None and "vae" in request.run.stages:
            chain.decode(ends, say)
        if chain is not None and chain.records:
            writer.write_step(chain.step())
        if ends.idle:
            writer.finish(replace(provenance, idle=ends.idle))
    return Recorded(written, ends.idle)


def _require_alike(where: str, held: StepRecords, new: StepRecords) -> None:
    """Refuse to go on with other sites, values or floors, which the provenance does not hold.

    Raises:
        UsageError: naming the option that must be as it was.
    """

    def having(step: StepRecords, what: str) -> set[tuple[str, str, int]]:
        records = (r for r in step.records if what == "sites" or isinstance(r.value, np.ndarray))
        keys = step.floors if what == "floors" else (r.key for r in records)
        return {(key.branch, key.site, key.call) for key in keys}

    for what in ("sites", "values", "floors"):
        ours, theirs = having(held, what), having(new, what)
        if ours != theirs:
            first = min(ours ^ theirs)[1]
            raise UsageError(
                f"{where}: cannot resume, this is another run: its steps hold {len(ours)} {what}, those of this run "
                f"{len(theirs)}, first difference at '{first}'; give --{what} as it was"
            )


def _like(cache: DeepCache | None, step: int) -> int | None:
    """The last step before this one at which the same blocks run; None where there is none."""
    return next((i for i in reversed(range(step)) if cache is None or cache.full(i) == cache.full(step)), None)


def _steps(request: RecordRequest, side: Side, plan: SitePlan, done: int, say: Say) -> Iterator[StepRecords]:
    """The steps from the first that is needed; with floors that is the first of all."""
    first = 0 if request.floors else done
    start = _state_after(request.where, first - 1) if first else None
    if request.floors:
        say("preparing the floors")
    return side.observe(Plan(sites=plan, floors=request.floors), start=start, steps=(first, request.run.steps))


def _state_after(where: str, step: int) -> State:
    """What the step after a recorded one starts from: its latents, and the scheduler's own state."""
    state = state_of(Golden.open(where).read_step(step), "after")
    if "latents" not in state:
        raise InconclusiveError(f"'{where}' holds no latents of step {step}: record it anew")
    return state


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
