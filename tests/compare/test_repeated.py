"""One value for all rows against the same value row by row: not compared, and said; what is behind the loop is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.compare.judge import Judge
from parity.compare.pairs.align import Pair
from parity.compare.result import SiteDiff
from parity.compare.unlike import COUNTS, GIVEN_ONCE, REPEATED, UNPAIRED, repeated_sites
from parity.golden.records import Record
from tests.support.made import tensor

ROW = np.random.default_rng(0).normal(size=(1, 6, 8)).astype(np.float32)
MANY = np.repeat(ROW[:, None], 5, axis=1)


def judged(a: Record, b: Record, strict: bool = False) -> SiteDiff:
    return Judge(strict_sites=strict).site(Pair(a.key, a, b))


def test_a_repeated_value_is_not_compared_and_said() -> None:
    found = judged(tensor("m:in.temb", MANY), tensor("m:in.temb", ROW))
    assert found.verdict == "unjudged"
    assert found.note.endswith(REPEATED)
    (text,) = repeated_sites([found])
    assert "first m:in.temb (shape [1, 5, 6, 8] against [1, 6, 8])" in text
    assert judged(tensor("m:in.temb", MANY), tensor("m:in.temb", ROW), strict=True).verdict != "unjudged"


def test_other_values_under_another_shape_differ() -> None:
    other = MANY.copy()
    other[0, 3] *= 1.01
    found = judged(tensor("m:in.temb", other), tensor("m:in.temb", ROW))
    assert found.verdict != "unjudged"
    assert list(repeated_sites([found])) == []


def test_the_same_values_in_another_shape_are_no_repetition() -> None:
    """A transposed tensor has the same moments, and is a fault."""
    found = judged(tensor("m:in.temb", ROW[0]), tensor("m:in.temb", ROW[0].T.copy()))
    assert not found.note.endswith(REPEATED)
    assert found.verdict != "unjudged"


@pytest.mark.parametrize(("stage", "unknown"), [("transformer", True), ("vae", False)])
def test_rows_behind_the_loop_are_no_text_and_are_compared(stage: str, unknown: bool) -> None:
    """A tap of audio that is four times as long once passed as rows that no mask pairs."""
    x = np.random.default_rng(1).normal(size=(2, 64)).astype(np.float32)
    a, b = (
        replace(r, key=replace(r.key, stage=stage)) for r in (tensor("audio:out", x[:, :16]), tensor("audio:out", x))
    )
    found = judged(a, b)
    assert (found.verdict == "unjudged") == unknown == found.note.endswith(UNPAIRED)
    assert np.isinf(found.distance.ratio) == (not unknown)


def test_an_optional_number_of_an_inner_module_against_none_is_not_compared() -> None:
    none = Record(tensor("m:in.length", ROW).key, "none")
    number = replace(none, kind="scalar", dtype="int", value=48)
    assert judged(number, none).note == judged(none, number).note == GIVEN_ONCE
    root = replace(number, key=replace(number.key, site=":in.length"))
    assert judged(root, replace(none, key=root.key)).verdict != "unjudged"


def test_numbers_and_tables_of_a_text_that_is_cut_are_not_compared() -> None:
    """A right port that cuts padded tokens off tells its rotary embedding so, which makes a shorter table."""
    number = Record(tensor("m:in.length", ROW).key, "scalar", dtype="int", value=16)
    shorter = replace(number, value=12)
    assert judged(number, shorter).note == COUNTS
    assert judged(number, number).distance.rel_l2 == 0
    for key in (replace(number.key, site=":in.length"), replace(number.key, site="m:out")):
        assert judged(replace(number, key=key), replace(shorter, key=key)).verdict != "unjudged"
    flag = replace(number, dtype="bool", value=True)
    assert judged(flag, replace(flag, value=False)).verdict != "unjudged"
    table = np.random.default_rng(2).normal(size=(16, 8)).astype(np.float32)
    assert judged(tensor("m:out", table), tensor("m:out", table[:12].copy())).note.endswith(UNPAIRED)
