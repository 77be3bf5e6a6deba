"""The schedule gauge: what the loop's own numbers say at every step. numpy only.

Timesteps, sigmas and their differences dt are recorded whole. Where they differ: at which steps, by how much, and
whether the candidate's are the reference's rounded to bfloat16, shifted by a step, or a multiple of them. Beside what a
schedule says, what the scheduler did: its step moves the latents by dt times noise_pred (Euler), so that
<latents.after - latents.before, noise_pred> / <noise_pred, noise_pred> is the dt that it used. Where the reference's
own is not its dt (another scheduler) nothing is said of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from parity.causes.gauges import CONFIRM
from parity.compare.result import NAN, Cause, StepDiff, Witness
from parity.golden.records import LOOP, Record, StepRecords

ROUNDING = 1e-6
"""Relative difference of two float32 schedules that is rounding."""
TOOK = 1e-2
"""Relative difference of a used dt from a schedule's that says they are not the same."""
NAMES = ("timestep", "sigma", "dt")


def schedule_gauge(steps: Sequence[StepDiff]) -> tuple[Cause, ...]:
    """One cause where the loop's numbers differ at any step, none else."""
    numbers = {name: np.array([getattr(s, name) for s in steps], np.float64).reshape(-1, 2) for name in NAMES}
    hit = {name: _differ(x) for name, x in numbers.items()}
    names = [name for name in NAMES if hit[name].any()]
    if not names:
        return ()
    first = int(np.flatnonzero(np.any([hit[name] for name in names], axis=0))[0])
    at = {name: numbers[name][first] for name in names if hit[name][first]}
    shown = ", ".join(f"{name} {ours:.6g} against {theirs:.6g}" for name, (ours, theirs) in at.items())
    where = ", ".join(str(steps[i].step) for i in np.flatnonzero(np.any([hit[n] for n in names], axis=0))[:8])
    kind, setting, value, reference = _kind(numbers, names)
    remedy = "keep the schedule in float32" if setting else "set the scheduler up as the reference does"
    detail = f"{' and '.join(names)} at steps {where}; at step {steps[first].step}: {shown}; {CONFIRM}"
    worst = max(_apart(numbers[name]).max() for name in names)
    return (
        Cause(f"the schedule {kind}: {remedy}", setting, reference, value, NAN, (Witness("gauge", worst, detail),)),
    )


def _apart(x: np.ndarray) -> np.ndarray:
    """Relative difference of the pairs; 0 where either was not recorded."""
    size = np.maximum(np.abs(x).max(axis=1), 1e-12)
    return np.nan_to_num(np.abs(x[:, 1] - x[:, 0]) / size, nan=0.0, posinf=0.0)


def _differ(x: np.ndarray) -> np.ndarray:
    return _apart(x) > ROUNDING


def _kind(numbers: Mapping[str, np.ndarray], names: Sequence[str]) -> tuple[str, str, str, str]:
    """What the candidate's numbers are: a sentence's end, and the setting that does it where one does."""
    values = [n for n in names if n != "dt"] or list(names)
    if all(_rounded(numbers[n][:, 0], numbers[n][:, 1]) for n in values):
        return "is rounded to bfloat16", "schedule_dtype", "bfloat16", "model"
    x = np.concatenate([numbers[n] for n in values])
    at = x[x[:, 0] != 0]
    ratios = at[:, 1] / at[:, 0]
    if len(at) and ratios.std() <= ROUNDING * abs(ratios.mean()):
        return f"is the reference's times {ratios.mean():.6g}", "", "", ""
    for name in values:
        ours, theirs = numbers[name].T
        if len(ours) > 1 and np.allclose(theirs[:-1], ours[1:], rtol=ROUNDING, atol=0):
            return "is a step ahead: it was not reset, or warm-up calls moved it", "", "", ""
    return "is another", "", "", ""


def _rounded(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(np.allclose(bfloat16(ours), theirs, rtol=ROUNDING, atol=0)) and not np.array_equal(ours, theirs)


def bfloat16(x: np.ndarray) -> np.ndarray:
    """float64 numbers rounded to bfloat16, to nearest even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    kept = ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)).astype(np.uint32)
    return kept.view(np.float32).astype(np.float64)


def step_gauge(reference: StepRecords, candidate: StepRecords) -> tuple[Cause, ...]:
    """One cause where the candidate's scheduler stepped by another dt than the reference's, with equal schedules."""
    ours, theirs = _loop(reference), _loop(candidate)
    a, b = _used(ours), _used(theirs)
    if a is None or b is None or "dt" not in ours or "dt" not in theirs:
        return ()
    dt, other = float(ours["dt"]), float(theirs["dt"])
    if abs(other - dt) > ROUNDING * abs(dt) or abs(a - dt) > TOOK * abs(dt) or abs(b - a) <= TOOK * abs(a):
        return ()
    text = (
        f"the scheduler stepped by {b:.5g} where its schedule says {dt:.5g}: reset its step index before the loop "
        "(warm-up calls move it), and check the sign and factor of its update"
    )
    moved = f"latents moved by {b:.6g} times noise_pred at step {reference.step}, the reference's by {a:.6g}"
    detail = f"{moved}; {CONFIRM}"
    return (Cause(text, "", "", "", NAN, (Witness("gauge", b, detail),)),)


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
