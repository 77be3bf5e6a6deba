"""The signature witness: a candidate's error looked for among those of the known faults, from records alone.

The faults are run on this machine, or, where the reference was recorded in a script, its recording kept what each would
give (`parity.record(..., causes=True)`), of its first step and of its decoder: then nothing is run.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from parity.causes.evidence import Evidence, known_faults
from parity.causes.match import Known, as_read, coarse_cause, common_keys, error_vector, matched, noise_norm, norm
from parity.causes.values import working_dtype
from parity.compare.births import L2_LIMIT
from parity.compare.comparable import of_script
from parity.compare.reason import Note
from parity.compare.result import HARMLESS, Cause, Witness
from parity.errors import ParityError
from parity.golden.faults import kept_faults
from parity.records import Key, StepRecords
from parity.settings import BITS, sentence


def signatures(evidence: Evidence) -> Iterator[Cause | Note]:
    """Causes from the candidate's records alone, whatever it says of its settings."""
    if evidence.model is None:
        if of_script(evidence.reference):
            told = evidence.reference.settings
            origin = evidence.origin.key
            yield from of_recording(evidence.request.reference, origin, evidence.ours, evidence.theirs, told)
        return
    machine, ours, theirs, step = evidence.model, evidence.ours, evidence.theirs, evidence.step
    # What is no fault among the settings that the candidate says or shows it has is given to every simulated one.
    declared = dict(evidence.declared.settings)
    block = next((p.block for p in evidence.phantoms if p.block is not None), None)
    if block is not None:
        declared["attention.block_kv"] = str(block)
    alone = "by signature alone: " if any(not c.harmless for c in evidence.causes) else ""
    beside = machine.beside(declared)
    if beside:
        given = ", ".join(f"{name}={value}" for name, value in beside.items())
        yield Note(f"signatures: every known fault is run with what the candidate declares or shows: {given}")
    base = machine.with_fault("", step, beside)
    runs = {}
    left = machine.provenance.steps - step - 1
    faults = list(known_faults(machine.settings, machine.facts, machine.ports.reference, left))
    for i, name in enumerate(faults):
        try:
            runs[name] = machine.with_fault(name, step, beside, f"{i + 1} of {len(faults)}")
        except ParityError as refused:
            yield Note(f"known fault {name} could not be run: {refused}")
    keys = common_keys(ours, theirs, base)
    if not keys:
        yield Note("signatures are skipped: the goldens share no outputs with this machine's reference")
        return
    error = error_vector(ours, theirs, keys)
    noise = noise_norm(ours, keys)
    told = machine.settings.as_text()
    confirm = functools.partial(evidence.request.with_fault, golden=evidence.reference)
    if norm(error) <= L2_LIMIT * noise:
        lacking = _lacking(ours, theirs)
        absent = [name for name, run in runs.items() if lacking and _lacking(base, run) == lacking]
        yield _absent(absent, len(lacking), told) if absent else Note(f"{alone}{_too_small(theirs, keys, step)}")
        return
    drift = norm(error_vector(ours, base, keys))
    if drift > L2_LIMIT * noise:
        yield Note(
            f"signatures are uncertain: this machine's reference is {drift / max(noise, 1e-300):.0f} x the floor from "
            "the golden's"
        )
    singles = {name: error_vector(base, run, keys) for name, run in runs.items()}
    coarse = _coarse(ours, theirs, singles)
    if coarse is not None:
        noise = max(noise, norm(singles[coarse]))
        singles = {name: v for name, v in singles.items() if not name.startswith("dtype=")}
    if coarse is not None and norm(error) <= L2_LIMIT * noise:
        yield coarse_cause(coarse, norm(error) / noise, told, confirm(coarse))
        return
    known = Known(
        error=error,
        faults={frozenset({name}): vector for name, vector in singles.items()},
        noise=noise,
        told=told,
        confirm=confirm,
        coarse=coarse or "",
        alone=alone,
    )
    yield from matched(known)


def _coarse(ours: StepRecords, theirs: StepRecords, singles: Mapping[str, np.ndarray]) -> str | None:
    """The known fault of a coarser working dtype, where the records have one.

    What two programs round in 16 bits is no one error: they share but a part of it. So it is known by its size, and is
    the floor that everything else must be beyond.
    """
    found = working_dtype(ours.records, theirs.records)
    name = f"dtype={found[1]}" if found is not None and BITS[found[1]] < BITS[found[0]] else ""
    return name if name in singles else None


def _lacking(ours: StepRecords, theirs: StepRecords) -> frozenset[Key]:
    """The tensors that only the first has."""
    held = {r.key for r in theirs.records if r.kind == "tensor"}
    return frozenset(r.key for r in ours.records if r.kind == "tensor" and r.key not in held)


def _absent(names: list[str], count: int, told: Mapping[str, str]) -> Cause:
    """What changes no output, and leaves out the very tensors that the candidate leaves out."""
    setting, _, value = names[0].partition("=")
    detail = f"the same {count} tensors are missing, and no output is beyond what rounding gives"
    text = f"{HARMLESS}{sentence(setting, value)}"
    witness = Witness("fault", 0.0, detail)
    return Cause(text, setting, told[setting], value, 0.0, (witness,), tuple(names[1:]), harmless=True)


def _too_small(theirs: StepRecords, keys: Sequence[Key], step: int) -> str:
    """Why there is no error to look for."""
    asked = set(keys)
    broken = [r for r in theirs.records if r.key in asked and r.moments is not None and r.moments.nan + r.moments.inf]
    if broken:
        return (
            f"unknown: {len(broken)} of the candidate's outputs are NaN or infinite, first {broken[0].key}, and the "
            "others agree: known faults are compared where values are finite"
        )
    return (
        f"unknown: the outputs of step {step}, taken together, are within what rounding gives; what differs is at the "
        "origin alone, and too small there to be told by its error"
    )


# --- faults that a recording kept

HOW = "to have known faults looked for, record the reference again with causes=True"
"""What can be done where none were kept."""


def of_recording(
    reference: str | os.PathLike[str], origin: Key, ours: StepRecords, theirs: StepRecords, told: Mapping[str, str]
) -> Iterator[Cause | Note]:
    """Causes for the error of a step of two recordings.

    Args:
        reference: the golden with the faults. origin: where the two part. ours, theirs: the records of that step.
            told: the reference's settings.

    Raises:
        UsageError: the faults that were kept are damaged.
    """
    kept = kept_faults(reference, origin.step, origin.stage)
    if not kept:
        some = origin.step > 0 and kept_faults(reference, 0, origin.stage)
        yield Note(f"signatures: known faults were kept of step 0, not of step {origin.step}" if some else HOW)
        return
    stage = as_read(ours.where(lambda key: key.stage == origin.stage))
    theirs = as_read(theirs)
    kept = {faults: as_read(run) for faults, run in kept.items()}
    keys = common_keys(stage, theirs, *kept.values())
    if not keys:
        yield Note("signatures are skipped: the two recordings share no outputs of which known faults were kept")
        return
    error, noise = error_vector(stage, theirs, keys), noise_norm(stage, keys)
    if norm(error) <= L2_LIMIT * noise:
        yield Note(f"unknown: the outputs of step {origin.step} that known faults were kept of are within their floors")
        return
    faults = {faults: error_vector(stage, run, keys) for faults, run in kept.items()}
    yield from matched(Known(error=error, faults=faults, noise=noise, told=told))
