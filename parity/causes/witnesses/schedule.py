"""The schedule: what the loop's own numbers say at every step. numpy only.

Timesteps, sigmas and their differences dt are recorded whole. Where they differ: at which steps, by how much, and what
was done to them (`parity.transforms`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from parity.causes.evidence import Evidence
from parity.causes.gauges import ROUNDING
from parity.compare.result import Cause, measured
from parity.transforms import done

ANOTHER = "is another"
SET = frozenset({"shift", "schedule_dtype", "timesteps", "scheduler.step_index"})
"""Of causes that a script's own schedule shows; see `parity.compare.detect.values`."""


def schedule(evidence: Evidence) -> Iterator[Cause]:
    """One cause where the loop's numbers differ at any step, none else."""
    steps = evidence.found.steps
    told = {"timestep": [s.timestep for s in steps], "sigma": [s.sigma for s in steps], "dt": [s.dt for s in steps]}
    numbers = {name: np.array(pairs, np.float64).reshape(-1, 2) for name, pairs in told.items()}
    hit = {name: _apart(x) > ROUNDING for name, x in numbers.items()}
    names = [name for name in numbers if hit[name].any()]
    if not names:
        return
    first = int(np.flatnonzero(np.any([hit[name] for name in names], axis=0))[0])
    at = {name: numbers[name][first] for name in names if hit[name][first]}
    shown = ", ".join(f"{name} {ours:.6g} against {theirs:.6g}" for name, (ours, theirs) in at.items())
    where = ", ".join(str(steps[i].step) for i in np.flatnonzero(np.any([hit[n] for n in names], axis=0))[:8])
    kind, setting, value, reference = _kind(numbers, names)
    if kind == ANOTHER and any(cause.setting in SET for cause in evidence.found.causes):
        return  # what was set before the first step says which
    fix = "keep the schedule in float32" if setting else "set the scheduler up as the reference does"
    detail = f"{' and '.join(names)} at steps {where}; at step {steps[first].step}: {shown}"
    worst = max(_apart(numbers[name]).max() for name in names)
    yield measured(f"the schedule {kind}", setting, reference, value, worst, detail=detail, fix=fix)


def _apart(x: np.ndarray) -> np.ndarray:
    """Relative difference of the pairs; 0 where either was not recorded."""
    size = np.maximum(np.abs(x).max(axis=1), 1e-12)
    return np.nan_to_num(np.abs(x[:, 1] - x[:, 0]) / size, nan=0.0, posinf=0.0)


def _kind(numbers: Mapping[str, np.ndarray], names: Sequence[str]) -> tuple[str, str, str, str]:
    """What the candidate's numbers are: a sentence's end, and the setting that does it where one does."""
    values = [n for n in names if n != "dt"] or list(names)
    said = {str(done(numbers[n][:, 0], numbers[n][:, 1])) for n in values}
    made = done(numbers[values[0]][:, 0], numbers[values[0]][:, 1])
    if len(said) > 1 or made is None or made.inverse:
        return ANOTHER, "", "", ""
    if made.words == "rounded to bfloat16":
        return "is rounded to bfloat16", "schedule_dtype", "bfloat16", "model"
    late = ": it was not reset, or warm-up calls moved it" if made.words.startswith("a step") else ""
    return f"is {made.words}{late}" if late else f"is the reference's {made.words}", "", "", ""
