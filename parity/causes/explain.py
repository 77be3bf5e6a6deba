"""`parity explain`: why two paths differ, by witnesses that are independent of each other.

1. *Swap test* (a kept run, whose settings are known): the candidate is run again with one setting at a time as the
   reference has it.
2. *Fault match* (any candidate, from its records alone): this machine's reference is run with each known fault, and the
   candidate's error is looked for among theirs. What none of them explains is unknown.
3. *Measurement*: what the records show by themselves: phantom keys, a gain, another order, another schedule.

What differs in a stage outside the loop is looked for there (`parity.causes.stages`).

Each is asked with the same `Evidence`, and says nothing where it lacks what it needs; where the model cannot be run on
this machine, the kinds that this leaves out are said. A kept run is not compared again: what it found stands, with
the records of its closer look.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from parity.causes.evidence import Both, Evidence, Machine, Numbers
from parity.causes.match import UNKNOWN, signatures
from parity.causes.request import FOLDER, ExplainRequest, of_run, outside_of
from parity.causes.swaps import swap_tests
from parity.causes.values import arguments_alone, dtype, numbers_given, schedule, values, values_elsewhere
from parity.compare.attention import attention_causes
from parity.compare.branches import Branches
from parity.compare.conclude import BEFORE
from parity.compare.diff import diff
from parity.compare.independent import in_order
from parity.compare.pairs import laid_alike, matching, met
from parity.compare.reason import Note
from parity.compare.result import EVIDENCE, Cause, Origin, Result
from parity.compare.sites import introduced
from parity.errors import ParityError, Say
from parity.golden import Golden
from parity.hooks.sites import plan_sites
from parity.paths.plan import Openers, Plan, Role
from parity.paths.worker.extras import check_extras
from parity.records import LOOP_STAGE, PORT, Key, Record, StepRecords, is_attention
from parity.runs.request import Request
from parity.runs.sides import modules_of

__all__ = ["ExplainRequest", "explain", "of_run"]

NOTHING = {
    "pass": "there is nothing to explain",
    "inconclusive": "the comparison could not be judged, so there is nothing to explain",
    "preflight": "preflight has seen what differs before anything is computed: nothing is run again",
}
UNPLACED = "no module is known in which it begins: none is looked at"
"""What a comparison without a first divergence says, by what failed or by its verdict."""


def explain(request: ExplainRequest, openers: Openers, say: Say) -> Result:
    """Find the causes of a difference.

    Args:
        openers: who loads the sides that are run again.

    Raises:
        UsageError: no golden, a damaged one. InconclusiveError: nothing can be judged.
    """
    say("comparing" if request.found is None else "looking for causes")
    found = request.found or diff(request.reference, request.candidate)
    failed = [s.stage for s in found.stages if s.verdict == "fail"]
    begins = {stage: _first_in(found, stage) for stage in (*failed, LOOP_STAGE)}
    if found.verdict != "fail" or not (failed or begins[LOOP_STAGE]):
        return found.noted(NOTHING.get(found.failed or found.verdict, UNPLACED))
    told = {stage: tuple(_outside(request, stage, openers, say)) for stage in failed}
    origin = begins[LOOP_STAGE]
    # Embeddings that differ are wrong in the loop too, whatever else is.
    if origin is not None and not (BEFORE in failed and origin.key.is_input):
        found = _in_loop(found, request, origin, openers, say)
    causes, notes = found.causes, found.notes
    found = replace(found, causes=(), notes=())
    before, after = told.pop(BEFORE, ()), [t for each in told.values() for t in each]
    return found.told([*before, *causes, *after, *notes])


def _goldens(request: ExplainRequest) -> tuple[Golden, Golden]:
    reference, candidate = Golden.open(request.reference), Golden.open(request.candidate)
    return reference, matching(reference, candidate)


def _first_in(found: Result, stage: str) -> Origin | None:
    """Where a comparison begins to differ in a stage; None where it does not begin there."""
    if found.origin is not None and found.origin.key.stage == stage:
        return found.origin
    first = next((d for d in introduced(found) if d.key.stage == stage), None)
    return None if first is None or first.birth is None else Origin(first.key, first.birth)


def _in_loop(found: Result, request: ExplainRequest, origin: Origin, openers: Openers, say: Say) -> Result:
    """The comparison with the causes of what begins in the loop."""
    key, (reference, candidate) = origin.key, _goldens(request)
    branches = Branches.of(reference.provenance, candidate.provenance)

    @functools.lru_cache(maxsize=2)
    def read(step: int) -> Both:
        ours, theirs = reference.read_step(step), candidate.read_step(step)
        ours, theirs = laid_alike(ours, branches.step(ours, theirs))
        ours, theirs = _with_closer(request, "reference", ours), _with_closer(request, "candidate", theirs)
        return ours, met(ours, theirs) if candidate.provenance.backend == PORT else theirs

    @functools.cache
    def numbers(step: int) -> tuple[Numbers, Numbers]:
        ours, theirs = read(step)
        return numbers_given(ours), numbers_given(theirs)

    ours, theirs = read(key.step)
    evidence = Evidence(
        request=request,
        found=found,
        origin=origin,
        ours=ours,
        theirs=theirs,
        reference=reference.provenance,
        declared=candidate.provenance,
        read=read,
        numbers=numbers,
    )
    try:
        check_extras(torchax=False)
        evidence = replace(evidence, model=Machine.of(request, reference.provenance, openers, say))
    except ParityError as error:
        found = found.noted(f"no {EVIDENCE['swap']} and no {EVIDENCE['fault']}: {error}")
    return _asked(found, evidence)


def _outside(request: ExplainRequest, stage: str, openers: Openers, say: Say) -> Iterable[Cause | Note]:
    """What is found of a stage outside the loop that failed, by running it again."""

    def again(pair: Request) -> Iterable[Cause | Note]:
        from parity.causes.stages import explain_stage  # torch and transformers, only from here on

        return tuple(explain_stage(pair, openers, say))

    kept = next((pair for pair in request.outside if pair.stage == stage), None)
    if kept is not None:
        return again(kept)
    reference, candidate = _goldens(request)
    try:
        check_extras()
        return again(outside_of(request, reference.provenance, candidate.provenance, stage))
    except ParityError as error:
        return [Note(f"the {stage} stage is not run again: {error}")]


def _asked(found: Result, evidence: Evidence) -> Result:
    """The comparison with what every witness tells of it."""
    told: list[Cause | Note] = []
    for witness in WITNESSES:
        told += witness(evidence)
        evidence = replace(evidence, causes=tuple(t for t in told if isinstance(t, Cause)))
    notes = [t for t in told if isinstance(t, Note)]
    swapped, faults, measured = ([c for c in evidence.causes if c.evidence[0].kind == kind] for kind in EVIDENCE)
    known = {c.setting for c in measured} - {""}
    measured += (c for c in found.causes if c.setting not in known)
    named = _merged(swapped, faults, measured, evidence.origin.key)
    if any(not c.harmless for c in named):  # what known faults leave unknown is not unknown beside a cause
        notes = [replace(n, text=re.sub("^unknown: ", "signatures: ", n.text)) for n in notes]
    return in_order(replace(found, causes=named, notes=(*found.notes, *notes)))


def _merged(
    swapped: Sequence[Cause], faults: Sequence[Cause], measured: Sequence[Cause], origin: Key
) -> tuple[Cause, ...]:
    """One cause a setting and value, or where it names none a fix, with all its evidence. Where one setting takes all
    of the error back, what the values show where it begins is its evidence too."""
    known = {(c.setting, c.candidate) for c in swapped}
    # Where a setting that was swapped explains the error another name for the same error is no second cause.
    explained = any(c.share >= 1.0 - UNKNOWN for c in swapped)
    faults = [c for c in faults if not explained or (c.setting, c.candidate) in known]
    confirmed = [(c.setting, c.candidate) for c in swapped if c.confirm]
    found: dict[object, Cause] = {}
    for i, cause in enumerate((*swapped, *faults, *measured)):
        one: object = (cause.setting, cause.candidate) if cause.setting else cause.fix or i
        if not cause.setting and len(confirmed) == 1 and cause.at in ("", origin.site):
            (one,) = confirmed
        same = found.setdefault(one, cause)
        if same is not cause:
            found[one] = replace(same, evidence=(*same.evidence, *cause.evidence))
    return tuple(found.values())


# --- the attention call in which two sides part


def attention(evidence: Evidence) -> Iterable[Cause | Note]:
    """Phantom keys, or else a mistaken mask or scale, where the divergence of a kept run begins in an attention call.

    What the call shows is read from the values that were kept, or from both sides, run again on this machine. In two
    goldens their comparison has looked at it.
    """
    module, machine = evidence.origin.key.module, evidence.model
    if machine is None or evidence.request.spec is None or not is_attention(module):
        return ()
    try:
        reference, candidate = _values_of_call(evidence, machine, module)
    except ParityError as error:
        return (Note(f"what was done to the mask is not known: {error}"),)
    return attention_causes(reference, candidate, module) or ()


def _values_of_call(evidence: Evidence, machine: Machine, module: str) -> tuple[Sequence[Record], Sequence[Record]]:
    """Records with values of an attention call, reference and candidate."""
    held = evidence.ours.records, evidence.theirs.records
    if all(_holds(records, module) for records in held):
        return held
    machine.say(f"both sides again, with the values of {module}")
    plan = Plan(sites=plan_sites(["", *modules_of(machine.facts)], module, (module,)))
    *_, ours = machine.reference.observe(plan, steps=(0, evidence.ours.step + 1))
    theirs = machine.candidate(machine.candidate_settings(evidence.declared), evidence.ours.step, plan)
    return ours.records, theirs.records


def _holds(records: Sequence[Record], module: str) -> bool:
    own = [r for r in records if r.key.module == module and r.kind == "tensor" and not r.key.is_apart]
    return bool(own) and all(isinstance(r.value, np.ndarray) for r in own)


WITNESSES: tuple[Callable[[Evidence], Iterable[Cause | Note]], ...] = (
    swap_tests,
    signatures,
    arguments_alone,
    attention,
    dtype,
    schedule,
    values,
    values_elsewhere,
)
"""Each tells causes, and notes of what it could not tell. In the order of what they can prove, so that a later one sees
what the earlier ones found."""


# --- the closer look of a kept run


def _with_closer(request: ExplainRequest, role: Role, step: StepRecords) -> StepRecords:
    """A side's step, with the records of the kept run's closer look.

    Raises:
        UsageError: a golden of the closer look is damaged.
    """
    folder = Path(request.reference).parent / FOLDER
    if request.found is None or not (folder / "candidate").is_dir():
        return step
    inside = Golden.open(folder / role)
    if step.step not in inside.steps:
        return step
    held = {r.key for r in step.records}
    more = inside.read_step(step.step).where(lambda key: key not in held)
    return StepRecords(step.step, (*step.records, *more.records), {**step.floors, **more.floors})
