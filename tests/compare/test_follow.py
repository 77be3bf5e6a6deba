"""A followed step decides births, together with the numbers of the free run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from parity.compare.births import Excuse
from parity.compare.followed import Local, doubtful, followed_errors, with_followed
from parity.compare.result import UNKNOWN, Distance, SiteDiff
from parity.records import Floor, Key, Moments, Record, StepRecords


def at(name: str, call: int = 0, branch: str = "cond") -> Key:
    return Key("transformer", 0, branch, name, call)


KEY = at("m:out")
NEAR, FAR = Local(Distance(1e-7, 1e-7, 1.0), False), Local(Distance(1e-3, 1e-7, 1e4), True)


@pytest.mark.parametrize(
    ("apart", "is_beyond", "ratio"), [([1, 1], False, 1.414), ([3, 3], True, 4.243), ([0, 0, 0, 2.6], True, 2.6)]
)
def test_followed_difference_is_judged_whole_and_by_rows(apart: list[float], is_beyond: bool, ratio: float) -> None:
    moments = Moments(4, 0, 0, 0.0, 0.0, 0.0, 100.0)
    record = Record(KEY, "tensor", (4,), "float32", moments=moments, value=np.asarray(apart, np.float32))
    bins = np.full(len(apart), 1.0 / np.sqrt(len(apart)), np.float32)
    (found,) = followed_errors(StepRecords(0, (record,), {KEY: Floor(1.0, bins)})).values()
    assert found.beyond is is_beyond
    assert (found.distance.ratio, found.distance.floor) == pytest.approx((ratio, 0.01), rel=1e-3)


def judged(*sites: str) -> list[SiteDiff]:
    return [SiteDiff(at(s), Distance(1e-6, 1e-5, 0.1)) for s in (*sites, "loop:noise_pred")]


def test_followed_sites_are_put_where_they_were_computed() -> None:
    found = {at("b.0.q:out"): NEAR, at("b.0.k:out"): FAR, at("b.0:out"): NEAR, at("b.1:out"): FAR}
    sites = with_followed(judged("b.0:in.x", "b.0:out", "b.1:out"), found)
    assert [(d.key.site, d.birth) for d in sites if d.verdict == "fail"] == [
        ("b.0.k:out", "module"),
        ("b.1:out", "module"),
    ]
    assert [d.key.site for d in sites] == ["b.0:in.x", "b.0.k:out", "b.0:out", "b.1:out", "loop:noise_pred"]
    last = with_followed(judged("b.0:out"), {at("b.0:out"): NEAR, at("norm:out"): FAR})
    assert [d.key.site for d in last] == ["b.0:out", "norm:out", "loop:noise_pred"]
    grown = SiteDiff(at("b.0:out"), Distance(1e-4, 1e-5, 10.0), birth="propagated", verdict="fail")
    assert [d.birth for d in with_followed([grown], {grown.key: FAR})] == ["module"]
    excused = with_followed(
        judged("b.0:out"), {at("b.0.norm.linear:out"): FAR, at("b.0:out"): NEAR}, (Excuse("*norm*"),)
    )
    assert [d.verdict for d in excused] == ["harmless", "pass", "pass"]


@pytest.mark.parametrize(("apart", "verdict"), [(UNKNOWN, "fail"), (Distance(1.0, 1e-7, 1e7), "not compared")])
def test_what_only_following_could_line_up_is_judged_by_it(apart: Distance, verdict: str) -> None:
    """Heads before tokens on one side; another order, which was looked at, stays what it is."""
    free = SiteDiff(at("b.norm_q:out"), apart, verdict="not compared", note="shape [1, 2, 8] against [1, 8, 2]")
    (found, *_) = with_followed([free, *judged("b:out")], {free.key: FAR, at("b:out"): NEAR})
    assert (found.verdict, found.note == "") == (verdict, verdict == "fail")


def test_a_module_of_whose_inputs_nothing_is_known_hands_on_what_differs_before_it() -> None:
    found = {at("b.0.q:out"): FAR, at("b.0:out"): NEAR}
    free = [
        SiteDiff(at(site), Distance(1e-3, 1e-7, 1e4), birth="module", verdict="fail") for site in ("x:out", "y:out")
    ]
    sites = with_followed([free[0], *judged("b.0:out", "y:in.x")[:2], free[1]], found)
    assert [(d.key.site, d.birth) for d in sites if d.verdict == "fail"] == [
        ("x:out", "module"),  # before it nothing differs
        ("b.0.q:out", "module"),
        ("y:out", "module"),  # whose input agrees
    ]
    sites = with_followed([*judged("b.0:out")[:1], free[1]], found)
    assert [(d.key.site, d.birth) for d in sites if d.birth] == [("b.0.q:out", "module"), ("y:out", "propagated")]


@pytest.mark.parametrize(("own", "birth"), [(3.5e-7, "module"), (1e-7, "propagated")])
def test_a_difference_that_following_leaves_as_it_is_was_not_handed_on(own: float, birth: str) -> None:
    """Its two floors are of other draws; what fails alone is listed beside another fault too."""
    free = SiteDiff(at("rope:out"), Distance(3.6e-7, 1e-7, 3.6), birth="module", verdict="fail")
    (found, *_) = with_followed([free, *judged("b:out")], {free.key: Local(Distance(own, 2e-7, own / 2e-7), False)})
    assert found.birth == birth


@pytest.mark.parametrize(
    ("beyond", "birth"),
    [
        ("b.0.attn.out:in.x", "input"),  # of the sites, and behind it
        ("b.0.attn.q:out", "propagated"),  # before it
        ("b.0.attn.norm:out", "propagated"),  # not among the sites: it may come before it
    ],
)
def test_an_input_is_accounted_for_by_what_may_come_before_it_alone(beyond: str, birth: str) -> None:
    far = Distance(1e-1, 1e-7, 1e6)
    key = SiteDiff(at("b.0.attn.attention:in.key"), far, dtypes=("float32",) * 2, birth="input", verdict="fail")
    q, out, *rest = judged("b.0.attn.q:out", "b.0.attn.out:in.x", "b.0:out")
    sites = with_followed([q, key, out, *rest], {at(beyond): FAR, at("b.0:out"): NEAR})
    assert [d.birth for d in sites if d.key == key.key] == [birth]


def test_what_ran_before_a_difference_beside_the_sites_is_not_accounted_for_by_it() -> None:
    """Positions that the candidate does not hand out."""
    ids = SiteDiff(at("embed:in.ids"), Distance(1.0, 0.0, np.inf), dtypes=("int64",) * 2, birth="input", verdict="fail")
    found = {at("x:out"): NEAR, at("b.0.ff:in.x"): FAR, at("b.0:out"): NEAR}
    sites = with_followed([ids, *judged("x:out", "b.0:out")], found)
    assert [(d.key.site, d.birth) for d in sites if d.birth] == [("embed:in.ids", "input"), ("b.0.ff:in.x", "input")]


# --- modules that deserve a closer look ------------------------------------------------------------------------

MODULES = ("a", "a.attn", "b", "c")


@pytest.mark.parametrize(
    ("ratios", "modules"),
    [
        ({"a:in.x": 0.1, "a:out": 1.1}, ["a"]),
        ({"a:in.x": 0.5, "a:out": 1.4}, []),  # what is handed on leaves no doubt
        ({"a:out": 2.0, "b:in.x": 2.0, "b:out": 2.2, "c:out": 2.2}, ["a"]),
        ({"a.attn.attention:in.query": 2.0}, ["a.attn"]),  # an input is made by the module around it
        ({"b:in.x": 2.0}, []),  # by the top module's own code, which is no module to be held
    ],
)
def test_modules_above_their_floors_and_inputs_are_doubtful(ratios: dict[str, float], modules: list[str]) -> None:
    sites = [SiteDiff(at(name), Distance(r * 1e-6, 1e-6, r)) for name, r in ratios.items()]
    assert list(doubtful(sites, MODULES)) == modules
    assert doubtful([dataclasses.replace(d, verdict="harmless") for d in sites], MODULES) == ()
