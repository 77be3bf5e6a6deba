"""Local errors decide births, beside the numbers of the free run."""

from __future__ import annotations

import math

import numpy as np

from parity.compare.judge import ONE_SIDED
from parity.compare.local import (
    CONTRADICTED,
    Local,
    believed,
    contradicted,
    first_beyond,
    first_within,
    local_errors,
    suspect,
    with_local,
)
from parity.compare.result import Distance, SiteDiff
from parity.golden import Floor, Key, Record, StepRecords
from tests.support.made import tensor

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


NEAR, FAR = Local(Distance(1e-7, 1e-7, 1.0), False), Local(Distance(1e-3, 1e-7, 1e4), True)


def at(name: str, call: int = 0, branch: str = "cond") -> Key:
    return Key("transformer", 0, branch, name, call)


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


def born(sites: list[SiteDiff], **found: Local) -> list[str]:
    """The births that stand where these modules were run alone: `a.b` is written a__b, its second call a__b_1."""
    keys = {}
    for name, local in found.items():
        path = name.removesuffix("_1").replace("__", ".")
        keys[at(f"{path}:out", 1 if name.endswith("_1") else 0)] = local
    return [d.key.site for d in with_local(sites, keys) if d.birth in ("input", "module")]


def test_what_the_run_itself_contradicts_is_not_believed() -> None:
    """A module's own error is in its output of the run; where that is far nearer, its own program is another one."""
    far = {KEY: Local(Distance(0.2, 1e-7, 2e6), True)}
    seen = SiteDiff(KEY, Distance(2e-7, 1e-5, 0.02))
    against = contradicted([seen], far)
    assert against == {KEY}
    assert believed(far, against, far) == far, "run eagerly it differs as well: its code is wrong"
    assert believed(far, against, {}) == far, "it could not be run eagerly"
    eagerly = {KEY: Local(Distance(1e-7, 1e-7, 1.0), False)}
    (kept,) = with_local([seen], believed(far, against, eagerly))
    assert (kept.birth, kept.verdict, kept.note, kept.local.ratio) == (None, "pass", CONTRADICTED, 2e6)
    for other in (
        SiteDiff(KEY, Distance(0.15, 0.15, 1.0)),  # as near as its wide floor lets it be
        SiteDiff(KEY, Distance(math.nan, 1e-5, math.nan)),
        SiteDiff(KEY, Distance(2e-7, 1e-8, 20.0), verdict="fail"),
        SiteDiff(Key("transformer", 0, "cond", "n:out"), Distance(2e-7, 1e-5, 0.02)),
    ):
        assert contradicted([other], far) == set()


def test_inside_a_module_that_agrees_by_itself_nothing_comes_in() -> None:
    sites = walked("b:in.x!", "b.a.attention:in.q!", "b:out!", "top:in.x!")
    assert born(sites, b=NEAR) == ["b:in.x", "top:in.x"]
    assert born(sites, b=FAR) == ["b:in.x", "b.a.attention:in.q", "b:out", "top:in.x"]


def test_an_attention_call_whose_inputs_agree_tells_of_itself_where_what_is_around_it_dilutes_it() -> None:
    sites = walked("b.a.attention:in.q", "b.a.attention:out!", "b.a.norm:out", "b.a:out", "b:out")
    assert born(sites, b=NEAR, b__a=NEAR) == ["b.a.attention:out"]
    assert born(sites, b=FAR, b__a=FAR) == ["b.a.attention:out", "b.a:out", "b:out"]
    assert born(sites, b=FAR, b__a=FAR, b__a__norm=FAR) == ["b.a.norm:out", "b.a:out", "b:out"]


def test_a_module_inside_that_differs_by_itself_accounts_for_the_one_around_it() -> None:
    sites = walked("b.a:in.x!", "b.a.norm:out", "b.a.attention:in.q!", "b.a:out", "b:out")
    assert born(sites, b=FAR, b__a=FAR, b__a__norm=FAR) == ["b.a.norm:out", "b.a:out", "b:out"]
    # Its own code, where nothing inside it differs by itself.
    assert born(sites, b=FAR, b__a=FAR, b__a__norm=NEAR) == ["b.a.attention:in.q", "b.a:out", "b:out"]
    assert born(sites, b=FAR, b__a=NEAR) == ["b.a:in.x", "b:out"]


def test_a_module_called_twice_covers_what_each_call_holds() -> None:
    sites = walked("b.x:in.i!", "b:out", "b.x:in.i/1!", "b:out/1", "b.x:in.i/2!")
    assert born(sites, b=NEAR, b_1=FAR) == ["b.x:in.i", "b:out", "b.x:in.i"]
    kept = with_local(sites, {at("b:out"): NEAR, at("b:out", 1): FAR})
    assert [d.key.call for d in kept if d.birth == "input"] == [1, 2]


def test_a_call_of_its_own_says_nothing_of_a_block_that_one_side_skips() -> None:
    skipped = walked("b:in.x!", "b.n:out!", "b:out!", note=ONE_SIDED)
    assert born(skipped, b=NEAR, b__n=NEAR) == ["b:in.x", "b:out"]
    # A module that is not called where the one around it gives the same is no difference.
    fused = [*walked("b.q:in.x!", "b.q:out!", note=ONE_SIDED), *walked("b:out")]
    assert born(fused, b=NEAR, b__q=FAR) == []


def test_branches_are_judged_apart() -> None:
    sites = walked("b.a.attention:in.q!", "b:out")
    assert born(sites, b=NEAR) == []
    other = with_local(sites, {at("b:out", branch="uncond"): NEAR})
    assert [d.birth for d in other] == ["input", None]


def test_the_suspect_of_an_origin() -> None:
    found = {at("b:out"): FAR, at("c:out"): NEAR}
    assert suspect(at("b:out"), found) == suspect(at("b.a.attention:in.q"), found) == "b"
    assert suspect(at("b:in.x"), found) is None
    assert suspect(at("c.a:out"), found) is None
    assert suspect(at("b:out", branch="uncond"), found) is None
    inside = {at("b.x:out"): NEAR, at("b.y:out"): FAR, at("b.z:out"): FAR}
    assert first_beyond(inside, ("b.x", "b.y", "b.z"), at("b:out")) == at("b.y:out")
    assert first_beyond(inside, ("b.x",), at("b:out")) is None


def test_a_birth_in_the_own_code_of_the_failing_module_says_where() -> None:
    sites = walked("b.n:in.x!", "b.a.q:in.x!", "b.a.attention:out!", "b.a:out!")
    found = {at("b.a:out"): FAR, at("b.n:out"): NEAR, at("b.a.q:out"): NEAR}
    own = first_within(sites, at("b.a:out"), found)
    assert own is not None
    assert own.key.site == "b.a.q:in.x"
    assert first_within(sites[2:], at("b.a:out"), found) == sites[2]
    assert first_within(sites, at("b.n:out"), found) is None
