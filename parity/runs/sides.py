"""The two sides of a comparison made ready: each in a process of its own, from explicit inputs alone.

The reference encodes the prompt; the candidate starts from the same embeddings, unless a setting of the text stage
makes them its own. Both draw their initial noise from the seed. Imports neither torch nor jax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from parity.compare.preflight import preflight
from parity.compare.result import Check
from parity.errors import UsageError
from parity.hooks.sites import SitePlan, plan_sites
from parity.paths.plan import LOOP_STAGE, Array, Given, Source, Spec
from parity.paths.side import Pair, Side
from parity.paths.worker.openers import Openers, Workers
from parity.records import Facts
from parity.runs.request import Request, Say
from parity.settings import Difference, Settings, differences


@dataclass(frozen=True, slots=True)
class Own:
    """A side's own embeddings, made by its text stage.

    Attributes:
        inputs: what it goes on from. beside: those of the runs that measured the stage's floors. tokens: encoded ones.
    """

    inputs: Given
    beside: Mapping[str, Given] = field(default_factory=dict)
    tokens: Given = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Two sides before their first forward.

    Attributes:
        sides, facts, settings: of both. differing: the settings in which they declare to differ. checks: what was
            compared. ports: whether either is a port.
    """

    sides: Pair[Side]
    facts: Pair[Facts]
    settings: Pair[Settings]
    differing: tuple[Difference, ...]
    checks: tuple[Check, ...]
    port: bool

    @property
    def modules(self) -> tuple[str, ...]:
        """The reference's modules, in the order of its tree, without the top one."""
        return modules_of(self.facts.reference)

    def plan(self, request: Request) -> SitePlan:
        """The sites of a request.

        Raises:
            UsageError: a glob names no module.
        """
        return plan_sites(["", *self.modules], request.sites, request.values, trunk=self.facts.reference.trunk)

    @property
    def grid(self) -> tuple[int, int, int] | None:
        """Frames, height and width of the image tokens."""
        return self.facts.reference.grid


def modules_of(facts: Facts) -> tuple[str, ...]:
    """A side's modules, in the order of its tree, without the top one."""
    return () if facts.provenance is None else tuple(m for m in facts.provenance.modules if m)


def workers(request: Request) -> Workers:
    """A process for each side of a run without ports."""
    return Workers(torchax=request.candidate.backend == "torchax")


@contextmanager
def ready(request: Request, openers: Openers, say: Say, own: Pair[Own] | None = None) -> Iterator[Ready]:
    """Open both sides and compare them as far as is possible without a forward; they are closed on leaving.

    Args:
        own: each side's own embeddings, where the text stage has made them.
    """
    ours, theirs = request.reference, request.candidate
    encodes = own is None and request.stage1 is None and request.stage == LOOP_STAGE
    say("encoding the prompt" if encodes else "loading the reference")
    openers.of("candidate")  # it imports its libraries meanwhile
    reference = openers.of("reference").open(reference_spec(request, None if own is None else own.reference))
    first = reference.facts()
    say("loading the candidate")
    candidate = openers.of("candidate").open(candidate_spec(request, first, None if own is None else own.candidate))
    second = candidate.facts()
    say("preflight")
    differing = differences(ours, theirs)
    known = [d.setting for d in differing]
    notes = [Check(name, verdict, detail) for f in (first, second) for name, verdict, detail in f.checks]  # type: ignore[arg-type]
    ports = [c for c in notes if c.check.endswith(" port")]
    rest = [c for c in notes if not c.check.endswith(" port")]
    try:
        yield Ready(
            sides=Pair(reference, candidate),
            facts=Pair(first, second),
            settings=Pair(ours, theirs),
            differing=differing,
            checks=(*ports, *rest, *(preflight(first, second, known) if request.stage == LOOP_STAGE else ())),
            port=second.own,
        )
    finally:
        reference.close()
        candidate.close()


def source_of(request: Request) -> Source:
    """Where both sides come from."""
    return Source(
        model=request.model,
        steps=request.steps,
        seed=request.seed,
        prompt=request.prompt,
        stage1=_text(request.stage1),
        inputs=_text(request.inputs),
        alone=request.ports.alone,
        stage2=_text(request.stage2),
        stage=request.stage,
        part=request.part,
    )


def reference_spec(request: Request, own: Own | None = None) -> Spec:
    """What the reference is."""
    port = request.ports.reference
    spec = Spec(role="reference", source=source_of(request), settings=request.reference.as_text())
    if port is not None:
        spec = replace(spec, port=port.text, option=port.option)
    spec = like_of(request, spec)
    return spec if own is None else replace(spec, inputs=own.inputs, beside=own.beside, tokens=own.tokens)


def like_of(request: Request, spec: Spec) -> Spec:
    """The spec with embeddings and noise of the golden that the run is like, where it is like one."""
    like = request.like
    if like is None:
        return spec
    if request.ports.alone:
        raise UsageError("--inputs GOLDEN is for a model: a reference port without --model brings its own inputs")
    return replace(spec, inputs=like.inputs, noise=like.noise)


def candidate_spec(request: Request, reference: Facts, own: Own | None = None) -> Spec:
    """What the candidate is: without a port of its own the reference's, which torchax then runs."""
    port = request.ports.candidate or request.ports.reference
    ours, theirs = request.reference, request.candidate
    spec = Spec(role="candidate", source=source_of(request), settings=theirs.as_text())
    if port is not None:
        spec = replace(spec, port=port.text, option=port.option)
    if request.ports.alone:
        spec = replace(spec, tensors=arrays(reference.tensors, reference.input_dtypes))
    if own is not None:
        return replace(spec, inputs=own.inputs, beside=own.beside, tokens=own.tokens)
    if request.like is not None and ours["text.byt5_dtype"] != theirs["text.byt5_dtype"]:
        raise UsageError(
            "text.byt5_dtype changes how a prompt is encoded: with --inputs nothing is encoded; leave it out"
        )
    if request.stage == LOOP_STAGE and ours["text.byt5_dtype"] != theirs["text.byt5_dtype"]:
        # The encoders' working dtype stays the reference's: a candidate's dtype must not change what it is given.
        encode = {"dtype": ours.text("dtype"), "text.byt5_dtype": theirs.text("text.byt5_dtype")}
        return replace(spec, encode=encode)
    return like_of(request, replace(spec, inputs=given_of(reference)))


def given_of(facts: Facts) -> Given:
    """A side's explicit inputs, to be handed to another."""
    return arrays(facts.inputs, facts.input_dtypes)


def arrays(values: Mapping[str, object], dtypes: Mapping[str, str]) -> Given:
    """Values with the dtypes that their tensors have."""
    return {name: Array(x, dtypes[name]) for name, x in values.items()}  # type: ignore[arg-type]


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
