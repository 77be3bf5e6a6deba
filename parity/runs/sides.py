"""The two sides of a comparison made ready: each in a process of its own, from explicit inputs alone.

The reference encodes the prompt; the candidate starts from the same embeddings, unless a setting of the text stage
makes them its own. Both draw their initial noise from the seed. What they then hand out are streams of records, which a
sink may take while they are made. Imports neither torch nor jax.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.compare.preflight import Factors, laid_out, preflight
from parity.compare.result import Check
from parity.errors import Say, UsageError
from parity.hooks.sites import SitePlan, plan_sites
from parity.paths.plan import Ends, Openers, Pair, Role, Side, Source, Spec, Start
from parity.paths.worker.process import Workers
from parity.records import LOOP_STAGE, Facts, StepRecords
from parity.runs.request import Choice, Request
from parity.settings import Difference, Settings, differences
from parity.settings.chips import chip_of


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Two sides before their first forward.

    Attributes:
        request: that they are of. openers: who loaded them. say: names what they do. sides, facts: of both.
        differing: the settings in which they declare to differ. checks: what was compared.
    """

    request: Request
    openers: Openers
    say: Say
    sides: Pair[Side]
    facts: Pair[Facts]
    differing: tuple[Difference, ...]
    checks: tuple[Check, ...]

    def reference(self, settings: Settings, given: Facts, run: str) -> Side:
        """The reference with other settings, and the explicit inputs of a side, or where the text stage was run its own
        embeddings; `run`: its name among those that measure floors."""
        spec = self.sides.reference.spec
        start = spec.start
        inputs = start.beside.get(run, start.inputs) if start.tokens else given.inputs
        spec = replace(spec, settings=settings.as_text(), start=replace(start, inputs=inputs), run=run)
        return self.openers.of("reference").open(spec)

    @property
    def chip(self) -> str:
        """The candidate's, whose elementary functions the reference's floors allow for."""
        return chip_of(self.facts.candidate.provenance.devices)

    @property
    def port(self) -> bool:
        """Whether the candidate runs a port's code as it is."""
        return self.facts.candidate.own

    @property
    def laid_out(self) -> Factors:
        """See `parity.compare.judge.Judge`."""
        return laid_out(self.facts.reference.weights, self.facts.candidate.weights) if self.port else {}

    @property
    def modules(self) -> tuple[str, ...]:
        """The reference's modules, in the order of its tree, without the top one."""
        return modules_of(self.facts.reference)

    def plan(self) -> SitePlan:
        """The sites of the request.

        Raises:
            UsageError: a glob names no module.
        """
        return plan_of(self.facts.reference, (self.request.sites, self.request.values))


def modules_of(facts: Facts) -> tuple[str, ...]:
    """A side's modules, in the order of its tree, without the top one."""
    return tuple(filter(None, facts.provenance.modules))


def plan_of(facts: Facts, choice: Choice) -> SitePlan:
    """The chosen sites of a side.

    Raises:
        UsageError: a glob names no module.
    """
    return plan_sites(["", *modules_of(facts)], *choice, trunk=facts.trunk)


def workers(request: Request) -> Workers:
    """A process for each side of a run without ports."""
    return Workers(torchax=request.candidate.backend == "torchax")


