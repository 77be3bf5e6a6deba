"""`parity explain`: why two paths differ, by witnesses that are independent of each other.

1. *Counterfactual* (a kept run, whose settings are known): the candidate is run again with one setting at a time as the
   reference has it.
2. *Signature* (any candidate, from its records alone): this machine's reference is run under each known fault, and the
   candidate's error is looked for among theirs. What none of them explains is said to be unknown.
3. *Gauge*: what the records at the origin show by themselves: phantom keys, a gain, another order.

A witness that lacks what it needs is skipped, and that is said.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from parity.causes.counterfactuals import counterfactuals
from parity.causes.gauges import dtype_gauge, gauges, reordered
from parity.causes.machine import ExplainRequest, Machine
from parity.causes.phantom_run import attention_values
from parity.causes.schedule_gauge import schedule_gauge, step_gauge
from parity.causes.signatures import UNKNOWN, signatures
from parity.compare.detect.phantoms import Phantoms, count_phantoms, mask_causes, phantom_cause
from parity.compare.diff import TO_COUNT, diff
from parity.compare.reason import Note
from parity.compare.result import Cause, Result
from parity.errors import ParityError, UsageError
from parity.files import read_text
from parity.golden import Golden
from parity.golden.records import Key, StepRecords
from parity.hooks.sites import ATTENTION
from parity.paths.plan import Role
from parity.runs.kept import ports_of
from parity.runs.request import Say
from parity.runs.sides import Openers
from parity.settings import NEUTRAL

_MOST_BYTES = 1 << 30
"""Of a document of a kept run; a site takes about a kilobyte."""

__all__ = ["ExplainRequest", "explain", "of_run"]


def of_run(where: Path, openers: Openers, named: Mapping[Role, str | None] | None = None) -> ExplainRequest:
    """The request for a kept run (`parity run --out DIR`): its last round.

    Args:
        openers: who imports its ports, once they are seen to be those that ran. named: ports that the command names.

    Raises:
        UsageError: the folder is no kept run.
    """
    try:
        told = json.loads(read_text(where / "request.json", _MOST_BYTES))
        stage1, prompt = told["stage1"], told["prompt"]
        differing = json.loads(read_text(where / "result.json", _MOST_BYTES))["differing_settings"]
        rounding = tuple((str(d["setting"]), str(d["candidate"])) for d in differing if d["setting"] in NEUTRAL)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise UsageError(f"'{where}' is no kept run: make one with `parity run --out DIR`") from None
    at = where / "precision" if (where / "precision").is_dir() else where
    if not (at / "reference").is_dir():
        raise UsageError(f"'{where}' holds no records: it ended in preflight; its result.json says why")
    stage = Path(stage1) if isinstance(stage1, str) else None
    given = prompt if isinstance(prompt, str) else None
    left = rounding if at == where else ()
    model, inputs, ports = ports_of(told, openers, named)
    return ExplainRequest(str(at / "reference"), str(at / "candidate"), where, model, stage, given, left, ports, inputs)


def explain(request: ExplainRequest, openers: Openers, say: Say, machine: Machine | None = None) -> Result:
    """Find the causes of a difference.

    Args:
        openers: who loads the sides that are run again. machine: the reference's model on this machine, for who
            explains many candidates of one reference.

    Raises:
        UsageError: no golden, a damaged one. UnjudgedError: nothing can be judged.
    """
    say("comparing")
    found = diff(request.reference, request.candidate)
    if found.verdict != "fail" or found.origin is None:
        judged = "" if found.verdict == "pass" else "the comparison could not be judged, so "
        note = f"{judged}there is nothing to explain"
        return dataclasses.replace(found, notes=(*found.notes, Note(note)))
    step = found.origin.key.step
    if step < 0:
        note = f"the two part in the {found.origin.key.stage} stage: causes are looked for in the transformer alone"
        return dataclasses.replace(found, notes=(*found.notes, Note(note)))
    ours, theirs = (Golden.open(where).read_step(step) for where in (request.reference, request.candidate))
    measured, notes = _gauges(found, ours, theirs), list[str]()
    known = {m.setting for m in measured} - {""}
    measured = (*measured, *(c for c in found.causes if c.setting not in known))
    try:
        machine = machine or Machine.of(request, Golden.open(request.reference).provenance, openers, say)
    except ParityError as error:
        notes.append(f"counterfactuals and signatures are skipped: {error}")
        return dataclasses.replace(found, causes=measured, notes=(*found.notes, *map(Note, notes)))
    said: list[str] = []
    declared = dict(Golden.open(request.candidate).provenance.settings)
    uncounted: list[str] = []
    looked_at = _looked_at(request, found.origin.key)
    counted, masks = ([], ()) if _are_counted(found) else _attention(machine, request, looked_at, step, uncounted)
    block = next((p.block for p in counted if p.block is not None), None)
    if block is not None:
        declared["attention.block_kv"] = str(block)
    named = signatures(machine, ours, theirs, step, said, declared)
    swapped: list[Cause] = []
    if request.kept is not None:
        swapped = counterfactuals(machine, request, ours, step, notes)
    by_itself = "by signature alone: " if any(c.share > 0 for c in swapped) else ""
    notes += [f"{by_itself}{note}" if note.startswith("unknown") else note for note in said]
    notes += uncounted
    merged = _merged(swapped, named)
    measured = (*(phantom_cause(p, looked_at.module) for p in counted), *masks, *measured)
    held = (note for note in found.notes if not (counted and str(note).startswith(TO_COUNT)))
    return dataclasses.replace(found, causes=_beside(merged, measured), notes=(*held, *map(Note, notes)))


def _are_counted(found: Result) -> bool:
    """Whether phantom keys were counted from what the goldens hold."""
    return any("phantom keys" in c.cause for c in found.causes)


def _gauges(found: Result, ours: StepRecords, theirs: StepRecords) -> tuple[Cause, ...]:
    """What the loop's numbers, the origin and the other sites of its step show."""
    return (
        *dtype_gauge(ours.records, theirs.records),
        *schedule_gauge(found.steps),
        *step_gauge(ours, theirs),
        *gauges(ours.records, theirs.records, found.origin),
        *reordered(ours.records, theirs.records, found.origin),
    )


