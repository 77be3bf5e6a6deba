"""What a followed step says: local errors by row bin, and divergences in their places among the judged sites."""

from __future__ import annotations

import numpy as np

from parity.compare.follow import followed_errors, with_followed
from parity.compare.local import Local
from parity.compare.result import Distance, SiteDiff
from parity.golden import Floor, Key, Record, StepRecords
from parity.golden.records import Moments


def key(site: str) -> Key:
    return Key("transformer", 0, "cond", site)


def followed(apart: list[float], floor: float = 1.0) -> Local:
    at = key("m:out")
    moments = Moments(4, 0, 0, 0.0, 0.0, 0.0, 100.0)
    record = Record(at, "tensor", (4,), "float32", moments=moments, value=np.asarray(apart, np.float32))
    bins = np.full(len(apart), floor / np.sqrt(len(apart)), np.float32)
    (found,) = followed_errors(StepRecords(0, (record,), {at: Floor(floor, bins)})).values()
    return found


def test_a_difference_is_judged_as_a_whole_and_by_its_rows() -> None:
    near, whole, rows = followed([1.0, 1.0]), followed([3.0, 3.0]), followed([0.0, 0.0, 0.0, 2.6])
    assert (near.beyond, whole.beyond, rows.beyond) == (False, True, True)
    assert rows.distance.ratio < 3.0 < whole.distance.ratio
    assert (near.distance.rel_l2, near.distance.floor) == (np.sqrt(2.0) / 100.0, 0.01)


FAR, NEAR = Local(Distance(1e-5, 1e-7, 100.0), True), Local(Distance(1e-7, 1e-7, 1.0), False)


def judged(*sites: str) -> list[SiteDiff]:
    return [SiteDiff(key(s), Distance(1e-6, 1e-5, 0.1)) for s in (*sites, "loop:noise_pred")]


def test_what_was_not_a_site_stands_where_it_was_computed() -> None:
    found = {key("b.0.q:out"): NEAR, key("b.0.k:out"): FAR, key("b.0:out"): NEAR, key("b.1:out"): FAR}
    sites = with_followed(judged("b.0:in.x", "b.0:out", "b.1:out"), found)
    failing = [(d.key.site, d.birth) for d in sites if d.verdict == "fail"]
    assert failing == [("b.0.k:out", "module"), ("b.1:out", "module")]
    assert [d.key.site for d in sites] == ["b.0:in.x", "b.0.k:out", "b.0:out", "b.1:out", "loop:noise_pred"]
    last = with_followed(judged("b.0:out"), {key("b.0:out"): NEAR, key("norm:out"): FAR})
    assert [d.key.site for d in last] == ["b.0:out", "norm:out", "loop:noise_pred"]


def test_growth_that_starts_at_a_module_starts_there() -> None:
    grown = SiteDiff(key("b.0:out"), Distance(1e-4, 1e-5, 10.0), birth="amplified", verdict="fail")
    (d,) = with_followed([grown], {grown.key: FAR})
    assert (d.birth, d.local.ratio) == ("module", 100.0)


def test_a_declared_difference_explains_what_is_inside() -> None:
    found = {key("b.0.norm.linear:out"): FAR, key("b.0:out"): NEAR}
    sites = with_followed(judged("b.0:out"), found, ("*norm*",))
    assert [d.verdict for d in sites] == ["harmless", "pass", "pass"]
