"""Sites against their floors, and where a divergence is born: neither crying wolf nor staying silent."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from parity.compare.births import Births, Excuse, excused, excuses
from parity.compare.judge import Judge
from parity.compare.metrics import UNREAD
from parity.compare.result import NAN, Distance, SiteDiff
from parity.compare.sites import beyond, severity
from parity.records import AFTER, PADDING, READ, Floor, Key, Record, StepRecords
from parity.settings import Difference
from tests.support.made import (
    FLOOR,
    Walk,
    births,
    measured_floor,
    moved,
    noise,
    none,
    scalar,
    step,
    tensor,
    tensor_record,
    walk_of,
)

INF = float("inf")
FAR = 1e5
"""Floors by which a faulty site is apart."""
X = noise(0)


# --- the rule for one site -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rel", "ratio", "peak", "expected"),
    [  # expected: severity; beyond the floor if it is more than 3
        (1e-6, 2.9, 0.0, 2.9),
        (1e-6, 3.1, 0.0, 3.1),
        (1e-6, 1.0, 4.9, 2.94),
        (1e-6, 1.0, 5.1, 3.06),
        (1e-6, 2.0, INF, INF),
        (0.0, 0.0, 0.0, 0.0),
        (1.0, INF, 0.0, INF),
        (NAN, NAN, 0.0, INF),  # a NaN on one side
        (NAN, INF, 0.0, INF),  # on one side only
        (1e-9, NAN, 0.0, INF),  # no floor: agreement is never assumed
        (0.0, NAN, 0.0, 0.0),  # no floor, and none needed
    ],
)
def test_a_site_is_beyond_three_floors_or_five_in_a_row_bin_or_element(
    rel: float, ratio: float, peak: float, expected: float
) -> None:
    found = SiteDiff(Key("transformer", 0, "cond", "a:out"), Distance(rel, 1.0, ratio), peak=peak)
    assert severity(found) == pytest.approx(expected)
    assert beyond(found) is (expected > 3.0)


@pytest.mark.parametrize("held", [False, True])
def test_a_fault_in_one_row_bin_is_beyond_whether_or_not_the_value_is_stored(held: bool) -> None:
    """Twelve floors in one of 64 bins are 1.8 in the whole; storing a site's value must not blind the judge."""
    x = noise(0, (1, 640, 40)).astype(np.float64)
    y = moved(x, 1.0)
    y[:, 100:110] += (moved(x, 12.0, seed=5) - x)[:, 100:110]
    walk = Walk()
    walk.pair(tensor("a:out", x, held=held), tensor("a:out", y, held=held))
    diffs = walk.judge()
    assert diffs["cond/a:out"].distance.ratio < 3.0
    assert births(diffs) == {"a:out": "module"}


@pytest.mark.parametrize("held", [True, False])
def test_one_wrong_element_among_many_is_beyond_if_the_value_is_stored(held: bool) -> None:
    """No norm sees it: the element is 7 floors of elements apart, the tensor 1.0 floors and its row bin as well."""
    x = noise(0, (1, 640, 400)).astype(np.float64)
    y = moved(x, 1.0)
    largest = float(np.max(np.abs(moved(x, 1.0, seed=1000) - x)))
    y[0, 77, 11] = x[0, 77, 11] + 7 * largest
    ours = tensor("a:out", x, held=held)
    walk = Walk()
    walk.pair(ours, tensor("a:out", y, held=held))
    found = walk.judge(floors={ours.key: dataclasses.replace(measured_floor(x), linf=largest)})
    assert births(found) == ({"a:out": "module"} if held else {})
    assert found["cond/a:out"].distance.ratio < 3.0


@pytest.mark.parametrize("size", [0.15, 1.0, 1.5])
def test_noise_of_the_size_of_a_measured_floor_is_no_divergence(size: float) -> None:
    """100 sites of 48 row bins, each a noisy estimate of a noisy thing: not one of them may cry wolf."""
    walk, floors = Walk(), {}
    for i in range(100):
        x = noise(i).astype(np.float64)
        walk.pair(tensor(f"m{i}:out", x), tensor(f"m{i}:out", moved(x, size, seed=i)))
        floors[walk.reference[-1].key] = measured_floor(x)
    assert births(walk.judge(floors=floors)) == {}


# --- births ----------------------------------------------------------------------------------------------------

