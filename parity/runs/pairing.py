"""Parity's own two sides loaded in this process, prepared, and compared before any forward."""

from __future__ import annotations

from dataclasses import dataclass

from parity.compare.preflight import preflight
from parity.compare.result import Check
from parity.paths.facts import gather
from parity.paths.families import base_of
from parity.paths.inputs import Encoded, make_inputs
from parity.paths.loop import Loop, prepare
from parity.paths.reference import load_reference
from parity.runs.request import Request, Say
from parity.settings import Difference, differences


@dataclass(frozen=True)
class Pairing:
    """Two prepared sides and what was found before their first forward."""

    reference: Loop
    candidate: Loop
    differing: tuple[Difference, ...]
    checks: tuple[Check, ...]


def pair(request: Request, say: Say, encoded: tuple[Encoded, Encoded] | None = None) -> Pairing:
    """Load and prepare both sides and compare them as far as is possible without a forward.

    Args:
        encoded: each side's own embeddings, where the text stage has made them.
    """
    say("preparing the checkpoint")
    family, case = base_of(request.model, request.reference, None, request.prompt, request.inputs)
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
        encoded=encoded,
    )
    say("loading the reference")
    reference = prepare(load_reference(family, case, request.reference, ours))
    say("loading the candidate")
    from parity.paths.jax.candidate import load_candidate  # jax and torchax, only from here on

    candidate = prepare(load_candidate(family, case, request.candidate, theirs))
    say("preflight")
    differing = differences(request.reference, request.candidate)
    checks = preflight(gather(reference), gather(candidate), [d.setting for d in differing])
    remarks = family.remarks(case)
    checks = (Check("inputs", "pass", remarks), *checks) if remarks else checks
    return Pairing(reference, candidate, differing, checks)
