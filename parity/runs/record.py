"""`parity record`: one path, to a golden, on the machine that has it.

The golden is written step by step, so that a killed recording keeps what it had finished and `resume` goes on from
there; the stages outside the loop are one part at the end, step -1. Resuming starts the loop from the last step's
latents; floors cannot be resumed so (their variants' latents are not kept), and with floors the finished steps are
computed again, unwritten, which gives the same bytes.

A recording is of a chain: the loop goes on from the embeddings that its own side encoded, the decoder from the latents
that its own loop came to. So are the runs that measure the floors: each encodes, denoises and decodes with its own
rounding, and the floor of a frame holds what rounding the encoders has grown to by then.

The side runs in a process of its own, as in a comparison; imports neither torch nor jax where the loop alone is
recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from parity.errors import InconclusiveError, Say, UsageError
from parity.golden import Golden, GoldenWriter
from parity.hooks.sites import SitePlan
from parity.models.registry import opened
from parity.paths.plan import VAE_INPUT, Ends, Openers, Plan, Role, Side, Spec, Start, state_of
from parity.records import AFTER, LOOP, LOOP_STAGE, OUTSIDE, Facts, Floor, Key, Record, StepRecords
from parity.runs.given import carry
from parity.runs.request import Choice, Request
from parity.runs.sides import counted, plan_of, source_of, spec_of, workers
from parity.settings import DeepCache, Settings
from parity.settings.chips import NO_CHIP


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRequest:
    """What `parity record` was asked for.

    Attributes:
        where: folder or URL of the golden. side: which path. run: what both sides of a run of it would be; of
            `stages`, the transformer is among them.
        floors: whether they are measured. chip: the TPU whose elementary functions they allow for. resume: go on with
            an unfinished golden. command: for the provenance.
    """

    where: str
    side: Role
    run: Request
    floors: bool = True
    chip: str = NO_CHIP
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


def record(request: RecordRequest, say: Say) -> Recorded:
    """Record one path.

    Raises:
        UsageError: bad input; a golden is there already, or is of another run. InconclusiveError: a setting's code was
        not reached, or a chosen site never fired.
    """
    with contextlib.ExitStack() as stack:
        openers = request.run.ports.openers or stack.enter_context(workers(request.run))
        if request.run.stages != (LOOP_STAGE,):
            say("preparing the checkpoint")
        chain = Chain(request, openers, request.run.choices())
        own = chain.encode(say) if "text" in request.run.stages else None
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
        spec = replace(spec, tensors=facts.tensors)
    return spec


def _recorded(request: RecordRequest, side: Side, facts: Facts, chain: Chain, say: Say) -> Recorded:
    plan = plan_of(facts, chain.choices[LOOP_STAGE])
    weights = {**facts.provenance.weights, **chain.weights}
    provenance = replace(facts.provenance, command=request.command, weights=weights, sites=request.run.sites)
    provenance = replace(provenance, chip=request.chip)
    written = 0
    with GoldenWriter(request.where, provenance, resume=request.resume, overwrite=request.overwrite) as writer:
        if OUTSIDE in writer.steps_done:
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
                carry(request.where, facts, provenance)
        if not written:  # it may have been killed before it could
            carry(request.where, facts, provenance)
        ends = Ends() if over else side.ends()
        if "vae" in request.run.stages:
            chain.decode(ends, say)
        if chain.records:
            writer.write_step(StepRecords(OUTSIDE, tuple(chain.records), chain.floors))
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
    start = None
    if first:  # the latents of the last step that is recorded, and the scheduler's own state
        start = state_of(Golden.open(request.where).read_step(first - 1), "after")
        if "latents" not in start:
            raise InconclusiveError(f"'{request.where}' holds no latents of step {first - 1}: record it anew")
    if request.floors:
        say("preparing the floors")
    return side.observe(
        Plan(sites=plan, floors=request.floors, chip=request.chip), start=start, steps=(first, request.run.steps)
    )


# --- the stages outside the loop


@dataclass
class Chain:
    """What a recording keeps of the stages outside its loop.

    Attributes:
        request: of the recording. openers: who loads the stages.
        choices: stage or encoder -> its own sites and values. records, floors: of step -1 so far.
        weights: fingerprints of the stages' weights.
    """

    request: RecordRequest
    openers: Openers
    choices: Mapping[str, Choice]
    records: list[Record] = field(default_factory=list)
    floors: dict[Key, Floor] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "vae" in self.request.run.stages:
            # Its weights belong to the provenance, which is written first: before there is anything to decode.
            vae = self.openers.of(self.request.side).open(self._spec(AFTER, "", self.request.settings))
            self.weights |= vae.facts().provenance.weights
            vae.close()

    def encode(self, say: Say) -> Start:
        """Run the encoders, keep their records, and give what the loop goes on from.

        Raises:
            UsageError: the model's encoders are not known.
        """
        from parity.runs.text_stage import start_of

        family, case = opened(self.request.run.model, prompt=self.request.run.prompt)
        text = family.text(case)
        ends: dict[str, Ends] = {}
        for number, encoder in enumerate(text.encoders):
            if encoder.tokens:
                say(f"text: {encoder.part}")
                spec = self._spec("text", encoder.part, encoder.settings(self.request.settings))
                ends[encoder.part] = self._run(spec, self.choices[encoder.part], number)
        return start_of(text, ends, self.request.settings)

    def decode(self, ends: Ends, say: Say) -> None:
        """Decode what the loops came to, and keep the records."""
        say("vae: decoding")
        beside = {name: {VAE_INPUT: x["latents"]} for name, x in ends.beside.items()}
        start = Start({VAE_INPUT: ends.own["latents"]}, beside)
        self._run(replace(self._spec(AFTER, "", self.request.settings), start=start), self.choices["vae"])

    def _spec(self, stage: str, part: str, settings: Settings) -> Spec:
        source = source_of(replace(self.request.run, stages=(stage,), part=part))
        return Spec(role=self.request.side, source=source, settings=settings.as_text(), named=True)

    def _run(self, spec: Spec, choice: Choice, number: int = 0) -> Ends:
        """Observe a stage, keep its records, and give what it came to.

        Args:
            number: of the encoder: each has a top module, whose name is empty, and counts as another call of it.
        """

        def placed(key: Key) -> Key:
            return key if key.module else replace(key, call=key.call + number)

        side = self.openers.of(self.request.side).open(spec)
        facts = side.facts()
        self.weights |= facts.provenance.weights
        plan = Plan(sites=plan_of(facts, choice), floors=self.request.floors, chip=self.request.chip)
        for step in side.observe(plan):
            for r in step.records:
                # The values of a whole video are as large as everything else together: its sketch is compared.
                video = spec.source.stage == AFTER and r.key.module == LOOP
                self.records.append(replace(r, key=placed(r.key), value=None if video else r.value))
            self.floors |= {placed(key): floor for key, floor in step.floors.items()}
        ends = side.ends()
        side.close()
        return ends