BIRTHS: dict[str, tuple[dict[str, float], dict[str, str]]] = {
    "agreement": ({"a:in.x": 0.5, "a:out": 1.0, "b:in.x": 2.9, "b:out": 2.9}, {}),
    "inputs agree, output differs, the rest inherits": (
        {"a:in.x": 0.5, "a:out": 1.0, "b:in.x": 1.0, "b:out": FAR, "c:in.x": FAR, "c:out": 2 * FAR},
        {"b:out": "module", "c:in.x": "propagated", "c:out": "propagated"},
    ),
    "an input differs though its producer agreed": (
        {"a:in.x": 0.0, "a:out": 0.5, "b:in.x": FAR, "b:out": FAR},
        {"b:in.x": "input", "b:out": "propagated"},
    ),
    "the inner module comes before those around it": (
        {"b:in.x": 0, "b.attn:in.x": 0, "b.attn.attention:in.query": 0, "b.attn.attention:out": FAR, "b.attn:out": FAR,
         "b:out": FAR},
        {"b.attn.attention:out": "module", "b.attn:out": "propagated", "b:out": "propagated"},
    ),
    "two faults side by side": (
        {"image:in.x": 0, "image:out": FAR, "text:in.x": 0, "text:out": FAR, "joint:in.x": FAR, "joint:out": 2 * FAR},
        {"image:out": "module", "text:out": "module", "joint:in.x": "propagated", "joint:out": "propagated"},
    ),
    "each branch has its own birth": (
        {"a:in.x": 0, "a:out": FAR, "uncond/a:in.x": 0, "uncond/a:out": 0.5, "uncond/b:in.x": FAR},
        {"a:out": "module", "uncond/b:in.x": "input"},
    ),
    "modules without observed inputs": ({"a:out": FAR, "b:out": FAR}, {"a:out": "module", "b:out": "propagated"}),
    "the worst of several inputs counts": (
        {"a:in.x": 0.1, "a:in.y": FAR, "a:in.z": 0.2, "a:out": 2 * FAR},
        {"a:in.y": "input", "a:out": "propagated"},
    ),
    "an input just within and an output just beyond is growth": (
        {"a:in.x": 0.0, "a:out": 1.0, "b:in.x": 2.5, "b:out": 5.0},
        {"b:out": "propagated"},
    ),
    "an input within its limit excuses no output far beyond": ({"a:in.x": 2.5, "a:out": 50.0}, {"a:out": "module"}),
    "a jump at an input cannot come from a producer at four floors": (
        {"a:in.x": 2.5, "a:out": 4.0, "b:in.x": FAR, "b:out": FAR},
        {"a:out": "propagated", "b:in.x": "input", "b:out": "propagated"},
    ),
    "a wrong input behind a divergence of its size is inherited": (
        {"a:in.x": 0.0, "a:out": FAR, "b:in.x": FAR, "b:out": FAR},
        {"a:out": "module", "b:in.x": "propagated", "b:out": "propagated"},
    ),
    "wrong guidance": (
        {"cond/loop:noise_pred": 0.5, "uncond/loop:noise_pred": 0.5, "loop:noise_pred": FAR, "loop:latents.after": FAR},
        {"loop:noise_pred": "module", "loop:latents.after": "propagated"},
    ),
    "guidance that amplifies rounding": (
        {"cond/loop:noise_pred": 2.5, "uncond/loop:noise_pred": 2.5, "loop:noise_pred": 6.0},
        {"loop:noise_pred": "propagated"},
    ),
    "a wrong scheduler step": (
        {"loop:sigma": 0, "loop:dt": 0, "loop:latents.before": 0, "loop:noise_pred": 0.5, "loop:latents.after": FAR},
        {"loop:latents.after": "module"},
    ),
    "a wrong dt": (
        {"loop:latents.before": 0, "loop:dt": FAR, "loop:noise_pred": 0, "loop:latents.after": FAR},
        {"loop:dt": "input", "loop:latents.after": "propagated"},
    ),
    "another schedule, of which a scheduler does not say where it stands": (
        {"schedule:sigmas": FAR, "loop:timestep": 0, "loop:latents.before": 0, "loop:noise_pred": 0,
         "loop:latents.after": FAR},
        {"schedule:sigmas": "module", "loop:latents.after": "propagated"},
    ),
    "a wrong step of a schedule that differs too": (
        {"schedule:sigmas": FAR, "loop:timestep": 0, "loop:dt": 0, "loop:latents.before": 0, "loop:noise_pred": 0,
         "loop:latents.after": FAR},
        {"schedule:sigmas": "module", "loop:latents.after": "module"},
    ),
    "arguments of the model come from outside, whatever the schedule and each other are": (
        {"schedule:sigmas": FAR, "loop:timestep": FAR, ":in.timestep": FAR, ":in.text": FAR, ":in.picture": FAR / 50,
         ":in.mask": 0.5, "a:in.x": FAR, "a:out": FAR},
        {"schedule:sigmas": "module", "loop:timestep": "propagated", ":in.timestep": "propagated", ":in.text": "input",
         ":in.picture": "input", "a:in.x": "propagated", "a:out": "propagated"},
    ),
    "so are a second model's, but for its timestep": (
        {"schedule:sigmas": FAR, "loop:timestep": FAR, "transformer_2:in.timestep": FAR, "transformer_2:in.text": FAR,
         "transformer_2.a:in.x": FAR},
        {"schedule:sigmas": "module", "loop:timestep": "propagated", "transformer_2:in.timestep": "propagated",
         "transformer_2:in.text": "input", "transformer_2.a:in.x": "propagated"},
    ),
    "an argument that another model made is handed on": (
        {"control:in.x": 0.0, "control:out": FAR, ":in.control": FAR, ":out": FAR},
        {"control:out": "module", ":in.control": "propagated", ":out": "propagated"},
    ),
    "another mask, which is no input of the attention call that it is for": (
        {"a:in.x": 0.0, "a:in.mask": FAR, "a.attention:in.query": 0.0, "a.attention:out": FAR, "a:out": FAR},
        {"a:in.mask": "input", "a.attention:out": "propagated", "a:out": "propagated"},
    ),
    "a prediction lost outside the model": (
        {":in.x": 0.0, ":out": 0.5, "cond/loop:noise_pred": FAR},
        {"loop:noise_pred": "module"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", BIRTHS.values(), ids=BIRTHS)
def test_a_divergence_is_born_once(row: tuple[dict[str, float], dict[str, str]]) -> None:
    sites, expected = row
    diffs = walk_of(sites).judge()
    assert births(diffs) == expected
    assert all((d.verdict == "fail") == (d.birth is not None) for d in diffs.values())


def test_a_second_call_is_judged_by_its_own_inputs() -> None:
    walk = Walk()
    for call, given in ((0, FAR), (1, 0.0)):
        walk.site("embed:in.x", given, call=call)
        walk.site("embed:out", FAR, call=call)
    found = [(d.key.call, d.birth) for d in Judge().step(*walk.steps())]
    assert found == [(0, "input"), (0, "propagated"), (1, None), (1, "module")]


def whole_step(at: int, before: float, block: float) -> dict[str, float]:
    """A step of both branches: latents, one block, predictions, latents."""
    sites = {"loop:timestep": 0.0, "loop:sigma": 0.0, "loop:dt": 0.0, "loop:latents.before": before}
    for branch in ("cond", "uncond"):
        sites |= {f"{branch}/block:in.x": before, f"{branch}/block:out": block}
    sites |= {f"{branch}loop:noise_pred": block for branch in ("cond/", "uncond/", "")}
    return sites | {"loop:latents.after": block}


@pytest.mark.parametrize(
    ("steps", "first"),
    [  # (latents before, block) a step; the first birth of each step
        ([(0.0, FAR), (FAR, 2 * FAR)], [("block:out", "module"), ("loop:latents.before", "propagated")]),
        ([(0.0, 0.5), (FAR, FAR)], [None, ("loop:latents.before", "input")]),  # latents that jump between two steps
        ([(0.0, 2.8), (4.0, 8.0)], [None, ("loop:latents.before", "propagated")]),  # just within, then just beyond
        ([(0.0, FAR), (0.0, FAR)], [("block:out", "module"), ("block:out", "module")]),  # forced steps
        ([(0.5, 1.0), (0.5, 1.0), (0.5, FAR)], [None, None, ("block:out", "module")]),
    ],
)
def test_later_steps_inherit_what_the_latents_carry(steps: list[tuple[float, float]], first: list[Any]) -> None:
    judge = Judge()
    for at, (values, expected) in enumerate(zip(steps, first, strict=True)):
        found = births(walk_of(whole_step(at, *values), at).judge(judge))
        assert next(iter(found.items()), None) == expected
        assert expected is None or expected[1] != "propagated" or set(found.values()) == {"propagated"}


@pytest.mark.parametrize(
    ("before", "after", "birth"),
    [
        ({":in.history": 0.0}, {":in.more": 0.0, ":in.history": FAR}, "propagated"),  # another than at the first step
        ({":in.history": 0.0}, {":in.history": FAR}, "input"),  # the reference gives the same at every step
        ({}, {":in.history": FAR}, "input"),
        ({":in.timestep": 0.0}, {":in.more": 0.0, ":in.timestep": FAR}, "input"),  # which no latents are in
    ],
)
@pytest.mark.parametrize("handed", ["loop:latents.after", ":out"])  # where no scheduler is recorded no latents are
def test_an_argument_that_steps_may_be_in_inherits_what_they_carry(
    before: dict[str, float], after: dict[str, float], birth: str, handed: str
) -> None:
    """A loop in segments gives its model what the segment before came to."""
    judge = Judge()
    walk_of({**before, handed: FAR}).judge(judge)
    assert births(walk_of(after, 1).judge(judge)) == {[*after][-1]: birth}


@pytest.mark.parametrize(
    ("site", "shape", "birth"),
    [
        (":in.text", (1, 7, 40), "input"),
        (":in.timestep", (1,), "input"),
        (":in.hidden_states", (1, 36, 2, 6, 8), "propagated"),  # latents, and channels of a condition beside them
        (":in.packed", (1, 24, 16), "propagated"),  # as many values
        ("embed:in.t", (1,), "propagated"),
    ],
)
def test_an_argument_that_no_latents_are_in_does_not_inherit_from_them(
    site: str, shape: tuple[int, ...], birth: str
) -> None:
    """Behind other noise, a wrong text or timestep was never listed."""
    walk, latents, x = Walk(), noise(1, (1, 4, 2, 6, 8)), noise(2, shape)
    walk.pair(tensor("loop:latents.before", latents, branch=""), tensor("loop:latents.before", -latents, branch=""))
    walk.pair(tensor(site, x), tensor(site, 1.1 * x))
    assert births(walk.judge())[site] == birth
    handed = Walk(
        reference=walk.reference[:1], candidate=walk.candidate[:1]
    )  # the argument agrees, and goes in as it is
    handed.pair(tensor(":in.given", x), tensor(":in.given", x))
    handed.pair(tensor("embed:in.t", x), tensor("embed:in.t", 1.1 * x))
    assert births(handed.judge())["embed:in.t"] == "input"


@pytest.mark.parametrize(("rounded", "birth"), [(1e-3, "propagated"), (0.0, "module")])
@pytest.mark.parametrize("shape", [(1,), ()])
def test_an_embedding_follows_a_timestep_that_is_rounded_within_its_floor(
    rounded: float, birth: str, shape: tuple[int, ...]
) -> None:
    walk, t = Walk(), np.full(shape, 700.0, np.float32)
    given = tensor("time:in.t", t), tensor("time:in.t", np.asarray(t * (1 + rounded), np.float32))
    walk.pair(*given)
    walk.site("time:out", FAR)
    assert births(walk.judge(floors={given[0].key: Floor(1.0)})) == {"time:out": birth}


@pytest.mark.parametrize(
    ("given", "made", "moves", "verdict"),
    [
        (0.0, 0.5, 0.2, "fail"),
        (0.0, 0.08, 0.2, "pass"),  # what a dtype may make of the same
        (1e-3, 0.5, 0.2, "pass"),  # of a timestep that is rounded it makes other phases
        (0.0, 0.5, 1e-7, "pass"),  # and of one that it multiplies inside
    ],
)
def test_a_module_that_is_given_the_same_is_judged_without_the_rounding_of_its_inputs(
    given: float, made: float, moves: float, verdict: str
) -> None:
    walk, x, y = Walk(), noise(1, (1, 40)), noise(2, (1, 40))
    walk.pair(tensor("time:in.t", x), tensor("time:in.t", x + given * y))
    out = tensor("time:out", x), tensor("time:out", x + made * y * np.linalg.norm(x) / np.linalg.norm(y))
    walk.pair(*out)
    floors = {r.key: Floor((moves if r.key.is_input else 0.2) * r.moments.l2) for r in walk.reference if r.moments}
    assert walk.judge(floors=floors)["cond/time:out"].verdict == verdict


@pytest.mark.parametrize(("wrong", "birth"), [(0.0, "propagated"), (0.1, "input")])
def test_latents_that_are_scaled_by_sigma_differ_as_the_schedule_does(wrong: float, birth: str) -> None:
    latents = noise(1, (1, 4, 2, 6, 8))
    walk, scaled = walk_of({"schedule:sigmas": FAR}), 0.9 * latents + wrong * noise(2, latents.shape)
    walk.pair(*(tensor("loop:latents.before", latents, branch="") for _ in range(2)))
    walk.pair(tensor(":in.hidden_states", latents), tensor(":in.hidden_states", scaled))
    assert births(walk.judge())[":in.hidden_states"] == birth


@pytest.mark.parametrize(("rows", "birth"), [(6, "propagated"), (1, "input")])
def test_what_holds_all_branches_at_once_is_made_of_each_of_them(rows: int, birth: str) -> None:
    """Frames that are folded into the batch, and a picture that one branch alone is given."""
    walk, folded = walk_of({"cond/:in.image": FAR, "uncond/:in.image": 0.0}), noise(5, (rows, 40, 8))
    for branch in ("uncond", "cond"):
        walk.pair(*(tensor("conv:in.x", x, branch=branch) for x in (folded, -folded)))
    assert walk.judge()["uncond/conv:in.x"].birth == birth


def test_frames_are_made_of_all_that_is_decoded() -> None:
    walk, far = Walk(-1), {"decode:out 1": FAR, "decode:frames 0": FAR}
    for i, name in enumerate(("decode:in.z 0", "decode:out 0", "decode:in.z 1", "decode:out 1", "decode:frames 0")):
        site, _, call = name.partition(" ")
        key, x = Key(AFTER, -1, "", site, int(call)), noise(i).astype(np.float64)
        walk.pair(tensor_record(key, x), tensor_record(key, moved(x, far.get(name, 0.0))))
    assert [d.birth for d in Judge().step(*walk.steps())] == [None, None, None, "module", "propagated"]


@pytest.mark.parametrize(
    ("site", "second", "births_of"),
    [
        (":in.guidance", 6.0, ["propagated", "input"]),  # the same at each step: no schedule is in it
        (":in.number", 3.0, ["propagated", "propagated"]),
        (":in.timestep", 3.0, ["propagated", "propagated"]),
        (":in.added_time_ids", 6.0, ["propagated", "input"]),  # whatever its name
    ],
)
def test_a_number_that_stays_as_it_was_is_none_of_the_schedule(site: str, second: float, births_of: list[str]) -> None:
    judge, found = Judge(), []
    for at, value in enumerate((6.0, second)):
        walk, x = walk_of({"schedule:sigmas": FAR} if at == 0 else {}, at), np.array([value], np.float32)
        walk.pair(*(tensor("loop:timestep", y, branch="", step=at) for y in (x, 1.1 * x)))
        walk.pair(*(tensor(site, y, step=at) for y in (x, 1.1 * x)))
        found.append(births(walk.judge(judge))[site])
    assert found == births_of


def test_a_timestep_that_a_second_generation_begins_with_again_is_of_the_schedule() -> None:
    judge = Judge()
    for at, value in enumerate((6.0, 3.0, 6.0)):
        walk, x = walk_of({"schedule:sigmas": FAR}, at), np.array([value], np.float32)
        walk.pair(*(tensor(":in.timestep", y, step=at) for y in (x, 1.1 * x)))
        assert births(walk.judge(judge))[":in.timestep"] == "propagated"


def test_a_timestep_of_a_step_that_did_not_end_is_of_the_schedule_that_differed_before() -> None:
    judge = Judge()
    assert births(walk_of({"schedule:sigmas": FAR, ":in.timestep": FAR}).judge(judge))[":in.timestep"] == "propagated"
    assert births(walk_of({":in.timestep": FAR}, 1).judge(judge))[":in.timestep"] == "propagated"
    assert births(walk_of({":in.timestep": FAR}, 1).judge())[":in.timestep"] == "input"


@pytest.mark.parametrize(
    ("own", "ours", "theirs", "birth"),
    [
        ((857.6, 833.6), 857.6, 833.6, "propagated"),
        ((857.6, 833.6), 857.6, 833.0, "input"),  # rounded
        ((857.6, 833.6), 0.8576, 0.8336, "propagated"),
        ((857.6, 833.6), 857.6, 0.8336, "input"),
        ((857.6, 833.6), 142.4, 166.4, "propagated"),  # 1000 - t: nobody knows what of
        ((0.0, 142.9), 0.0, 142.9, "propagated"),  # 0 is a thousandth of itself
        ((0.0, 142.9), 0.0, 0.1429, "propagated"),
        ((0.0, 142.9), 0.0, 143.0, "input"),
    ],
)
def test_another_schedule_explains_no_timestep_that_is_not_its_own(
    own: tuple[float, float], ours: float, theirs: float, birth: str
) -> None:
    walk = walk_of({"schedule:sigmas": FAR})
    for site, branch, pair in (("loop:timestep", "", own), (":in.timestep", "cond", (ours, theirs))):
        walk.pair(*(tensor(site, np.array([x]), branch=branch, held=True) for x in pair))
    assert births(walk.judge())[":in.timestep"] == birth


def test_an_argument_that_stays_as_it_was_holds_no_latents_whatever_its_shape() -> None:
    judge, image, found = Judge(), noise(2, (1, 4, 2, 6, 8)), []
    for at in range(2):
        walk, x = Walk(at), noise(10 + at, (1, 4, 2, 6, 8))
        walk.pair(*(tensor("loop:latents.before", y, branch="", step=at) for y in (x, -x)))
        walk.pair(*(tensor(":in.image", y, step=at) for y in (image, 1.1 * image)))
        found.append(births(walk.judge(judge))[":in.image"])
    assert found == ["propagated", "input"]


@pytest.mark.parametrize(("latents", "birth"), [(0.5, "input"), (2.5, "propagated")])
def test_what_is_made_of_latents_that_are_just_within_their_limit_may_be_just_beyond(
    latents: float, birth: str
) -> None:
    walk = walk_of({"loop:latents.before": latents, "a:in.x": 4.0})
    assert births(walk.judge())["a:in.x"] == birth


# --- pairs of any kind -----------------------------------------------------------------------------------------

MASK = np.where(np.arange(64) < 38, 0.0, -INF).astype(np.float32)[None, None, None]
OTHER = np.where(np.arange(64) < 40, 0.0, -INF).astype(np.float32)[None, None, None]
ZEROS = np.zeros((1, 96, 40), np.float32)
HALF = np.where(np.arange(96)[:, None] < 48, 0.0, X.astype(np.float64))
TIMES, ONE_LESS = np.full(48, 999.0, np.float32), np.where(np.arange(48) < 47, 1.0, 0.99).astype(np.float32)
INTS = np.arange(4000, dtype=np.int32).reshape(1, 100, 40)


@pytest.mark.parametrize(
    ("ours", "theirs", "birth", "note"),
    [
        (none("a:in.x"), tensor("a:in.x", X), "input", "None against a tensor"),
        (tensor("a:in.x", X), none("a:in.x"), "input", "a tensor against None"),
        (none("a:in.x"), None, None, ""),
        (none("a:in.x"), none("a:in.x"), None, ""),
        (scalar("a:in.x", True), scalar("a:in.x", False), "input", "True against False"),
        (tensor("a:out", X), tensor("a:out", X[:, :-1]), "module", "shape [1, 96, 40] against [1, 95, 40]"),
        (tensor("a:in.x", X), None, "input", "observed on one side only"),
        (None, tensor("a:in.x", X), "input", "observed on one side only"),
        (tensor("a:in.m", MASK), tensor("a:in.m", MASK.copy()), None, ""),  # the same infinities
        (tensor("a:in.m", MASK), tensor("a:in.m", OTHER), "input", ""),
        (tensor("a:out", ZEROS), tensor("a:out", ZEROS.copy()), None, ""),
        (tensor("a:out", HALF), tensor("a:out", moved(HALF, 1.0) * (HALF != 0)), None, ""),  # row bins of zeros
        (tensor("a:in.i", INTS), tensor("a:in.i", INTS.astype(np.int64)), None, ""),
        (tensor("a:in.i", INTS), tensor("a:in.i", np.roll(INTS, 1, axis=1)), "input", ""),
        # A number for each token against one for all.
        (tensor("a:in.t", TIMES), tensor("a:in.t", TIMES[:1]), None, ""),
        (tensor("a:in.t", TIMES[:1]), tensor("a:in.t", TIMES), None, ""),
        (tensor("a:in.t", TIMES * ONE_LESS), tensor("a:in.t", TIMES[:1]), "input", ""),
        (tensor("a:in.t", TIMES[:1]), tensor("a:in.t", TIMES * ONE_LESS), "input", ""),
        (tensor("a:in.t", TIMES[:2]), tensor("a:in.t", TIMES), "input", "shape [2] against [48]"),
    ],
)
def test_any_two_records_are_judged(ours: Record | None, theirs: Record | None, birth: str | None, note: str) -> None:
    walk = walk_of({"z:in.x": 0.5, "z:out": 0.5})
    walk.pair(ours, theirs)
    floors = {r.key: Floor(0.0, np.zeros(50, np.float32)) for r in (ours,) if r is not None and "int" in r.dtype}
    found = walk.judge(floors=floors)
    assert list(births(found).values()) == ([birth] if birth else [])
    site = (ours or theirs).key.site  # type: ignore[union-attr]
    assert f"cond/{site}" not in found or found[f"cond/{site}"].note == note


def test_what_is_made_of_a_number_is_no_number_for_each_token() -> None:
    """A port computes the sinusoids in front of a module that does so itself in the reference."""
    walk = walk_of({"z:in.x": 0.5, "z:out": 0.5})
    walk.pair(tensor("a:in.t", TIMES[:1]), tensor("a:in.t", np.cos(TIMES * np.arange(48, dtype=np.float32))[None]))
    found = walk.judge(Judge(port=True))["cond/a:in.t"]
    assert (found.verdict, found.note) == ("not compared", "shape [1] against [1, 48]")


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_candidates_nan_is_born_at_its_first_producer(bad: float) -> None:
    walk = walk_of({"a:out": 0.5})
    y = X.copy()
    y[0, 5, 5] = bad
    for site in ("b:in.x", "b:out", "c:in.x", "c:out"):
        walk.pair(tensor(site, X), tensor(site, X if site == "b:in.x" else y))
    diffs = walk.judge()
    assert births(diffs) == {"b:out": "module", "c:in.x": "propagated", "c:out": "propagated"}
    assert diffs["cond/b:out"].nonfinite == (0, 1)


@pytest.mark.parametrize(
    ("y", "floor", "verdict"),
    [
        (X.copy(), None, "pass"),
        (moved(X, 1e-3), None, "inconclusive"),
        (moved(X, FAR), Floor(INF), "inconclusive"),
        (moved(X, FAR), Floor(NAN), "inconclusive"),
    ],
)
def test_without_a_floor_only_equality_agrees(y: np.ndarray, floor: Floor | None, verdict: str) -> None:
    ours = tensor("a:out", X)
    reference = StepRecords(0, (ours,), {} if floor is None else {ours.key: floor})
    (found,) = Judge().step(reference, StepRecords(0, (tensor("a:out", y),)))
    assert (found.verdict, found.birth) == (verdict, None)


# --- padding and excuses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [moved(X, FAR), np.full_like(X, NAN), X[:, :80]], ids=["far", "nan", "another length"])
def test_padding_never_decides(y: np.ndarray) -> None:
    walk = walk_of({"a:in.x": 0.5})
    walk.pair(tensor(f"a:in.x@{PADDING}", X), tensor(f"a:in.x@{PADDING}", y))
    walk.site("a:out", FAR)
    walk.pair(tensor(f"a:out@{PADDING}", X), tensor(f"a:out@{PADDING}", y))
    walk.site("b:in.x", FAR)
    diffs = walk.judge()
    assert births(diffs) == {"a:out": "module", "b:in.x": "propagated"}
    assert [d.verdict for site, d in diffs.items() if PADDING in site] == ["ignored", "ignored"]


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (moved(X, 0.5), {}),
        (moved(X, FAR), {"a:out": "module", "b:in.x": "propagated"}),  # rows that are read differ too
        (X[:, :80], {"a:out": "module", "b:in.x": "propagated"}),  # what was not compared clears nothing
        (None, {"a:out": "module", "b:in.x": "propagated"}),  # one side has no mask
    ],
)
def test_joint_sequence_that_differs_in_unread_rows_agrees(read: np.ndarray | None, expected: dict[str, str]) -> None:
    walk = Walk()
    for site in ("a:in.x", "a:out", "b:in.x"):
        walk.site(site, 0.5 if site == "a:in.x" else FAR)
        rows = moved(X, 0.5) if site == "a:in.x" and read is not None else read
        walk.pair(tensor(f"{site}@{READ}", X), None if rows is None else tensor(f"{site}@{READ}", rows))
    diffs = walk.judge()
    assert births(diffs) == expected
    out = diffs["cond/a:out"]
    assert (out.note == UNREAD) is (not expected)
    assert out.distance.ratio == pytest.approx(0.5, rel=0.2) if not expected else out.distance.ratio > 1e4
    assert diffs[f"cond/a:out@{READ}"].verdict == "ignored"


def test_rows_that_are_read_and_equal_need_no_floor() -> None:
    ours, read = tensor("a:out", X), tensor(f"a:out@{READ}", X)
    theirs = StepRecords(0, (tensor("a:out", moved(X, FAR)), read))
    found = {d.key.site: d for d in Judge().step(StepRecords(0, (ours, read)), theirs)}
    assert (found["a:out"].verdict, found["a:out"].note) == ("pass", UNREAD)


def test_rows_that_are_read_are_not_hidden_by_many_that_are_not() -> None:
    walk, unread = Walk(), 1e8 * noise(7)
    for site in ("a:in.x", "a:out"):
        read = moved(X, 0.5 if site == "a:in.x" else FAR)
        walk.pair(*(tensor(site, np.concatenate([x, unread], 1)) for x in (X, read)))
        walk.pair(tensor(f"{site}@{READ}", X), tensor(f"{site}@{READ}", read))
    assert births(walk.judge()) == {"a:out": "module"}


def test_other_rows_of_what_agrees_are_no_difference() -> None:
    walk = Walk()
    for site in ("a:in.x", "a:out"):
        walk.site(site, 0.5)
        walk.pair(tensor(f"{site}@{READ}", X), tensor(f"{site}@{READ}", moved(X, FAR)))
    assert births(walk.judge()) == {}


@pytest.mark.parametrize(
    ("block", "expected", "verdict"),
    [
        ((0.5, FAR), {"text:out": "module", "block:out": "module"}, "fail"),  # an excuse hides nothing behind it
        ((FAR / 2, FAR), {"text:out": "module", "block:in.x": "propagated", "block:out": "propagated"}, "fail"),
        ((0.5, 1.0), {"text:out": "module"}, "pass"),
    ],
)
def test_an_excused_site_is_harmless_and_what_it_hands_on_is_inherited(
    block: tuple[float, float], expected: dict[str, str], verdict: str
) -> None:
    sites = {"text:in.x": 0.0, "text:out": FAR, "block:in.x": block[0], "block:out": block[1]}
    diffs = walk_of(sites).judge(Judge(Births((Excuse("text"),))))
    assert births(diffs) == expected
    assert (diffs["cond/text:out"].verdict, diffs["cond/block:out"].verdict) == ("harmless", verdict)
    within = walk_of(dict.fromkeys(sites, 1.0)).judge(Judge(Births((Excuse("text"),))))
    assert {d.verdict for d in within.values()} == {"pass"}


@pytest.mark.parametrize(("far", "verdict"), [(0.05, "harmless"), (1.43, "fail")])
def test_a_setting_that_only_rounds_excuses_no_more_than_rounding(far: float, verdict: str) -> None:
    declared = excuses([Difference("norm_dtype", "model", "bfloat16")])
    diffs = walk_of({"a.norm1:in.x": 0.0, "a.norm1:out": far / FLOOR}).judge(Judge(Births(declared)))
    assert diffs["cond/a.norm1:out"].verdict == verdict
    layout = excuses([Difference("vision_states", "zeros", "none")])
    diffs = walk_of({"image_embedder:in.x": 0.0, "image_embedder:out": 1.43 / FLOOR}).judge(Judge(Births(layout)))
    assert diffs["cond/image_embedder:out"].verdict == "harmless"


@pytest.mark.parametrize(
    ("module", "excuses_it"),
    [
        ("norm", True), ("a.norm1", True), ("a.norm1.linear", True), ("a.norm_q", True), ("layernorm", True),
        ("normal_head", False), ("a.normalizer", False),
    ],
)  # fmt: skip
def test_a_module_that_only_carries_the_word_is_no_norm(module: str, excuses_it: bool) -> None:
    declared = excuses([Difference("norm_dtype", "model", "bfloat16")])
    assert excused(Key("transformer", 0, "cond", f"{module}:out"), 0.001, declared) == excuses_it


@pytest.mark.parametrize(
    ("site", "at"),
    [  # the steps of 0 to 3 at which a cache of blocks 1 to 2 with an interval of 2 excuses a site
        ("transformer_blocks.1:out", {1, 3}),
        ("transformer_blocks.2.attn.attention:in.query", {1, 3}),
        ("transformer_blocks.3:in.hidden_states", {1, 3}),
        ("transformer_blocks.3:out", set()),
        ("transformer_blocks.10:out", set()),
    ],
)
def test_a_declared_cache_excuses_its_blocks_at_the_steps_that_skip_them(site: str, at: set[int]) -> None:
    for difference in (Difference("cache", "off", "deepcache:1,3,2"), Difference("cache", "deepcache:1,3,2", "off")):
        found = {i for i in range(4) if excused(Key("transformer", i, "cond", site), 0.5, excuses([difference]))}
        assert found == at
    assert excuses([Difference("cache", "off", "off")]) == ()
    walk = walk_of({"a:out": 0.0}, 1)
    walk.pair(tensor(site, X, step=1), None)
    judged = walk.judge(Judge(Births(excuses([Difference("cache", "off", "deepcache:1,3,2")]))))
    assert judged[f"cond/{site}"].verdict == ("harmless" if at else "fail")


@pytest.mark.parametrize(("times", "birth"), [(5.0, "propagated"), (50.0, "input")])
def test_an_argument_that_holds_wrong_latents_may_be_wrong_by_what_else_it_holds(times: float, birth: str) -> None:
    """Latents rounded to 16 bits, beside a mask of a picture that is inverted."""
    found = births(walk_of({"loop:latents.before": 1e3, ":in.hidden_states": 1e3 * times}).judge())
    assert found == {"loop:latents.before": "input", ":in.hidden_states": birth}


# --- ports, which are built differently ------------------------------------------------------------------------

LAID = np.random.default_rng(0).standard_normal((1, 4, 2, 6)).astype(np.float32)
TOKENS = np.zeros((1, 4, 2), np.float32)


def mask(valid: int, rows: int) -> Record:
    return tensor("blocks.0:in.attention_mask", (np.arange(rows) < valid).astype(np.float32)[None])


@pytest.mark.parametrize(
    ("ours", "theirs", "own", "port"),
    [  # verdicts of one implementation, and of a port
        (tensor("a.fused:out", X), None, "fail", ""),
        # None where the reference has zeros behind a mask.
        (dataclasses.replace(tensor("b.0:in.v", TOKENS), rows="v"), none("b.0:in.v"), "pass", "pass"),
        *(
            (dataclasses.replace(tensor("b.0:in.v", TOKENS + x), rows="v"), none("b.0:in.v"), "fail", "not compared")
            for x in (1.0, NAN, INF)
        ),
        # What one side gives and the other does not is left to what reads it.
        (tensor(":in.vision", TOKENS), none(":in.vision"), "fail", "not compared"),
        (tensor(":in.vision", TOKENS + 1e-3), none(":in.vision"), "fail", "fail"),
        (tensor(":in.vision", TOKENS * NAN), none(":in.vision"), "fail", "fail"),
        (tensor("b.0:in.tokens", TOKENS + 1e-3), none("b.0:in.tokens"), "fail", "not compared"),
        (tensor("b.0:in.attention_mask", TOKENS), none("b.0:in.attention_mask"), "fail", "not compared"),
        (tensor("b.0:in.attention_mask", TOKENS - 1.0), none("b.0:in.attention_mask"), "fail", "fail"),
        *(
            (tensor("b.0:in.attention_mask", TOKENS.astype(kind)), none("b.0:in.attention_mask"), "fail", "fail")
            for kind in (bool, np.int64)
        ),
        # Masks that let as many rows through may be one, whatever is padded.
        (mask(6, 12), mask(6, 8), "not compared", "not compared"),
        (mask(6, 12), mask(7, 8), "fail", "not compared"),
        # Rows that no mask pairs.
        (tensor("e:in.ids", np.zeros((1, 64))), tensor("e:in.ids", np.zeros((1, 60))), "fail", "not compared"),
        # Another layout is not compared, whatever the norms.
        (tensor("r:in.x", LAID), tensor("r:in.x", np.moveaxis(LAID, 1, -1)), "fail", "not compared"),
        (tensor("r:in.x", LAID), tensor("r:in.x", np.moveaxis(LAID, 1, -1) * np.float32(1.1)), "fail", "not compared"),
    ],
)
def test_a_port_is_judged_by_what_can_be_paired(ours: Record, theirs: Record | None, own: str, port: str) -> None:
    candidate = StepRecords(0, () if theirs is None else (theirs,))
    for judge, verdict in ((Judge(), own), (Judge(port=True), port)):
        for a, b in ((step([ours]), candidate), (step(candidate.records), StepRecords(0, (ours,)))):
            assert [d.verdict for d in judge.step(a, b)] == ([verdict] if verdict else [])


def test_moments_alone_are_not_compared() -> None:
    record = dataclasses.replace(tensor("a:out", X), sketch=None)
    (found,) = Judge().step(StepRecords(0, (record,), {record.key: Floor(1.0)}), StepRecords(0, (record,)))
    assert (found.verdict, found.note) == ("not compared", "no sketch is held")


def test_row_bins_are_kept_of_what_does_not_pass() -> None:
    (passes, fails) = Judge().step(*walk_of({"a:in.x": 0.5, "a:out": 1e4}).steps())
    assert (passes.verdict, fails.verdict) == ("pass", "fail")
    assert len(passes.bins) == 0
    assert max(fails.bins) == fails.peak > 5.0 > passes.peak > 0.0


@pytest.mark.parametrize(
    ("site", "theirs", "verdict"),
    [  # the port's `b.0.attn.to_q` holds its parameters in another order, `b.0.attn.norm` a quarter of them
        ("b.0.attn.to_q:out", X[..., ::-1], "not compared"),
        ("b.0.attn.attention:in.query", X[..., ::-1], "not compared"),  # beside it
        ("b.0.attn.norm:out", 0.25 * X, "not compared"),
        ("b.0.attn.norm:out", 0.25 * X[..., ::-1], "not compared"),
        ("b.0.attn.to_q:out", 0.5 * X, "fail"),
        ("b.0.attn.to_q:out", X + np.float32(0.01), "fail"),
        ("b.0.attn.to_q:out", noise(7), "fail"),
        ("b.0.attn.to_q:out", np.clip(X[..., ::-1], -2, 2), "fail"),
        ("b.0.attn:out", X[..., ::-1], "fail"),  # what is made of it decides
        ("b.0.ffn:out", X[..., ::-1], "fail"),
        ("proj:out", X[..., ::-1], "fail"),
    ],
)
def test_what_parameters_in_another_order_make_is_not_compared_where_it_is_so_too(
    site: str, theirs: np.ndarray, verdict: str
) -> None:
    walk = Walk()
    walk.pair(tensor(site, X), tensor(site, np.ascontiguousarray(theirs)))
    walk.site("b.1:out", 0.5)
    factors = {"b.0.attn.to_q": frozenset({1.0}), "b.0.attn.norm": frozenset({0.25})}
    found = walk.judge(Judge(port=True, laid_out=factors))
    assert [d.verdict for d in found.values()] == [verdict, "pass"]
    assert [d.verdict for d in walk.judge(Judge(port=True)).values()] == ["fail", "pass"]


@pytest.mark.parametrize(
    ("theirs", "text", "port", "verdict"),
    [
        (np.roll(np.arange(12) < 6, 3), 0.0, True, "not compared"),  # its text lies there
        (np.roll(np.arange(12) < 6, 3), 1e4, True, "fail"),
        (np.arange(12) < 7, 0.0, True, "fail"),
        (np.roll(np.arange(12) < 6, 3), 0.0, False, "fail"),
    ],
)
def test_a_port_s_mask_may_lie_elsewhere_with_the_text_that_it_reads(
    theirs: np.ndarray, text: float, port: bool, verdict: str
) -> None:
    walk = Walk()
    walk.pair(mask(6, 12), tensor("blocks.0:in.attention_mask", theirs.astype(np.float32)[None]))
    rows = [tensor("blocks.0:in.text", x.astype(np.float32), rows="text") for x in (X, moved(X, text))]
    walk.pair(*rows)
    assert next(iter(walk.judge(Judge(port=port)).values())).verdict == verdict


@pytest.mark.parametrize(("fed", "birth"), [("text", "module"), ("latents", "propagated")])
def test_what_is_made_of_arguments_that_agree_alone_is_a_difference_of_its_own(fed: str, birth: str) -> None:
    """A port that hands out what its modules give, and not what they are given, where another argument differs."""
    given = {name: noise(i) for i, name in enumerate(("latents", "text"))}
    inner, outer = noise(5), noise(6)
    ours = [
        *(tensor(f":in.{name}", x) for name, x in given.items()),
        tensor("embed:in.x", given[fed]), tensor("embed.linear:in.x", given[fed]), tensor("embed.linear:out", inner),
        tensor("embed:out", inner), tensor("proj:in.x", inner), tensor("proj:out", outer),
    ]  # fmt: skip
    theirs = [
        tensor(":in.latents", 1.1 * given["latents"]), tensor(":in.text", given["text"]),
        tensor("embed:out", 1.1 * inner), tensor("proj:out", 1.1 * outer),
    ]  # fmt: skip
    floors = {r.key: Floor(1e-4) for r in ours}
    found = Judge(port=True).step(StepRecords(0, tuple(ours), floors), StepRecords(0, tuple(theirs)))
    assert {d.key.site: d.birth for d in found if d.birth} == {
        ":in.latents": "input", "embed:out": birth, "proj:out": "propagated",
    }  # fmt: skip
