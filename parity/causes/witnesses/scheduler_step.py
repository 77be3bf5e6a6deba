"""What the scheduler did, beside what the schedule says. numpy only.

Its step moves the latents by dt times noise_pred (Euler), so that <latents.after - latents.before, noise_pred> /
<noise_pred, noise_pred> is the dt that it used. Where the reference's own is not its dt (another scheduler) nothing is
said of that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from parity.causes.evidence import Evidence
from parity.causes.gauges import ROUNDING, measured
from parity.causes.witness import witness
from parity.compare.result import Cause
from parity.records import LOOP, Record, StepRecords

TOOK = 1e-2
"""Relative difference of a used dt from a schedule's that says they are not the same."""


@witness("scheduler_step")
def scheduler_step(evidence: Evidence) -> Iterator[Cause]:
    """One cause where the candidate's scheduler stepped by another dt than the reference's, with equal schedules."""
    ours, theirs = _loop(evidence.ours), _loop(evidence.theirs)
    a, b = _used(ours), _used(theirs)
    if a is None or b is None or "dt" not in ours or "dt" not in theirs:
        return
    dt, other = float(ours["dt"]), float(theirs["dt"])
    if abs(other - dt) > ROUNDING * abs(dt) or abs(a - dt) > TOOK * abs(dt) or abs(b - a) <= TOOK * abs(a):
        return
    text = f"the scheduler stepped by {b:.5g} where its schedule says {dt:.5g}"
    fix = "reset its step index before the loop (warm-up calls move it), and check the sign and factor of its update"
    moved = f"latents moved by {b:.6g} times noise_pred at step {evidence.ours.step}, the reference's by {a:.6g}"
    yield measured(text, b, moved, fix)


def _loop(step: StepRecords) -> dict[str, np.ndarray]:
    """The loop's own values that belong to no branch, where they are held."""
    held: Sequence[Record] = [r for r in step.records if r.key.module == LOOP and not r.key.branch]
    return {r.key.port: r.value.astype(np.float64) for r in held if isinstance(r.value, np.ndarray)}


def _used(loop: Mapping[str, np.ndarray]) -> float | None:
    """The dt that a step used; None where the values are not held or not finite."""
    if not {"noise_pred", "latents.before", "latents.after"} <= loop.keys():
        return None
    flow, moved = loop["noise_pred"].ravel(), (loop["latents.after"] - loop["latents.before"]).ravel()
    square = float(flow @ flow) if flow.shape == moved.shape else 0.0
    used = float(flow @ moved) / square if square else math.nan
    return used if math.isfinite(used) else None
