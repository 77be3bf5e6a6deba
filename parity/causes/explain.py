"""`parity explain`: why two paths differ, by witnesses that are independent of each other.

1. *Swap test* (a kept run, whose settings are known): the candidate is run again with one setting at a time as the
   reference has it.
2. *Fault match* (any candidate, from its records alone): this machine's reference is run with each known fault, and the
   candidate's error is looked for among theirs. What none of them explains is unknown.
3. *Measurement*: what the records show by themselves: phantom keys, a gain, another order, another schedule.

What differs in a stage outside the loop is looked for there (`parity.causes.stages`).

Each is asked with the same `Evidence`. One that lacks what it needs is not asked; where the model cannot be run on this
machine, the kinds that this leaves out are said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from parity.causes.attention import attention_call
from parity.causes.closer import looked_closer
from parity.causes.evidence import Evidence, Need
from parity.causes.machine import Machine
from parity.causes.match import UNKNOWN
from parity.causes.request import ExplainRequest, of_run, outside_of
from parity.causes.witnesses.attention import attention
from parity.causes.witnesses.counterfactuals import counterfactuals
from parity.causes.witnesses.dtype import dtype
from parity.causes.witnesses.recorded import of_recording, recorded
from parity.causes.witnesses.schedule import schedule
from parity.causes.witnesses.signatures import signatures
from parity.causes.witnesses.values import arguments_alone, values, values_reordered
from parity.compare.diff import TO_COUNT, diff
from parity.compare.pairs.branches import Branches
from parity.compare.pairs.lone import met
from parity.compare.reason import Note
from parity.compare.result import EVIDENCE, Cause, Result
from parity.errors import ParityError
from parity.golden import Golden
from parity.paths.side import Openers
from parity.paths.worker.extras import check_extras
from parity.records import PORT
from parity.runs.request import Request, Say

__all__ = ["ExplainRequest", "explain", "of_run"]

Kind = Literal["swap", "fault", "measured"]
KINDS: tuple[Kind, ...] = ("swap", "fault", "measured")
"""The candidate run again with a value changed; its error among those of known faults; what the records show."""


@dataclass(frozen=True, slots=True)
class Witness:
    """Asked with the evidence, it tells causes, and notes of what it could not tell.

    Attributes:
        ask: the function itself. kind: decides how its causes are merged with the others'. needs: without which it is
            not asked.
    """

    ask: Callable[[Evidence], Iterable[Cause | Note]]
    kind: Kind = "measured"
    needs: frozenset[Need] = frozenset()


WITNESSES = (
    Witness(counterfactuals, "swap", frozenset({"reference", "candidate"})),
    Witness(recorded, "fault", frozenset({"script"})),
    Witness(signatures, "fault", frozenset({"reference"})),
    Witness(arguments_alone),
    Witness(attention, needs=frozenset({"reference"})),
    Witness(dtype),
    Witness(schedule),
    Witness(values),
    Witness(values_reordered),
)
"""In the order of what they can prove, so that a later one sees what the earlier ones found."""


def explain(request: ExplainRequest, openers: Openers, say: Say, machine: Machine | None = None) -> Result:
    """Find the causes of a difference.

    Args:
        openers: who loads the sides that are run again. machine: the reference's model on this machine, for who
            explains many candidates of one reference.

    Raises:
        UsageError: no golden, a damaged one. InconclusiveError: nothing can be judged.
    """
    if request.outside is not None:
        return _outside(request.outside, openers, say)
    say("comparing")
    found = diff(request.reference, request.candidate)
    if found.verdict != "fail" or found.origin is None:
        judged = "" if found.verdict == "pass" else "the comparison could not be judged, so "
        return found.noted(f"{judged}there is nothing to explain")
    key = found.origin.key
    reference, candidate = Golden.open(request.reference), Golden.open(request.candidate)
    if key.step < 0:
        try:
            check_extras()
            pair = outside_of(request, reference.provenance, candidate.provenance, key.stage)
            again = _outside(pair, openers, say)
        except ParityError as error:
            return _recorded(found, request, reference, candidate, str(error))
        return replace(found, causes=(*found.causes, *again.causes), notes=(*found.notes, *again.notes))
    ours, theirs = reference.read_step(key.step), candidate.read_step(key.step)
    theirs = Branches.of(reference.provenance, candidate.provenance).step(ours, theirs)
    found, ours, theirs = looked_closer(request, found, ours, theirs)
    origin = found.origin
    assert origin is not None
    if closer := request.closer(origin.key):
        found = found.noted(f"the run looked closer than the records it kept: {closer}")
    evidence = Evidence(
        request=request,
        found=found,
        origin=origin,
        ours=ours,
        theirs=met(ours, theirs) if candidate.provenance.backend == PORT else theirs,
        reference=reference.provenance,
        declared=candidate.provenance,
    )
    try:
        check_extras(torchax=False)
        evidence = replace(evidence, model=machine or Machine.of(request, reference.provenance, openers, say))
    except ParityError as error:
        found = found.noted(f"no {' and no '.join(EVIDENCE[kind] for kind in _unasked(evidence))}: {error}")
    return _asked(found, replace(evidence, attention=attention_call(evidence)))


def _recorded(found: Result, request: ExplainRequest, reference: Golden, candidate: Golden, why: str) -> Result:
    """The comparison with causes in a stage outside the loop of two recordings that cannot be run here.

    Args:
        why: it cannot be run.
    """
    assert found.origin is not None
    key = found.origin.key
    ours, theirs = reference.read_step(key.step), candidate.read_step(key.step)
    told = tuple(of_recording(request.reference, key, ours, theirs, reference.provenance.settings))
    causes = tuple(t for t in told if isinstance(t, Cause))
    skipped = () if causes else (Note(f"the {key.stage} stage is not run again: {why}"),)
    notes = tuple(t for t in told if isinstance(t, Note))
    return replace(found, causes=(*causes, *found.causes), notes=(*found.notes, *skipped, *notes))


def _outside(pair: Request, openers: Openers, say: Say) -> Result:
    from parity.causes.stages import explain_stage  # torch and transformers, only from here on

    return explain_stage(pair, openers, say)


def _asked(found: Result, evidence: Evidence) -> Result:
    """The comparison with what every witness tells of it whose needs are met."""
    causes: dict[Kind, list[Cause]] = {kind: [] for kind in KINDS}
    notes: list[Note] = []
    for witness in WITNESSES:
        if witness.needs <= evidence.met:
            told = tuple(witness.ask(evidence))
            new = tuple(t for t in told if isinstance(t, Cause))
            causes[witness.kind] += new
            notes += (t for t in told if isinstance(t, Note))
            evidence = replace(evidence, causes=(*evidence.causes, *new))
    known = {c.setting for c in causes["measured"]} - {""}
    measured = (*causes["measured"], *(c for c in found.causes if c.setting not in known))
    # How to have phantom keys counted is no news where they were.
    held = (n for n in found.notes if not (evidence.attention.phantoms and n.text.startswith(TO_COUNT)))
    merged = _merged(causes["swap"], causes["fault"])
    named = _beside(merged, measured)
    return replace(found, causes=named, notes=(*held, *(_beside_a_cause(n) if _guilty(named) else n for n in notes)))


def _guilty(causes: Sequence[Cause]) -> bool:
    return any(not c.harmless for c in causes)


def _beside_a_cause(note: Note) -> Note:
    """What known faults leave unknown is not unknown where other evidence names its cause."""
    known = note.text.removeprefix("unknown: ")
    return note if known == note.text else replace(note, text=f"signatures: {known}")


def _unasked(evidence: Evidence) -> list[Kind]:
    """The kinds of which no witness has what it needs."""
    asked = {w.kind for w in WITNESSES if w.needs <= evidence.met}
    return [kind for kind in KINDS if kind not in asked]


def _beside(merged: Sequence[Cause], measured: Sequence[Cause]) -> tuple[Cause, ...]:
    """Gauges that name a setting bear witness for the cause that names it too; the others stand by themselves."""
    known = {(c.setting, c.candidate): c for c in merged}
    for gauge in measured:
        at = (gauge.setting, gauge.candidate)
        if gauge.setting and at in known:
            known[at] = replace(known[at], evidence=(*known[at].evidence, *gauge.evidence))
    rest = (m for m in measured if not m.setting or (m.setting, m.candidate) not in known)
    return _by_fix((*known.values(), *rest))


def _by_fix(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Causes that one change mends, as one: what is measured is further evidence for what is named."""
    found: list[Cause] = []
    for cause in causes:
        same = next((i for i, c in enumerate(found) if cause.fix and c.fix == cause.fix and not cause.setting), None)
        if same is None:
            found.append(cause)
        else:
            found[same] = replace(found[same], evidence=(*found[same].evidence, *cause.evidence))
    return tuple(found)


def _merged(swapped: Sequence[Cause], named: Sequence[Cause]) -> list[Cause]:
    """One cause a setting, with all its witnesses; what only one kind of witness names stands by itself."""
    merged = []
    for cause in swapped:
        same = [c for c in named if (c.setting, c.candidate) == (cause.setting, cause.candidate)]
        witnesses = (*cause.evidence, *(w for c in same for w in c.evidence))
        merged.append(replace(cause, evidence=witnesses))
    known = {(c.setting, c.candidate) for c in swapped}
    # Where a setting that was swapped explains the error another name for the same error is no second cause.
    explained = any(c.share >= 1.0 - UNKNOWN for c in swapped)
    rest = [] if explained else [c for c in named if (c.setting, c.candidate) not in known]
    return sorted([*merged, *rest], key=lambda c: c.harmless)
