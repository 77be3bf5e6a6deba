"""The schedule gauge: rounded, shifted, scaled and other schedules are told apart; a scheduler that steps otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from parity.causes.witnesses.schedule import bfloat16, schedule
from parity.causes.witnesses.scheduler_step import scheduler_step
from parity.compare.result import Cause, Distance, StepDiff
from parity.golden import StepRecords
from tests.support.made import evidence, tensor

SIGMAS = np.array([1.0, 0.9375, 0.8333, 0.625, 0.0])
NONE = Distance(0.0, 0.0, 0.0)


def told(made: Sequence[StepDiff]) -> list[Cause]:
    return list(schedule(evidence(steps=made)))


def steps(theirs: np.ndarray) -> list[StepDiff]:
    both = np.stack([SIGMAS, theirs])
    pairs = [tuple(x) for x in both.T]
    dts = [tuple(x) for x in np.diff(both, axis=1).T]
    return [
        StepDiff(i, (1000 * pairs[i][0], 1000 * pairs[i][1]), pairs[i], dts[i], NONE, NONE, NONE)  # type: ignore[arg-type]
        for i in range(4)
    ]


@pytest.mark.parametrize(
    ("change", "said", "setting"),
    [
        (bfloat16, "rounded to bfloat16", "schedule_dtype"),
        (lambda s: 0.5 * s, "times 0.5", ""),
        (lambda s: np.append(s[1:], 0.0), "a step ahead", ""),
        (lambda s: s**2, "is another", ""),
    ],
)
def test_what_the_schedule_is(change: Callable[[np.ndarray], np.ndarray], said: str, setting: str) -> None:
    theirs = change(SIGMAS)
    if change is bfloat16:  # the timesteps are rounded themselves, not the sigmas times 1000
        made = [
            StepDiff(i, (1000 * s, float(bfloat16(np.array([1000 * s]))[0])), (s, t), (0.0, 0.0), NONE, NONE, NONE)
            for i, (s, t) in enumerate(zip(SIGMAS[:4], theirs, strict=False))
        ]
    else:
        made = steps(theirs)
    (cause,) = told(made)
    assert said in cause.cause
    assert cause.setting == setting
    assert "at step" in cause.witnesses[0].detail


def test_rounding_and_absent_numbers_are_no_other_schedule() -> None:
    assert told(steps(SIGMAS * (1 + 1e-8))) == []
    assert told(steps(np.full(5, np.nan))) == []
    assert told([]) == []


def test_bfloat16_rounds_to_nearest_even() -> None:
    assert bfloat16(np.array([1.0, 999.0, 1.00390625, 1.01171875])).tolist() == [1.0, 1000.0, 1.0, 1.015625]


def stepped(dt: float, says: float = -0.1) -> StepRecords:
    rng = np.random.default_rng(0)
    before, flow = rng.standard_normal((2, 1, 4, 8, 8))
    values = {"dt": np.asarray(says), "latents.before": before, "noise_pred": flow, "latents.after": before + dt * flow}
    return StepRecords(0, tuple(tensor(f"loop:{n}", np.asarray(x), branch="", held=True) for n, x in values.items()))


def otherwise(ours: StepRecords, theirs: StepRecords) -> list[Cause]:
    return list(scheduler_step(evidence(ours, theirs)))


def test_a_scheduler_that_steps_otherwise_than_its_schedule() -> None:
    (cause,) = otherwise(stepped(-0.1), stepped(-0.2))
    assert "stepped by -0.2 where its schedule says -0.1" in cause.cause
    assert otherwise(stepped(-0.1), stepped(-0.1001)) == []
    assert otherwise(stepped(-0.05), stepped(-0.2)) == []  # no Euler step: its dt cannot be read off
    assert otherwise(stepped(-0.1), stepped(-0.2, says=-0.2)) == []  # another schedule, which the other gauge says
    assert otherwise(stepped(-0.1), StepRecords(0, ())) == []
