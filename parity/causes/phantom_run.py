"""The values of one attention call on both sides, for the gauges: from the goldens, or run again on this machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parity.causes.machine import ExplainRequest, Machine
from parity.errors import UnjudgedError
from parity.golden import Golden
from parity.golden.records import PORT, Record
from parity.hooks.sites import plan_sites
from parity.paths.plan import Plan
from parity.runs.sides import modules_of


def attention_values(
    request: ExplainRequest, machine: Machine, module: str, step: int
) -> tuple[Sequence[Record], Sequence[Record]]:
    """Records with values of an attention call, reference and candidate.

    Raises:
        UnjudgedError: the candidate's are not held, and its settings are not known to run it again.
    """
    ours, theirs = (Golden.open(where) for where in (request.reference, request.candidate))
    held = [g.read_step(step).records for g in (ours, theirs)]
    if all(_holds(records, module) for records in held):
        return held[0], held[1]
    provenance = theirs.provenance
    if request.kept is None or provenance.backend not in ("torchax", PORT):
        raise UnjudgedError(f"the goldens do not hold the values of {module}: record both with --values '{module}'")
    machine.say(f"both sides again, with the values of {module}")
    sides = machine.reference, machine.candidate_side(machine.candidate_settings(provenance))
    plan = Plan(sites=plan_sites(["", *modules_of(machine.facts)], module, (module,)))
    runs = [side.observe(plan, steps=(0, step + 1)) for side in sides]
    *_, a = runs[0]
    *_, b = runs[1]
    sides[1].close()
    return a.records, b.records


def _holds(records: Sequence[Record], module: str) -> bool:
    own = [r for r in records if r.key.module == module and r.kind == "tensor" and not r.key.is_padding]
    return bool(own) and all(isinstance(r.value, np.ndarray) for r in own)
