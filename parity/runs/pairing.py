"""Two sides made ready: loaded from explicit inputs, prepared, and compared before any forward."""

from __future__ import annotations

from dataclasses import dataclass

from parity.compare.preflight import preflight
from parity.compare.result import Check
from parity.paths.facts import gather
from parity.paths.families import base_of, load_candidate_side
from parity.paths.inputs import Encoded, make_inputs
from parity.paths.loop import Loop, prepare
from parity.paths.ported import Ported
from parity.paths.reference import load_reference
from parity.runs.ports import behind, families
from parity.runs.request import Request, Say
from parity.settings import Difference, differences


@dataclass(frozen=True)
class Pairing:
    """Two prepared sides and what was found before their first forward."""

    reference: Loop
    candidate: Loop
    differing: tuple[Difference, ...]
    checks: tuple[Check, ...]

    @property
    def strict(self) -> bool:
        """Whether a site that only one side has is a difference: not for ports, which are built otherwise."""
        return not isinstance(self.candidate.side.family, Ported)


def pair(request: Request, say: Say, encoded: tuple[Encoded, Encoded] | None = None) -> Pairing:
    """Load and prepare both sides and compare them as far as is possible without a forward.

    Args:
        encoded: each side's own embeddings, where the text stage has made them.
    """
    say("preparing the checkpoint")
    base, case = base_of(request.model, request.reference, behind(request.ports), request.prompt, request.inputs)
    family, other = families(request.ports, base, case)
    if encoded is None:
        say("encoding the prompt" if request.stage1 is None else "reading the embeddings")
    ours, theirs = make_inputs(
        family,
        case,
        request.reference,
        request.candidate,
        steps=request.steps,
        seed=request.seed,
        stage1=request.stage1,
        other=other,
        encoded=encoded,
    )
    say("loading the reference")
    reference = prepare(load_reference(family, case, request.reference, ours))
    say("loading the candidate")
    candidate = prepare(load_candidate_side(other, case, request.candidate, theirs))
    say("preflight")
    differing = differences(request.reference, request.candidate)
    checks = preflight(gather(reference), gather(candidate), [d.setting for d in differing])
    remarks = base.remarks(case)
    checks = (Check("inputs", "pass", remarks), *checks) if remarks else checks
    ports = tuple(Check(*side.check) for side in (family, other) if isinstance(side, Ported))
    return Pairing(reference, candidate, differing, (*ports, *checks))
