"""Evidence made by hand, so that a witness is tested without a model or a golden."""

from __future__ import annotations

import math
from collections.abc import Sequence

from parity.causes.evidence import Evidence
from parity.causes.request import ExplainRequest
from parity.compare.reason import Reason
from parity.compare.result import Distance, Origin, Result, StepDiff
from parity.golden import Key, Record, StepRecords
from tests.compare.make_goldens import CANDIDATE

ORIGIN = Key("transformer", 0, "cond", "m:out")
NONE = Distance(0.0, 0.0, 0.0)


def step_diffs(ours: Sequence[float], theirs: Sequence[float]) -> list[StepDiff]:
    """Steps of which only the timesteps are known."""
    unknown = (math.nan, math.nan)
    pairs = enumerate(zip(ours, theirs, strict=True))
    return [StepDiff(i, pair, unknown, unknown, NONE, NONE, NONE) for i, pair in pairs]


def evidence(
    ours: Sequence[Record] | StepRecords = (),
    theirs: Sequence[Record] | StepRecords = (),
    *,
    origin: Key = ORIGIN,
    steps: Sequence[StepDiff] = (),
) -> Evidence:
    """Two goldens that part at `origin`, whose model is not on this machine.

    Args:
        ours, theirs: records of that step. steps: what the comparison says of every step.
    """
    found = Result("fail", "structure", Reason(kind="first_divergence"), steps=tuple(steps))
    a, b = (x if isinstance(x, StepRecords) else StepRecords(origin.step, tuple(x)) for x in (ours, theirs))
    return Evidence(
        request=ExplainRequest("reference", "candidate"),
        found=found,
        origin=Origin(origin, "module"),
        ours=a,
        theirs=b,
        reference=CANDIDATE,
        declared=CANDIDATE,
    )
