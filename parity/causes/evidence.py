"""What a witness is shown: all that is known of a comparison that failed in the denoising loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parity.causes.machine import Machine
from parity.causes.request import ExplainRequest
from parity.compare.comparable import of_script
from parity.compare.detect.phantoms import Phantoms
from parity.compare.reason import Note
from parity.compare.result import Cause, Origin, Result
from parity.records import Provenance, StepRecords

Need = Literal["reference", "candidate", "script"]
"""Beside the records, which there always are: the reference's model can be run on this machine; so can the candidate,
whose settings are those of a kept run; or the reference was recorded in a script, and cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a comparison.

    Attributes:
        request: the two goldens, and how they came about. found: their comparison. origin: where they part.
        ours, theirs: the records of the step in which they part, reference and candidate.
        reference, declared: what the reference's golden says of itself, and the candidate's.
        model: the reference's model on this machine, None where it cannot be run; `machine` for who needs it.
        phantoms: those that are certain, of the attention call in which they part. attention: what that call shows.
            More than one witness reads them, and both sides may run for them.
        causes: found so far, by the witnesses that were asked before.
    """

    request: ExplainRequest
    found: Result
    origin: Origin
    ours: StepRecords
    theirs: StepRecords
    reference: Provenance
    declared: Provenance
    model: Machine | None = None
    phantoms: tuple[Phantoms, ...] = ()
    attention: tuple[Cause | Note, ...] = ()
    causes: tuple[Cause, ...] = ()

    @property
    def step(self) -> int:
        """The step in which the two part."""
        return self.origin.key.step

    @property
    def counts_keys(self) -> bool:
        """Whether phantom keys were counted: by the comparison, from what the goldens hold, or in the attention."""
        return bool(self.phantoms) or any("phantom keys" in c.cause for c in self.found.causes)

    @property
    def met(self) -> frozenset[Need]:
        """The needs of a witness that are met."""
        if self.model is None:
            return frozenset({"script"} if of_script(self.reference) else ())
        return frozenset({"reference"} if self.request.kept is None else {"reference", "candidate"})

    @property
    def machine(self) -> Machine:
        """The model on this machine, for a witness that needs `reference` and is not asked without it."""
        assert self.model is not None, "a witness that runs the reference declares the need"
        return self.model
