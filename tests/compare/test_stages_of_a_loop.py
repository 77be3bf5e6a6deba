"""What one step hands to the next: latents begun anew on one side alone, a scheduler's memory, zeroed steps."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.detect.glue import Glue
from parity.compare.result import Cause
from parity.golden.records import LOOP, Key, StepRecords
from parity.golden.values import value_record

RNG = np.random.default_rng(0)
X, Y, Z = RNG.normal(size=(3, 64))


def step(number: int, **values: np.ndarray) -> StepRecords:
    branches = {"cond": "cond", "uncond": "uncond", "guided": ""}
    records = []
    for name, x in values.items():
        port = "noise_pred" if name in branches else name.replace("_", ".", 1) if name.startswith("latents") else name
        key = Key("transformer", number, branches.get(name, ""), f"{LOOP}:{port}")
        records.append(value_record(key, np.asarray(x, np.float32), "float32"))
    return StepRecords(number, tuple(records))


def told(*steps: tuple[StepRecords, StepRecords]) -> list[Cause]:
    glue = Glue()
    for i, (ours, theirs) in enumerate(steps):
        glue.add(ours, theirs, differs=i == len(steps) - 1)
    return glue.found


def handed(ours: np.ndarray, theirs: np.ndarray) -> list[Cause]:
    """Both sides' step 0 ends at X; they enter step 1 with these."""
    first = step(0, latents_after=X)
    return told((first, first), (step(1, latents_before=ours), step(1, latents_before=theirs)))


def test_a_side_that_goes_on_where_the_other_begins_anew_is_named() -> None:
    (cause,) = handed(Y, X)
    assert cause.cause.startswith("at step 1 the candidate goes on from the latents of the step before, the reference")
    (cause,) = handed(X, Y)
    assert cause.cause.startswith("at step 1 the reference goes on from the latents of the step before, the candidate")


def test_nothing_is_named_where_both_go_on_or_neither_does_or_the_step_before_is_unknown() -> None:
    assert handed(X, X) == []
    assert handed(Y, Z) == []
    assert told((step(1, latents_before=X), step(1, latents_before=Y))) == []
    assert handed(Y[:32], X[:32]) == [], "other latents than those the step before left"


def test_a_scheduler_that_remembers_an_earlier_stage_is_named() -> None:
    (cause,) = told((step(3, history=np.array(0)), step(3, history=np.array(2))))
    assert cause.cause.startswith("the scheduler enters step 3 with 2 predictions of earlier steps, with 0 on the ref")
    assert told((step(3, history=np.array(2)), step(3, history=np.array(2)))) == []
    assert told((step(3, history=np.array(2)), step(3))) == []


def test_a_scheduler_of_another_order_has_lost_nothing() -> None:
    """Its config says why it remembers fewer."""
    glue = Glue(settings=({"scheduler.solver_order": "2"}, {"scheduler.solver_order": "1"}))
    glue.add(step(3, history=np.array(2)), step(3, history=np.array(1)))
    assert glue.found == []


@pytest.mark.parametrize("swapped", [False, True])
def test_a_step_that_one_side_zeroes_is_named(swapped: bool) -> None:
    whole = {"cond": X, "uncond": Y, "guided": Y + 4 * (X - Y)}
    sides = step(1, **whole | {"guided": np.zeros_like(X)}), step(1, **whole)
    (cause,) = told((sides[1], sides[0]) if swapped else sides)
    zeroed, other = ("candidate", "reference") if swapped else ("reference", "candidate")
    assert cause.cause.startswith(f"at step 1 the guided prediction is zeros on the {zeroed} and not on the {other}")
    assert told((sides[0], sides[0])) == []
    broken = step(1, **whole | {"guided": np.zeros_like(X), "cond": Z})
    assert "guidance.zero_steps" not in [c.setting for c in told((broken, sides[1]))], "the branches differ before"
