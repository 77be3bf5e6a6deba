"""The values of one attention call on both sides, for the gauges: from the goldens, or run again on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from parity.errors import UnjudgedError
from parity.golden import Golden
from parity.golden.records import PORT, Record
from parity.hooks.sites import plan_sites
from parity.paths.loop import denoise
from parity.paths.port_settings import typed
from parity.runs.pairing import pair
from parity.runs.request import Request, Say
from parity.settings import Settings

if TYPE_CHECKING:
    from parity.causes.machine import ExplainRequest


def attention_values(
    request: ExplainRequest, reference: Settings, module: str, step: int, say: Say
) -> tuple[Sequence[Record], Sequence[Record]]:
    """Records with values of an attention call, reference and candidate.

    Raises:
        UnjudgedError: the candidate's are not held, and its settings are not known to run it again.
    """
    ours, theirs = (Golden.open(where) for where in (request.reference, request.candidate))
    held = [g.read_step(step).records for g in (ours, theirs)]
    if all(_holds(records, module) for records in held):
        return held[0], held[1]
    told = theirs.provenance
    if request.kept is None or told.backend not in ("torchax", PORT):
        raise UnjudgedError(f"the goldens do not hold the values of {module}: record both with --values '{module}'")
    say(f"both sides again, with the values of {module}")
    candidate = typed(request.ports.candidate or request.ports.reference, "torchax", told.settings)
    model = request.model or told.model
    asked = Request(
        model, reference, candidate, told.steps, told.seed, request.stage1, module, (module,), prompt=request.prompt,
        inputs=request.inputs, ports=request.ports,
    )  # fmt: skip
    pairing = pair(asked, say)
    plan = plan_sites(["", *pairing.reference.side.modules], module, (module,))
    *_, a = denoise(pairing.reference, plan, stop=step + 1)
    *_, b = denoise(pairing.candidate, plan, stop=step + 1)
    return a.records, b.records


def _holds(records: Sequence[Record], module: str) -> bool:
    own = [r for r in records if r.key.module == module and r.kind == "tensor" and not r.key.is_padding]
    return bool(own) and all(isinstance(r.value, np.ndarray) for r in own)
