"""Phantom keys, or a mistaken mask, in the attention call where two sides part.

What the call shows is read from the values that the goldens hold, or from both sides, run again on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parity.causes.evidence import Evidence
from parity.causes.request import own_settings
from parity.compare.attention import count_phantoms, mask_causes, phantom_cause
from parity.compare.reason import Note
from parity.compare.result import Cause
from parity.errors import InconclusiveError, ParityError
from parity.hooks.sites import plan_sites
from parity.paths.plan import Plan
from parity.records import ATTENTION, PORT, Record
from parity.runs.sides import modules_of


def attention(evidence: Evidence) -> tuple[Cause | Note, ...]:
    """What the values of the call show, or why they are not known."""
    return evidence.attention


def attention_call(evidence: Evidence) -> Evidence:
    """The evidence with phantom keys, or else a mistaken mask, where the divergence is born in an attention call.

    Nothing more without the model, nor where the comparison has counted phantom keys from what the goldens hold.
    """
    module = evidence.request.looked_at(evidence.origin.key).module
    if evidence.model is None or evidence.counts_keys or module.rpartition(".")[2] != ATTENTION:
        return evidence
    try:
        reference, candidate = _values(evidence, module)
    except ParityError as error:
        return replace(evidence, attention=(Note(f"phantom keys are not counted: {error}"),))
    certain = tuple(p for p in count_phantoms(reference, candidate, module) if p.is_certain)
    told = tuple(phantom_cause(p, module) for p in certain) or mask_causes(reference, candidate, module)
    return replace(evidence, phantoms=certain, attention=told)


def _values(evidence: Evidence, module: str) -> tuple[Sequence[Record], Sequence[Record]]:
    """Records with values of an attention call, reference and candidate.

    Raises:
        InconclusiveError: the candidate's are not held, and its settings are not known to run it again.
    """
    held = evidence.ours.records, evidence.theirs.records
    if all(_holds(records, module) for records in held):
        return held
    machine, declared = evidence.machine, evidence.declared
    known = declared.backend == PORT or own_settings(declared, "torchax") is not None
    if "candidate" not in evidence.met or not known:
        raise InconclusiveError(f"the goldens do not hold the values of {module}: record both with --values '{module}'")
    machine.say(f"both sides again, with the values of {module}")
    sides = machine.reference, machine.candidate_side(machine.candidate_settings(declared))
    plan = Plan(sites=plan_sites(["", *modules_of(machine.facts)], module, (module,)))
    runs = [side.observe(plan, steps=(0, evidence.step + 1)) for side in sides]
    *_, a = runs[0]
    *_, b = runs[1]
    sides[1].close()
    return a.records, b.records


def _holds(records: Sequence[Record], module: str) -> bool:
    own = [r for r in records if r.key.module == module and r.kind == "tensor" and not r.key.is_apart]
    return bool(own) and all(isinstance(r.value, np.ndarray) for r in own)
