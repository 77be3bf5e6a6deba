"""Local errors decide births, together with the numbers of the free run."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from parity.compare.births import ONE_SIDED, Excuse
from parity.compare.follow import followed_errors, with_followed
from parity.compare.local import CONTRADICTED, Local, believed, contradicted, doubtful, local_errors, with_local
from parity.compare.result import Distance, SiteDiff
from parity.records import Floor, Key, Moments, Record, StepRecords
from tests.support.made import none, tensor


def at(name: str, call: int = 0, branch: str = "cond") -> Key:
    return Key("transformer", 0, branch, name, call)


KEY = at("m:out")
X = np.random.default_rng(0).standard_normal((1, 96, 64))
BROKEN = np.where(np.arange(64) == 3, math.nan, X)
NEAR, FAR = Local(Distance(1e-7, 1e-7, 1.0), False), Local(Distance(1e-3, 1e-7, 1e4), True)


@pytest.mark.parametrize(
    ("theirs", "is_beyond"),
    [(X * (1 + 2e-6), False), (X * (1 + 1e-4), True), (X[:, :5], True), (BROKEN, True), (None, True)],
)
def test_a_local_error_is_beyond_its_floor_or_cannot_be_compared(theirs: np.ndarray | None, is_beyond: bool) -> None:
    records = (tensor("m:out", X), tensor("m:out@padding", X), none("m:out.1"))
    truth = StepRecords(0, records, {KEY: Floor(1e-6 * float(np.linalg.norm(X)))})
    candidate = [] if theirs is None else [tensor("m:out", theirs)]
    (found,) = local_errors(truth, candidate).values()
    assert found.beyond is is_beyond
    (found,) = local_errors(StepRecords(0, records), [tensor("m:out", X * 1.1)]).values()
    assert found.beyond  # without a floor nothing agrees


@pytest.mark.parametrize(
    ("before", "local", "excuses", "birth", "verdict"),
    [
        ({}, FAR, (), "module", "fail"),
        ({"birth": "module", "verdict": "fail"}, NEAR, (), "propagated", "fail"),
        ({}, FAR, (Excuse("m"),), "module", "harmless"),
        ({}, None, (), None, "pass"),
    ],
)
def test_local_evidence_makes_and_unmakes_births(
    before: dict[str, str], local: Local | None, excuses: tuple[Excuse, ...], birth: str | None, verdict: str
) -> None:
    site = SiteDiff(KEY, Distance(1e-5, 1e-5, 1.0), **before)  # type: ignore[arg-type]
    (found,) = with_local([site], {} if local is None else {KEY: local}, excuses)
    assert (found.birth, found.verdict) == (birth, verdict)
    assert local is None or found.local == local.distance


def walked(*names: str, **more: object) -> list[SiteDiff]:
    """Sites in execution order; one marked `!` has a birth in the free run, `name/1` is of the module's second call."""
    found = []
    for name in names:
        site, _, call = name.rstrip("!").partition("/")
        birth = ("input" if ":in" in site else "module") if name.endswith("!") else None
        verdict = "pass" if birth is None else "fail"
        far = Distance(1e-5, 1e-6, 9.0)
        found.append(SiteDiff(at(site, int(call or 0)), far, birth=birth, verdict=verdict, **more))  # type: ignore[arg-type]
    return found


CHILD = walked("b.a:in.x!", "b.a.norm:out", "b.a.attention:in.q!", "b.a:out", "b:out")
DILUTED = walked("b.a.attention:in.q", "b.a.attention:out!", "b.a.norm:out", "b.a:out", "b:out")
INSIDE = walked("b:in.x!", "b.a.attention:in.q!", "b:out!", "top:in.x!")
TWICE = walked("b.x:in.i!", "b:out", "b.x:in.i/1!", "b:out/1", "b.x:in.i/2!")
SKIPPED = walked("b:in.x!", "b.n:out!", "b:out!", note=ONE_SIDED)
FUSED = [*walked("b.q:in.x!", "b.q:out!", note=ONE_SIDED), *walked("b:out")]