def _beside(merged: Sequence[Cause], measured: Sequence[Cause]) -> tuple[Cause, ...]:
    """Gauges that name a setting bear witness for the cause that names it too; the others stand by themselves."""
    known = {(c.setting, c.candidate): c for c in merged}
    for gauge in measured:
        at = (gauge.setting, gauge.candidate)
        if gauge.setting and at in known:
            known[at] = dataclasses.replace(known[at], witnesses=(*known[at].witnesses, *gauge.witnesses))
    rest = (m for m in measured if not m.setting or (m.setting, m.candidate) not in known)
    return (*known.values(), *rest)


def _merged(swapped: Sequence[Cause], named: Sequence[Cause]) -> list[Cause]:
    """One cause a setting, with all its witnesses; what only one kind of witness names stands by itself."""
    merged = []
    for cause in swapped:
        same = [c for c in named if (c.setting, c.candidate) == (cause.setting, cause.candidate)]
        witnesses = (*cause.witnesses, *(w for c in same for w in c.witnesses))
        merged.append(dataclasses.replace(cause, witnesses=witnesses))
    known = {(c.setting, c.candidate) for c in swapped}
    # Where settings that were swapped explain the error a signature only confirms them: another name for the same error
    # is no second cause. What they leave, it names.
    explained = sum(c.share for c in swapped if c.share > 0)
    rest = [c for c in named if (c.setting, c.candidate) not in known] if explained < 1.0 - UNKNOWN else []
    return sorted([*merged, *rest], key=lambda c: -c.share)


def _looked_at(request: ExplainRequest, origin: Key) -> Key:
    """The first divergence; of a kept run the one inside it that the run came to when it looked closer."""
    if request.kept is None:
        return origin
    try:
        told = json.loads(read_text(request.kept / "result.json", _MOST_BYTES))["origin"]
        site, step, call = str(told["site"]), int(told["step"]), int(told["call"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return origin
    inside = not origin.module or site.startswith(f"{origin.module}.")
    return dataclasses.replace(origin, site=site, call=call) if inside and step == origin.step else origin


def _attention(
    machine: Machine, request: ExplainRequest, origin: Key, step: int, notes: list[str]
) -> tuple[list[Phantoms], tuple[Cause, ...]]:
    """Phantom keys, or else a mistaken mask, where the divergence is born in an attention call."""
    if origin.module.rpartition(".")[2] != ATTENTION:
        return [], ()
    try:
        reference, candidate = attention_values(request, machine, origin.module, step)
    except ParityError as error:
        notes.append(f"phantom keys are not counted: {error}")
        return [], ()
    counted = count_phantoms(reference, candidate, origin.module)
    certain = [p for p in counted if p.is_certain]
    return certain, () if certain else mask_causes(reference, candidate, origin.module)
