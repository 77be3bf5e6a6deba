"""Parts of a step: of one stage, or what both sides have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parity.compare.pairs.parts import in_common, of_stage
from parity.golden import Floor, StepRecords
from tests.support.made import tensor


def test_what_only_one_side_has_is_left_out_with_its_floor() -> None:
    a, b, c = (tensor(f"{name}:out", np.ones((2, 3), np.float32)) for name in "abc")
    reference = StepRecords(0, (a, b), {a.key: Floor(1.0), b.key: Floor(2.0)})
    ours, theirs = in_common(reference, StepRecords(0, (b, c)))
    assert [r.key.site for r in ours.records] == [r.key.site for r in theirs.records] == ["b:out"]
    assert set(ours.floors) == {b.key}


def test_what_comes_after_the_loop_is_taken_apart() -> None:
    a = tensor("a:out", np.ones((2, 3), np.float32))
    frames = replace(a, key=replace(a.key, stage="vae"))
    step = StepRecords(-1, (a, frames), {a.key: Floor(1.0)})
    assert of_stage(step, after=True).records == (frames,)
    assert of_stage(step, after=False).records == (a,)
    assert set(of_stage(step, after=False).floors) == {a.key}