@pytest.mark.parametrize(
    ("sites", "found", "births"),
    [
        # Inside a module that agrees by itself nothing comes in.
        (INSIDE, {"b": NEAR}, ["b:in.x", "top:in.x"]),
        (INSIDE, {"b": FAR}, ["b:in.x", "b.a.attention:in.q", "b:out", "top:in.x"]),
        # An attention call whose inputs agree counts by itself if what is around it dilutes its error.
        (DILUTED, {"b": NEAR, "b.a": NEAR}, ["b.a.attention:out"]),
        (DILUTED, {"b": FAR, "b.a": FAR}, ["b.a.attention:out", "b.a:out", "b:out"]),
        (DILUTED, {"b": FAR, "b.a": FAR, "b.a.norm": FAR}, ["b.a.norm:out", "b.a:out", "b:out"]),
        # A child that differs by itself accounts for the module around it; otherwise it is the module's own code.
        (CHILD, {"b": FAR, "b.a": FAR, "b.a.norm": FAR}, ["b.a.norm:out", "b.a:out", "b:out"]),
        (CHILD, {"b": FAR, "b.a": FAR, "b.a.norm": NEAR}, ["b.a.attention:in.q", "b.a:out", "b:out"]),
        (CHILD, {"b": FAR, "b.a": NEAR}, ["b.a:in.x", "b:out"]),
        # Each call of a module covers what it holds.
        (TWICE, {"b": NEAR, "b/1": FAR}, ["b.x:in.i/1", "b:out/1", "b.x:in.i/2"]),
        # A call by itself says nothing of a block that one side skips, nor of a child that the candidate has fused.
        (SKIPPED, {"b": NEAR, "b.n": NEAR}, ["b:in.x", "b:out"]),
        (FUSED, {"b": NEAR, "b.q": FAR}, []),
    ],
)
def test_births_are_placed_by_local_errors(sites: list[SiteDiff], found: dict[str, Local], births: list[str]) -> None:
    keys = {at(f"{name.partition('/')[0]}:out", int(name.partition("/")[2] or 0)): x for name, x in found.items()}
    kept = [d.key for d in with_local(sites, keys) if d.birth in ("input", "module")]
    assert [f"{key.site}/{key.call}" if key.call else key.site for key in kept] == births
    other = {dataclasses.replace(key, branch="uncond"): x for key, x in keys.items()}
    assert [d.birth for d in with_local(sites, other)] == [d.birth for d in sites]  # branches are judged apart


def test_what_the_run_itself_contradicts_is_not_believed() -> None:
    """A module's own error is in its output of the run; if that is far nearer, its program alone is another one."""
    far = {KEY: Local(Distance(0.2, 1e-7, 2e6), True)}
    seen = SiteDiff(KEY, Distance(2e-7, 1e-5, 0.02))
    against = contradicted([seen], far)
    assert against == {KEY}
    assert believed(far, against, far) == far  # run eagerly it differs as well: its code is wrong
    assert believed(far, against, {}) == far  # it could not be run eagerly
    (kept,) = with_local([seen], believed(far, against, {KEY: NEAR}))
    assert (kept.birth, kept.verdict, kept.note, kept.local.ratio) == (None, "pass", CONTRADICTED, 2e6)
    for other in (
        SiteDiff(KEY, Distance(0.15, 0.15, 1.0)),  # as near as its wide floor lets it be
        SiteDiff(KEY, Distance(math.nan, 1e-5, math.nan)),
        SiteDiff(KEY, Distance(2e-7, 1e-8, 20.0), verdict="fail"),
        SiteDiff(at("n:out"), Distance(2e-7, 1e-5, 0.02)),
    ):
        assert contradicted([other], far) == set()


# --- a followed step -------------------------------------------------------------------------------------------


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


# --- modules that deserve a closer look ------------------------------------------------------------------------

MODULES = ("a", "a.attn", "b", "c")


@pytest.mark.parametrize(
    ("ratios", "modules"),
    [
        ({"a:in.x": 0.1, "a:out": 1.1}, ["a"]),
        ({"a:in.x": 0.5, "a:out": 1.4}, []),  # what is handed on leaves no doubt
        ({"a:out": 2.0, "b:in.x": 2.0, "b:out": 2.2, "c:out": 2.2}, ["a"]),
        ({"a.attn.attention:in.query": 2.0}, ["a.attn"]),  # an input is made by the module around it
        ({"b:in.x": 2.0}, []),  # by the top module's own code, which is never run alone
    ],
)
def test_modules_above_their_floors_and_inputs_are_doubtful(ratios: dict[str, float], modules: list[str]) -> None:
    sites = [SiteDiff(at(name), Distance(r * 1e-6, 1e-6, r)) for name, r in ratios.items()]
    assert list(doubtful(sites, MODULES)) == modules
    assert doubtful([dataclasses.replace(d, verdict="harmless") for d in sites], MODULES) == ()
