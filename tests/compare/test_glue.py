"""The glue's detectors look at what a stranger's golden holds: arrays for numbers, NaN, nothing."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.detect.glue import Glue
from parity.golden.records import LOOP, Key, StepRecords
from parity.golden.values import value_record

SIZE = 32


def step(**values: np.ndarray) -> StepRecords:
    branches = {"cond": "cond", "uncond": "uncond", "guided": ""}
    records = []
    for name, x in values.items():
        port = "noise_pred" if name in branches else name
        key = Key("transformer", 0, branches.get(name, ""), f"{LOOP}:{port}")
        records.append(value_record(key, np.asarray(x, np.float32), "float32"))
    return StepRecords(0, tuple(records))


def causes(ours: StepRecords, theirs: StepRecords) -> list[str]:
    glue = Glue(({}, {}))
    glue.add(ours, theirs)
    return [cause.setting for cause in glue.found]


def test_a_scheduler_one_step_late_is_named() -> None:
    assert causes(step(step_index=np.array(1)), step(step_index=np.array(2))) == ["scheduler.step_index"]


@pytest.mark.parametrize("other", [np.array([1, 2]), np.array(np.nan), np.zeros((2, 3)), np.zeros(0)])
def test_an_index_that_is_no_number_names_nothing(other: np.ndarray) -> None:
    assert causes(step(step_index=np.array(1)), step(step_index=other)) == []
    assert causes(step(step_index=other), step(step_index=np.array(1))) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("broken", ["cond", "uncond", "guided"])
def test_predictions_that_are_not_finite_name_no_guidance(broken: str, bad: float) -> None:
    cond, uncond = np.random.default_rng(0).normal(size=(2, SIZE))
    whole = {"cond": cond, "uncond": uncond, "guided": uncond + 6 * (cond - uncond)}
    lost = whole | {"guided": cond}
    assert causes(step(**whole), step(**lost)) == ["guidance"]
    spoilt = whole | {broken: np.where(np.arange(SIZE) == 3, bad, whole[broken])}
    assert "guidance" not in causes(step(**whole), step(**spoilt))
    assert "guidance" not in causes(step(**spoilt), step(**whole))