@contextmanager
def ready(request: Request, openers: Openers, say: Say, own: Pair[Start] | None = None) -> Iterator[Ready]:
    """Open both sides and compare them as far as is possible without a forward; they are closed on leaving.

    Args:
        own: each side's own embeddings, where the text stage has made them.
    """
    encodes = own is None and request.stage1 is None and request.stage == LOOP_STAGE
    say("encoding the prompt" if encodes else "loading the reference")
    openers.of("candidate")  # it imports its libraries meanwhile
    reference = openers.of("reference").open(spec_of(request, "reference", None if own is None else own.reference))
    first = reference.facts()
    say("loading the candidate")
    candidate = openers.of("candidate").open(candidate_spec(request, first, None if own is None else own.candidate))
    second = candidate.facts()
    say("preflight")
    differing = differences(request.reference, request.candidate)
    known = [d.setting for d in differing]
    notes = [Check(name, verdict, detail) for f in (first, second) for name, verdict, detail in f.checks]  # type: ignore[arg-type]
    notes.sort(key=lambda check: not check.check.endswith(" port"))
    try:
        yield Ready(
            request=request,
            openers=openers,
            say=say,
            sides=Pair(reference, candidate),
            facts=Pair(first, second),
            differing=differing,
            checks=(*notes, *(preflight(first, second, known) if request.stage == LOOP_STAGE else ())),
        )
    finally:
        reference.close()
        candidate.close()


def source_of(request: Request) -> Source:
    """Where both sides come from."""
    given = {field.name: getattr(request, field.name) for field in fields(Source)}
    values: dict[str, Any] = {name: str(x) if isinstance(x, Path) else x for name, x in given.items()}
    return Source(**values)


def spec_of(request: Request, role: Role, own: Start | None = None) -> Spec:
    """What a side is, with nothing that the candidate takes from the reference: without a port of its own the candidate
    has the reference's, which torchax then runs.

    Raises:
        UsageError: the run starts from a golden, and a reference port brings its own inputs.
    """
    ports, like = request.ports, request.like
    port = ports.reference if role == "reference" else ports.candidate or ports.reference
    settings = request.reference if role == "reference" else request.candidate
    spec = Spec(role=role, source=source_of(request), settings=settings.as_text())
    if port is not None:
        spec = replace(spec, port=port.text, option=port.option)
    if like is not None:
        if ports.alone:
            raise UsageError("--inputs GOLDEN is for a model: a reference port without --model brings its own inputs")
        spec = replace(spec, start=Start(like.inputs), noise=like.noise)
    return spec if own is None else replace(spec, start=own)


def candidate_spec(request: Request, reference: Facts, own: Start | None = None) -> Spec:
    """What the candidate is, from what the reference is about to run with."""
    spec, name = spec_of(request, "candidate", own), "text.byt5_dtype"
    if request.ports.alone:
        spec = replace(spec, tensors=reference.tensors)
    if own is not None:
        return spec
    encodes = request.reference[name] != request.candidate[name]
    if request.like is not None and encodes:
        raise UsageError(f"{name} changes how a prompt is encoded: with --inputs nothing is encoded; leave it out")
    if request.stage == LOOP_STAGE and encodes:
        # The encoders' working dtype stays the reference's: a candidate's dtype must not change what it is given.
        return replace(spec, encode={"dtype": request.reference.text("dtype"), name: request.candidate.text(name)})
    return replace(spec, start=Start(reference.inputs))


def counted(steps: Iterable[StepRecords], text: str, total: int, say: Say) -> Iterator[StepRecords]:
    """The steps, with a line for each once it is there."""
    for step in steps:
        say(text, step.step, total)
        yield step


class Sink:
    """Takes the records of a run as they are made, check by check (`logic`, `precision`). This one keeps nothing but
    what the sides came to."""

    @functools.cached_property
    def ends(self) -> dict[str, Pair[Ends]]:
        """Check -> what both sides of the loop came to, in the order of the checks."""
        return {}

    def begin(self, facts: Pair[Facts], name: str) -> str | None:
        """A check begins; returns the folder in which the sides leave their stage files, None for none."""
        return None

    def step(self, reference: StepRecords, candidate: StepRecords) -> None:
        """A step of both sides."""

    def closer(self, reference: StepRecords, candidate: StepRecords) -> None:
        """What a closer look at a step of the check observed."""

    def finish(self) -> None:
        """The check has ended: no further step comes."""

    def frames(self, name: str, frames: np.ndarray) -> None:
        """A decoded video [B, 3, frames, height, width], some -1 to 1."""
