"""What cannot be compared is never agreement."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parity.compare.judge import Judge
from parity.golden.records import READ
from tests.support.made import Walk, births, noise, none, tensor


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("read", ["same length", "another length", "missing"])
def test_joint_sequence_is_cleared_only_by_read_rows_that_were_compared(read: str, strict: bool) -> None:
    whole, wrong = noise(1, (1, 80, 40)), noise(2, (1, 96 if read == "another length" else 80, 40))
    walk = Walk()
    walk.site("a:in.x", 0.5)
    walk.pair(tensor("a:out", whole), tensor("a:out", wrong))
    rows = tensor(f"a:out@{READ}", whole)
    walk.pair(rows, None if read == "missing" else tensor(f"a:out@{READ}", wrong))
    walk.ends()
    diffs = walk.judge(Judge(strict_sites=strict))
    out = diffs["cond/a:out"]
    assert out.distance.rel_l2 != 0.0
    if read == "another length" and not strict:  # rows that no mask pairs, inside a port
        assert (out.verdict, math.isnan(out.distance.rel_l2)) == ("unjudged", True)
    else:
        assert births(diffs) == {"a:out": "module"}


@pytest.mark.parametrize(("value", "agrees"), [(0.0, True), (math.nan, False), (math.inf, False), (1.0, False)])
def test_masked_rows_that_one_side_leaves_out_agree_only_where_they_are_zero(value: float, agrees: bool) -> None:
    x = np.full((1, 8, 40), value, np.float32)
    walk = Walk()
    walk.pair(tensor("a:in.image", x, rows="image"), none("a:in.image"))
    walk.ends()
    assert (births(walk.judge()) == {}) is agrees
