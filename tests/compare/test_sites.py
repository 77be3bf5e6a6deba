"""Sites as columns are the sites that they stand for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.compare.judge import Judge
from parity.compare.result import SiteDiff
from parity.compare.sites import AllSites, Sites, how_many, picked
from parity.records import Floor, StepRecords
from parity.sketch import TOTAL
from tests.support.made import tensor

VALUES = {
    name: np.random.default_rng(i).standard_normal((1, 4, 8)).astype(np.float32)
    for i, name in enumerate(["a:in.x", "a:out", "b:in.x", "b:out@padding", "c:out"])
}


def judged(step: int, far: set[str]) -> Sites:
    """The sites of a step of which some are far apart."""
    ours = [tensor(name, x, step=step) for name, x in VALUES.items()]
    theirs = [tensor(name, x + (name in far), step=step) for name, x in VALUES.items()]
    floors = {r.key: Floor(1e-6) for r in ours}
    return Judge().step(StepRecords(step, tuple(ours), floors), StepRecords(step, tuple(theirs)))


def of_a(d: SiteDiff) -> bool:
    return d.key.module == "a"


@pytest.mark.parametrize("far", [set(), {"c:out"}, {"a:in.x", "a:out", "b:out@padding"}, set(VALUES)])
def test_columns_and_a_list_answer_alike(far: set[str]) -> None:
    steps = [judged(step, far if step else set()) for step in range(3)]
    every, listed = AllSites(steps), [d for step in steps for d in step]
    assert len(every) == len(listed)
    assert [*every] == listed
    assert [every[i] for i in range(len(listed))] == listed
    assert every[-1] == listed[-1]
    assert every[1:7] == listed[1:7]
    for verdicts in ((), ("pass",), ("fail", "ignored")):
        assert how_many(every, *verdicts) == how_many(listed, *verdicts) == sum(d.verdict in verdicts for d in listed)
        for which in (None, of_a):
            for step in (None, 2):
                found = [*picked(every, *verdicts, which=which, step=step)]
                assert found == [*picked(listed, *verdicts, which=which, step=step)]
                assert verdicts == () or {d.verdict for d in found} <= set(verdicts)
    assert how_many(every, "fail") == 2 * len(far - {"b:out@padding"})


def test_what_was_said_of_a_site_is_what_columns_say() -> None:
    sites = judged(0, {"c:out"})
    (at,) = sites.where("fail")
    sites[at] = replace(sites[at], verdict="not compared", note="looked at")
    assert sites[at - len(sites)].note == "looked at"
    assert sites.where("fail") == []
    assert sites.where("not compared", beyond=True) == [at]
    assert [d.note for d in picked(sites, "not compared")] == ["looked at"] == [d.note for d in sites if d.note]


def test_bins_whose_sums_overflow_alike_hide_no_others() -> None:
    x = (np.random.default_rng(0).standard_normal((1, 1, 65536)) * 5e36).astype(np.float32)
    y = x.copy()
    y[0, 0, :3] *= 1.01
    with np.errstate(all="ignore"):
        a, b = tensor("a:out", x), tensor("a:out", y)
    assert a.sketch is not None
    assert np.isfinite(a.sketch[:TOTAL]).all()
    assert not np.isfinite(a.sketch).all()
    floor = Floor(1e-5 * float(np.linalg.norm(x.astype(np.float64))), np.full(1, 1e31, np.float32))
    (found,) = Judge().step(StepRecords(0, (a,), {a.key: floor}), StepRecords(0, (b,)))
    assert (found.verdict, found.peak > 100) == ("fail", True)
