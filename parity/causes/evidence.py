"""What a witness is shown: all that is known of a comparison that failed in the denoising loop.

With it the model of the golden on this machine, for the witnesses that run it again, and its known faults, each a
setting that the reference path can take. A fault's run is kept in the cache folder as a golden, under a fingerprint of
weights, inputs, settings, seed and versions, so that it is run once on a machine; a port's is not, whose code may be
another the next time. Cost of one: a step of the reference. Imports neither torch nor jax.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from parity.cache import cache_dir
from parity.causes.request import ExplainRequest
from parity.compare.comparable import of_script
from parity.compare.result import Cause, Origin, Result
from parity.errors import Say, UsageError
from parity.golden import Golden, GoldenWriter
from parity.hooks.sites import plan_sites
from parity.paths.plan import Openers, Plan, Side
from parity.paths.port.settings import PortInfo, typed
from parity.records import AFTER, LOOP_STAGE, PORT, Facts, Key, Provenance, StepRecords
from parity.runs.given import Like, carried
from parity.runs.request import Request
from parity.runs.sides import candidate_spec, modules_of, spec_of
from parity.settings import SETTINGS, Settings, parse

Both = tuple[StepRecords, StepRecords]
"""A step of the reference, and of the candidate under the same keys."""


Numbers = Mapping[Key, float]
"""Of what the model is given in a step: what is one number, as its timestep is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a comparison.

    Attributes:
        request: the two goldens, and how they came about. found: their comparison. origin: where they part.
        ours, theirs: the records of the step in which they part, reference and candidate. read: those of a step.
        numbers: one number that the model is given -> it, of both sides in a step.
        reference, declared: what the reference's golden says of itself, and the candidate's.
        model: the reference's model on this machine; None where it cannot be run.
        causes: found so far, by the witnesses that were asked before.
    """

    request: ExplainRequest
    found: Result
    origin: Origin
    ours: StepRecords
    theirs: StepRecords
    reference: Provenance
    declared: Provenance
    read: Callable[[int], Both]
    numbers: Callable[[int], tuple[Numbers, Numbers]]
    model: Machine | None = None
    causes: tuple[Cause, ...] = ()


# --- the model on this machine


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The model of a golden on this machine.

    Attributes:
        openers: who loads its sides. request: of the pair, its candidate's settings left open. reference, facts: this
            machine's.
    """

    openers: Openers
    request: Request
    reference: Side
    facts: Facts
    say: Say

    @classmethod
    def of(cls, request: ExplainRequest, golden: Provenance, openers: Openers, say: Say) -> Machine:
        """Raises ParityError where the model, its weights or its inputs are not the golden's."""
        if golden.backend != "torch":
            raise UsageError("the reference golden was not recorded by a torch path of parity's")
        if of_script(golden):
            raise UsageError("the reference golden was recorded in a script, of whose model this machine knows nothing")
        pair = request.pair(golden, typed(request.ports.reference, "torch", golden.settings), parse("torchax"))
        pair = replace(pair, inputs=request.inputs, ports=request.ports, like=_inputs(request, golden))
        reference = openers.of("reference").open(spec_of(pair, "reference"))
        return cls(openers=openers, request=pair, reference=reference, facts=reference.facts(), say=say)

    @property
    def port(self) -> PortInfo | None:
        """The candidate's port, which may stand on both sides; None for parity's own path."""
        return self.request.ports.candidate or self.request.ports.reference

    def candidate_settings(self, told: Provenance) -> Settings:
        """The settings of the candidate of a kept run, which is a port that is here or parity's own path."""
        return typed(self.port if told.backend == PORT else None, "torchax", told.settings)

    def with_fault(self, fault: str, step: int, place: str = "") -> StepRecords:
        """The records of a step of the reference under a fault, or none; from the cache where it was run before.

        Args:
            fault: `setting=value`. place: `3 of 22`, of several.
        """
        self.say(f"known fault {place}".rstrip() + f": {fault or 'none'}")
        name, _, value = fault.partition("=")
        own = self.request.reference
        settings = own.with_({name: typed(None, "torch", {name: value})[name]} if fault else {})
        # The encoders' dtype stays the reference's: what a fault changes is what it names.
        encode = {"dtype": own.text("dtype"), "text.byt5_dtype": settings.text("text.byt5_dtype")}
        spec = replace(self.reference.spec, settings=settings.as_text(), encode=encode)
        with contextlib.closing(self.openers.of("reference").open(spec)) as side:
            facts = side.facts()
            steps = side.observe(Plan(sites=plan_sites(["", *modules_of(facts)], "blocks")), steps=(0, step + 1))
            if self.request.ports.reference is not None:
                *_, last = steps
                return last
            where = cache_dir() / "known_faults" / _digest(facts.provenance, settings, step)
            if not (where / "golden.json").exists() or not Golden.open(where).complete:
                with GoldenWriter(where, facts.provenance, overwrite=True) as writer:
                    for last in steps:
                        writer.write_step(last)
            return Golden.open(where).read_step(step)

    def candidate(self, settings: Settings, step: int, plan: Plan | None = None) -> StepRecords:
        """A step of parity's candidate path with these settings, or of the port.

        Args:
            plan: what is observed; None for the loop's own records.
        """
        spec = candidate_spec(replace(self.request, candidate=settings), self.facts)
        with contextlib.closing(self.openers.of("candidate").open(spec)) as side:
            *_, last = side.observe(plan or Plan(), steps=(0, step + 1))
        return last


def _inputs(request: ExplainRequest, golden: Provenance) -> Like | None:
    """The embeddings and the noise that the reference's golden carries.

    None where there are none, where a port brings its own, and where the candidate encodes the prompt in another dtype:
    then both encode it here.
    """
    encoding = "text.byt5_dtype"
    own = Golden.open(request.candidate).provenance.settings.get(encoding)
    if request.ports.alone or own != golden.settings.get(encoding) or encoding in request.rounding:
        return None
    return carried(request.reference)


# --- known faults


def known_faults(reference: Settings, facts: Facts, port: PortInfo | None, steps_left: int = 1) -> Iterator[str]:
    """`setting=value` of each known fault of this model: what the reference can take and does not have.

    Args:
        facts: of the reference. port: that runs in its place, with settings of its own; None for parity's path.
        steps_left: steps of the schedule after the one that is looked at, into which warm-up calls move the scheduler.
    """
    for setting in SETTINGS:
        unknown = setting.name in facts.lacks or (port is not None and not port.knows(setting.name))
        at_the_end = setting.name == "scheduler.warmup_steps" and steps_left < 1
        if setting.innocent or unknown or at_the_end or not setting.applies_in(LOOP_STAGE):
            continue
        for value in (*setting.kind.values, *setting.examples):
            default = value == "float32" and setting.name != "dtype"  # which it only spells, of a float32 path
            if not default and setting.read(value) != reference[setting.name]:
                yield f"{setting.name}={value}"


def decoder_faults(reference: Settings) -> Iterator[str]:
    """`setting=value` of each known fault of a VAE: what belongs to it alone."""
    own = (s for s in SETTINGS if s.places == (AFTER,) and not s.innocent)
    yield from (f"{s.name}={value}" for s in own for value in s.kind.values if s.read(value) != reference[s.name])


def _digest(p: Provenance, settings: Settings, step: int) -> str:
    what = [dict(p.weights), dict(p.inputs), dict(p.versions), settings.as_text(), p.steps, p.seed, step]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]
