"""What a comparison gathers, step by step, for its verdict: the loop's own values and the judged sites."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.compare.result import NAN, UNKNOWN, SiteDiff, StepDiff
from parity.compare.sites import Columns, Sites
from parity.records import LOOP, Record, StepRecords
from parity.settings import BITS


@dataclass
class Collected:
    """What a comparison has gathered, step by step.

    Attributes:
        steps, sites: of the steps so far, in execution order. lean: whether row bins of what passes are left out; only
            a run that follows the candidate may find later that it does not.
    """

    steps: list[StepDiff] = field(default_factory=list)
    sites: Sites = field(default_factory=Sites)
    lean: bool = False

    def add(self, reference: StepRecords, candidate: StepRecords, sites: Sequence[SiteDiff]) -> None:
        """Take in one judged step; steps without the loop's values (step -1) give sites alone."""
        columns = sites if isinstance(sites, Columns) else Columns.of(sites)
        self.sites.add(columns.lean() if self.lean else columns)
        step = step_diff(reference, candidate, columns.loop)
        if step is not None:
            self.steps.append(step)


def step_diff(reference: StepRecords, candidate: StepRecords, sites: Sequence[SiteDiff]) -> StepDiff | None:
    """The loop's values of one step; None where a side did not record them."""
    ours, theirs = _scalars(reference.records), _scalars(candidate.records)
    by_port = {(d.key.branch, d.key.port): d.distance for d in sites if d.key.module == LOOP}
    if ("", "noise_pred") not in by_port:
        return None

    def pair(name: str) -> tuple[float, float]:
        return ours.get(name, NAN), theirs.get(name, NAN)

    predicted = next(d for d in sites if (d.key.module, d.key.branch, d.key.port) == (LOOP, "", "noise_pred"))
    of = min(BITS.get(dtype, 0) for dtype in predicted.dtypes)
    return StepDiff(
        reference.step,
        pair("timestep"),
        pair("sigma"),
        pair("dt"),
        by_port["", "noise_pred"],
        by_port.get(("", "latents.after"), UNKNOWN),
        by_port.get(("", "latents.before"), UNKNOWN),
        {branch: d for (branch, port), d in by_port.items() if port == "noise_pred" and branch},
        bits_of_agreement(predicted.distance.rel_l2, of),
        of,
    )


def bits_of_agreement(rel_l2: float, of: int) -> float:
    """Leading bits in which two values agree: -log2 of their relative L2, at most those that the dtype has."""
    if math.isnan(rel_l2):
        return NAN
    return float(of) if rel_l2 <= 2.0**-of else max(0.0, -math.log2(rel_l2)) if math.isfinite(rel_l2) else 0.0


def _scalars(records: Sequence[Record]) -> dict[str, float]:
    """The loop's own numbers; a golden from elsewhere may hold anything under these names."""
    held = ((r.key.port, np.asarray(r.value)) for r in records if r.key.module == LOOP and r.shape == ())
    return {port: float(value.item()) for port, value in held if value.size == 1 and value.dtype.kind in "biuf"}
