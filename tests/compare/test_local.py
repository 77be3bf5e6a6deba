"""Local errors decide births, beside the numbers of the free run."""

from __future__ import annotations

import math

import numpy as np

from parity.compare.local import Local, local_errors, with_local
from parity.compare.result import Distance, SiteDiff
from parity.golden import Floor, Key, Record, StepRecords
from tests.compare.make_records import tensor

KEY = Key("transformer", 0, "cond", "m:out")
X = np.random.default_rng(0).standard_normal((1, 96, 64))


def truth(floor: float) -> StepRecords:
    records = (tensor("m:out", X), tensor("m:out@padding", X), Record(Key("transformer", 0, "cond", "m:out.1"), "none"))
    return StepRecords(0, records, {KEY: Floor(floor * float(np.linalg.norm(X)))})


def local(theirs: np.ndarray, floor: float = 1e-6) -> Local:
    (found,) = local_errors(truth(floor), [tensor("m:out", theirs)]).values()
    return found


def test_within_and_beyond_the_local_floor() -> None:
    near, far = local(X * (1 + 2e-6)), local(X * (1 + 1e-4))
    assert (near.beyond, far.beyond) == (False, True)
    assert 1.5 < near.distance.ratio < 2.5


def test_what_cannot_be_compared_or_is_not_there_is_beyond() -> None:
    assert local(X[:, :5]).beyond
    (missing,) = local_errors(truth(1e-6), []).values()
    assert missing.beyond
    broken = X.copy()
    broken[0, 0, 0] = math.nan
    assert local(broken).beyond


def test_without_a_floor_nothing_agrees() -> None:
    (found,) = local_errors(StepRecords(0, (tensor("m:out", X),)), [tensor("m:out", X * 1.1)]).values()
    assert found.beyond


def site(**more: object) -> SiteDiff:
    return SiteDiff(KEY, Distance(1e-5, 1e-5, 1.0), **more)  # type: ignore[arg-type]


def test_local_evidence_makes_and_unmakes_births() -> None:
    near, far = Local(Distance(1e-7, 1e-7, 1.0), False), Local(Distance(1e-3, 1e-7, 1e4), True)
    (born,) = with_local([site()], {KEY: far})
    assert (born.birth, born.verdict, born.local.ratio) == ("module", "fail", 1e4)
    (grown,) = with_local([site(birth="module", verdict="fail")], {KEY: near})
    assert (grown.birth, grown.verdict) == ("amplified", "fail")
    (excused,) = with_local([site()], {KEY: far}, ("m",))
    assert (excused.birth, excused.verdict) == ("module", "harmless")
    assert with_local([site()], {}) == (site(),)
