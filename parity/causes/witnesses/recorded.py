"""The signature witness for a reference that was recorded in a script: known faults that its recording kept.

The model is not here and nothing is run: what each fault would give was recorded beside the reference
(`parity.record(..., causes=True)`), of its first step and of its decoder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from parity.causes.errors import as_read, common_keys, error_vector, noise_norm, norm
from parity.causes.evidence import Evidence
from parity.causes.match import Known, matched
from parity.compare.births import L2_LIMIT
from parity.compare.reason import Note
from parity.compare.result import Cause
from parity.golden.faults import kept_faults
from parity.paths.plan import VAE_STAGE
from parity.records import Key, StepRecords

HOW = "to have known faults looked for, record the reference again with causes=True"
"""What can be done where none were kept."""


def recorded(evidence: Evidence) -> Iterator[Cause | Note]:
    """Causes from the candidate's records and the faults that the reference's recording kept."""
    told = evidence.reference.settings
    return of_recording(evidence.request.reference, evidence.origin.key, evidence.ours, evidence.theirs, told)


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
    stage = as_read(ours.where(lambda key: key.stage == origin.stage), VAE_STAGE)
    theirs = as_read(theirs, VAE_STAGE)
    kept = {faults: as_read(run, VAE_STAGE) for faults, run in kept.items()}
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
