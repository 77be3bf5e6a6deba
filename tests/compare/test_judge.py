"""Sites against their floors, and where a divergence is born: neither crying wolf nor staying silent."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from parity.compare.judge import Judge, beyond, severity
from parity.compare.result import NAN, Distance, SiteDiff
from parity.compare.unlike import UNREAD
from parity.golden import PADDING, Floor, Key, Record, StepRecords
from parity.golden.records import READ
from tests.support.made import FLOOR, Walk, births, measured_floor, moved, noise, none, scalar, step, tensor

INF = float("inf")
FAR = 1e5
"""Floors by which a faulty site is apart."""


def diff(rel: float, ratio: float, bins: tuple[float, ...] = ()) -> SiteDiff:
    return SiteDiff(Key("transformer", 0, "cond", "a:out"), Distance(rel, 1.0, ratio), bins=bins)


# --- the rule for one site -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rel", "ratio", "bins", "is_beyond"),
    [
        (1e-6, 2.9, (), False),
        (1e-6, 3.1, (), True),
        (1e-6, 1.0, (4.9,) * 64, False),
        (1e-6, 1.0, (1.0, 5.1), True),
        (1e-6, 1.0, (0.0, INF), True),
        (0.0, 0.0, (), False),
        (1.0, INF, (), True),
        (NAN, NAN, (), True),  # a NaN on one side
        (1e-9, NAN, (), True),  # no floor: agreement is never assumed
        (0.0, NAN, (), False),  # no floor, and none needed
        (NAN, INF, (), True),  # on one side only
    ],
)
def test_beyond_three_floors_or_five_in_a_row_bin(
    rel: float, ratio: float, bins: tuple[float, ...], is_beyond: bool
) -> None:
    assert beyond(diff(rel, ratio, bins)) is is_beyond


@pytest.mark.parametrize(
    ("rel", "ratio", "bins", "expected"),
    [
        (1e-6, 2.0, (1.0, 5.0), 3.0),
        (1e-6, 2.0, (1.0, 1.0), 2.0),
        (NAN, NAN, (), INF),
        (0.0, NAN, (), 0.0),
        (0.0, 0.0, (), 0.0),
        (1.0, INF, (NAN,), INF),
    ],
)
def test_severity_is_the_worse_of_both_rules(
    rel: float, ratio: float, bins: tuple[float, ...], expected: float
) -> None:
    assert severity(diff(rel, ratio, bins)) == expected


@pytest.mark.parametrize("held", [False, True])
def test_a_fault_in_one_row_bin_is_beyond_whether_or_not_the_value_is_kept(held: bool) -> None:
    """Twelve floors in one of 64 bins are 1.8 in the whole; asking for a site's value must not blind the judge."""
    x = noise(0, (1, 640, 40)).astype(np.float64)
    y = moved(x, 1.0)
    y[:, 100:110] += (moved(x, 12.0, seed=5) - x)[:, 100:110]
    walk = Walk()
    walk.pair(tensor("a:out", x, held=held), tensor("a:out", y, held=held))
    diffs = walk.judge()
    assert diffs["cond/a:out"].distance.ratio < 3.0
    assert births(diffs) == {"cond/a:out": "module"}


@pytest.mark.parametrize(("linf", "is_beyond"), [(4.9, False), (5.1, True), (NAN, False), (INF, True)])
def test_beyond_five_floors_in_the_largest_element_where_values_are_held(linf: float, is_beyond: bool) -> None:
    held = dataclasses.replace(diff(1e-6, 2.0, (1.0,)), linf_ratio=linf)
    assert beyond(held) is is_beyond
    assert severity(held) == (2.0 if math.isnan(linf) else max(2.0, linf * 3 / 5))
    assert beyond(dataclasses.replace(held, bins=(5.1,)))  # values held never make the judge blinder


def test_one_wrong_element_among_many_is_beyond_where_the_value_is_held() -> None:
    """No norm sees it: the element is 7 floors of elements apart, the tensor 1.0 floors and its row bin as well."""
    x = noise(0, (1, 640, 400)).astype(np.float64)
    y, floor = moved(x, 1.0), measured_floor(x)
    largest = float(np.max(np.abs(moved(x, 1.0, seed=1000) - x)))
    y[0, 77, 11] = x[0, 77, 11] + 7 * largest
    for held, expected in ((True, {"cond/a:out": "module"}), (False, {})):
        walk = Walk()
        walk.pair(tensor("a:out", x, held=held), tensor("a:out", y, held=held))
        site = walk.reference[-1].key
        found = walk.judge(floors={site: dataclasses.replace(floor, linf=largest)})
        assert births(found) == expected
        assert found["cond/a:out"].distance.ratio < 3.0


@pytest.mark.parametrize("size", [0.15, 1.0, 1.5])
def test_noise_of_the_size_of_a_measured_floor_is_no_divergence(size: float) -> None:
    """200 sites of 48 row bins, each a noisy estimate of a noisy thing: not one of them may cry wolf."""
    walk, floors = Walk(), {}
    for i in range(200):
        x = noise(i).astype(np.float64)
        walk.pair(tensor(f"m{i}:out", x), tensor(f"m{i}:out", moved(x, size, seed=i)))
        floors[walk.reference[-1].key] = measured_floor(x)
    assert births(walk.judge(floors=floors)) == {}


def test_everything_measured_reaches_the_site() -> None:
    x = noise(0).astype(np.float64)
    y = moved(x, FAR)
    walk = Walk()
    walk.pair(tensor("a:out", x, held=True), tensor("a:out", y.astype(np.float32), held=True))
    found = walk.judge()["cond/a:out"]
    assert found.distance.rel_l2 == pytest.approx(FAR * FLOOR, rel=1e-3)
    assert found.distance.floor == pytest.approx(FLOOR)
    assert found.distance.ratio == pytest.approx(FAR, rel=1e-3)
    assert found.dtypes == ("float64", "float32")
    assert found.shapes == (x.shape, x.shape)
    assert found.max_abs == pytest.approx(np.abs(y - x).max(), rel=1e-3)
    assert (found.birth, found.verdict) == ("module", "fail")


# --- births ----------------------------------------------------------------------------------------------------


def chain(walk: Walk, *modules: tuple[str, float, float], branch: str = "cond") -> None:
    """Modules one after the other: (name, floors apart at its input, at its output)."""
    for name, given, out in modules:
        walk.site(f"{name}:in.x", given, branch=branch)
        walk.site(f"{name}:out", out, branch=branch)


def test_a_module_whose_inputs_agree_gives_birth_and_the_rest_inherits() -> None:
    walk = Walk()
    chain(walk, ("a", 0.5, 1.0), ("b", 1.0, FAR), ("c", FAR, 2 * FAR))
    assert births(walk.judge()) == {"cond/b:out": "module", "cond/c:in.x": "amplified", "cond/c:out": "amplified"}


def test_an_input_that_differs_though_its_producer_agreed_is_an_input_birth() -> None:
    walk = Walk()
    chain(walk, ("a", 0.0, 0.5), ("b", FAR, FAR))
    assert births(walk.judge()) == {"cond/b:in.x": "input", "cond/b:out": "amplified"}


def test_the_inner_module_comes_before_those_that_hold_it() -> None:
    walk = Walk()
    walk.site("block:in.x")
    walk.site("block.attn:in.x")
    walk.site("block.attn.attention:in.query")
    walk.site("block.attn.attention:out", FAR)
    walk.site("block.attn:out", FAR)
    walk.site("block:out", FAR)
    diffs = walk.judge()
    found = births(diffs)
    assert next(iter(found)) == "cond/block.attn.attention:out"
    assert found["cond/block.attn.attention:out"] == "module"
    assert all(diffs[site].verdict == "fail" for site in found)


def test_two_faults_behind_each_other_and_side_by_side() -> None:
    walk = Walk()
    chain(walk, ("image", 0.0, FAR), ("text", 0.0, FAR), ("joint", FAR, 2 * FAR))
    found = births(walk.judge())
    assert found["cond/image:out"] == "module"
    assert found["cond/text:out"] == "module"  # its own inputs agree: a second fault, not an heir of the first
    assert found["cond/joint:out"] == "amplified"


def test_each_branch_has_its_own_birth() -> None:
    walk = Walk()
    chain(walk, ("a", 0.0, FAR))
    chain(walk, ("a", 0.0, 0.5), ("b", FAR, FAR), branch="uncond")
    found = births(walk.judge())
    assert found["cond/a:out"] == "module"
    assert found["uncond/b:in.x"] == "input"


def test_a_second_call_is_judged_by_its_own_inputs() -> None:
    walk = Walk()
    for call, out in ((0, FAR), (1, FAR)):
        walk.site("embed:in.x", FAR if call == 0 else 0.0, call=call)
        walk.site("embed:out", out, call=call)
    diffs = walk.judge()
    calls = Judge().step(*walk.steps())
    assert [(d.key.call, d.birth) for d in calls] == [(0, "input"), (0, "amplified"), (1, None), (1, "module")]
    assert len(diffs) == 2  # the helper shows the last call of a site


def test_a_module_without_observed_inputs() -> None:
    walk = Walk()
    walk.site("a:out", FAR)
    walk.site("b:out", FAR)
    assert births(walk.judge()) == {"cond/a:out": "module", "cond/b:out": "amplified"}


def test_the_worst_of_several_inputs_counts() -> None:
    walk = Walk()
    walk.site("a:in.x", 0.1)
    walk.site("a:in.y", FAR)
    walk.site("a:in.z", 0.2)
    walk.site("a:out", 2 * FAR)
    assert births(walk.judge()) == {"cond/a:in.y": "input", "cond/a:out": "amplified"}


def test_an_input_just_within_its_limit_and_an_output_just_beyond_is_growth() -> None:
    walk = Walk()
    chain(walk, ("a", 0.0, 1.0), ("b", 2.5, 5.0))
    found = births(walk.judge())
    assert found == {"cond/b:out": "amplified"}


def test_an_input_within_its_limit_does_not_excuse_an_output_far_beyond() -> None:
    walk = Walk()
    chain(walk, ("a", 2.5, 50.0))
    assert births(walk.judge()) == {"cond/a:out": "module"}


def test_a_wrong_input_is_born_where_it_is_though_something_before_barely_crossed() -> None:
    """A thousandfold jump at an input cannot come from a producer at four floors: the layout is wrong there."""
    walk = Walk()
    chain(walk, ("a", 2.5, 4.0), ("b", FAR, FAR))
    assert births(walk.judge()).get("cond/b:in.x") == "input"


def test_a_wrong_input_behind_an_unrelated_divergence_of_its_size_is_inherited() -> None:
    walk = Walk()
    chain(walk, ("a", 0.0, FAR), ("b", FAR, FAR))
    assert births(walk.judge())["cond/b:in.x"] == "amplified"


# --- None, scalars, shapes, one side only ----------------------------------------------------------------------


def test_none_against_a_tensor_is_an_input_birth_and_says_so() -> None:
    for swap in (False, True):
        walk = Walk()
        records = (none("a:in.mask"), tensor("a:in.mask", noise(0)))
        walk.pair(*(reversed(records) if swap else records))
        walk.site("a:out", FAR)
        diffs = walk.judge()
        assert births(diffs) == {"cond/a:in.mask": "input", "cond/a:out": "amplified"}
        note = "a tensor against None" if swap else "None against a tensor"
        assert diffs["cond/a:in.mask"].note == note


def test_none_and_absent_differ_in_nothing() -> None:
    walk = Walk()
    walk.pair(none("a:in.mask"), None)
    walk.pair(none("a:in.other"), none("a:in.other"))
    walk.site("a:out", 0.5)
    diffs = walk.judge()
    assert births(diffs) == {}
    assert "cond/a:in.mask" not in diffs


def test_scalars_compare_by_value() -> None:
    walk = Walk()
    walk.pair(scalar("a:in.flag", True), scalar("a:in.flag", False))
    walk.pair(scalar("b:in.eps", 1e-6), scalar("b:in.eps", 1e-6))
    walk.pair(scalar("c:in.mode", "gelu"), scalar("c:in.mode", "relu"))
    diffs = walk.judge()
    assert births(diffs) == {"cond/a:in.flag": "input", "cond/c:in.mode": "amplified"}
    assert diffs["cond/a:in.flag"].note == "True against False"


def test_a_scalar_that_is_nan_on_both_sides_is_the_same() -> None:
    walk = Walk()
    walk.pair(scalar("a:in.scale", NAN), scalar("a:in.scale", float("nan")))
    assert births(walk.judge()) == {}


def test_another_shape_is_beyond_any_floor_and_both_are_told() -> None:
    walk = Walk()
    x = noise(0)
    walk.pair(tensor("a:out", x), tensor("a:out", x[:, :-1]))
    diffs = walk.judge()
    assert births(diffs) == {"cond/a:out": "module"}
    assert diffs["cond/a:out"].note == "shape [1, 96, 40] against [1, 95, 40]"


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_a_tensor_on_one_side_only_is_a_difference(side: str) -> None:
    walk = Walk()
    record = tensor("a:in.extra", noise(0))
    walk.pair(record if side == "reference" else None, record if side == "candidate" else None)
    walk.site("a:out", 0.5)
    assert births(walk.judge()) == {"cond/a:in.extra": "input"}


def test_between_goldens_of_other_builds_a_site_on_one_side_is_no_difference() -> None:
    walk = Walk()
    walk.pair(tensor("a.fused:out", noise(0)), None)
    walk.site("a:out", 0.5)
    diffs = walk.judge(Judge(strict_sites=False))
    assert list(diffs) == ["cond/a:out"]
    assert births(diffs) == {}


def test_moments_alone_that_agree_are_not_called_a_difference_in_shape() -> None:
    walk = Walk()
    record = dataclasses.replace(tensor("a:out", noise(0)), sketch=None)
    walk.reference.append(record)
    walk.candidate.append(record)
    floors = {record.key: Floor(1.0)}
    found = Judge().step(StepRecords(0, tuple(walk.reference), floors), StepRecords(0, tuple(walk.candidate)))
    assert not any(d.note.startswith("shape") for d in found)


# --- numbers that are none -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_candidates_nan_is_born_at_its_first_producer(bad: float) -> None:
    walk = Walk()
    walk.site("a:out", 0.5)
    x = noise(7)
    y = x.copy()
    y[0, 5, 5] = bad
    for site in ("b:in.x", "b:out", "c:in.x", "c:out"):
        walk.pair(tensor(site, x), tensor(site, x if site == "b:in.x" else y))
    diffs = walk.judge()
    assert births(diffs) == {"cond/b:out": "module", "cond/c:in.x": "amplified", "cond/c:out": "amplified"}
    assert diffs["cond/b:out"].nonfinite == (0, 1)


def test_an_additive_mask_with_the_same_infinities_is_no_birth() -> None:
    mask = np.zeros((1, 1, 1, 64), np.float32)
    mask[..., 38:] = -INF
    walk = Walk()
    walk.pair(tensor("a:in.mask", mask), tensor("a:in.mask", mask.copy()))
    walk.site("a:out", 0.5)
    assert births(walk.judge()) == {}


def test_another_additive_mask_is_an_input_birth() -> None:
    mask = np.zeros((1, 1, 1, 64), np.float32)
    mask[..., 38:] = -INF
    other = np.zeros_like(mask)
    other[..., 40:] = -INF
    walk = Walk()
    walk.pair(tensor("a:in.mask", mask), tensor("a:in.mask", other))
    assert births(walk.judge()) == {"cond/a:in.mask": "input"}


def test_zeros_on_both_sides_agree_with_a_floor_of_zero() -> None:
    zeros = np.zeros((1, 96, 40), np.float32)
    walk = Walk()
    walk.pair(tensor("a:out", zeros), tensor("a:out", zeros.copy()))
    diffs = walk.judge()
    assert births(diffs) == {}
    assert diffs["cond/a:out"].distance == Distance(0.0, 0.0, 0.0)


def test_a_zero_row_bin_in_both_does_not_cry_wolf() -> None:
    x = noise(0, (1, 640, 40)).astype(np.float64)
    x[:, :320] = 0.0
    y = moved(x, 1.0)
    y[:, :320] = 0.0
    walk = Walk()
    walk.pair(tensor("a:out", x), tensor("a:out", y))
    assert births(walk.judge()) == {}


def test_integers_have_no_floor_and_none_is_forgiven() -> None:
    x = np.arange(4000, dtype=np.int32).reshape(1, 100, 40)
    for y, expected in ((x.astype(np.int64), {}), (np.roll(x, 1, axis=1), {"cond/a:in.index": "input"})):
        walk = Walk()
        ours = tensor("a:in.index", x)
        walk.pair(ours, tensor("a:in.index", y))
        assert births(walk.judge(floors={ours.key: Floor(0.0, np.zeros(50, np.float32))})) == expected


def test_without_a_floor_equal_passes_and_anything_else_does_not() -> None:
    x = noise(0)
    ours = tensor("a:out", x)
    for y, expected in ((x.copy(), {}), (moved(x, 1e-3), {"cond/a:out": "module"})):
        reference, candidate = StepRecords(0, (ours,)), StepRecords(0, (tensor("a:out", y),))
        found = Judge().step(reference, candidate)
        assert births({"cond/a:out": found[0]}) == expected


@pytest.mark.parametrize("floor", [Floor(INF), Floor(NAN), Floor(INF, np.full(48, INF, np.float32))])
def test_a_floor_that_is_no_number_forgives_nothing(floor: Floor) -> None:
    walk = Walk()
    walk.site("a:out", FAR)
    key = walk.reference[0].key
    assert births(walk.judge(floors={key: floor})) == {"cond/a:out": "module"}


# --- padding and excuses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [FAR, INF])
def test_padding_never_decides(apart: float) -> None:
    walk = Walk()
    x = noise(0)
    y = moved(x, FAR) if apart == FAR else np.full_like(x, NAN)
    walk.site("a:in.x", 0.5)
    walk.pair(tensor(f"a:in.x@{PADDING}", x), tensor(f"a:in.x@{PADDING}", y))
    walk.site("a:out", FAR)
    walk.pair(tensor(f"a:out@{PADDING}", x), tensor(f"a:out@{PADDING}", y))
    walk.site("b:in.x", FAR)
    diffs = walk.judge()
    assert births(diffs) == {"cond/a:out": "module", "cond/b:in.x": "amplified"}
    assert [d.verdict for site, d in diffs.items() if PADDING in site] == ["apart", "apart"]


def test_padding_of_another_length_is_apart_too() -> None:
    walk = Walk()
    walk.pair(tensor(f"a:out@{PADDING}", noise(0)), tensor(f"a:out@{PADDING}", noise(0, (1, 80, 40))))
    walk.site("b:in.x", 0.5)
    diffs = walk.judge()
    assert births(diffs) == {}
    assert diffs[f"cond/a:out@{PADDING}"].verdict == "apart"


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (0.5, {}),
        (FAR, {"cond/a:out": "module", "cond/b:in.x": "amplified"}),  # rows that are read differ too
        (None, {"cond/a:out": "module", "cond/b:in.x": "amplified"}),  # one side has no mask
    ],
)
def test_a_joint_sequence_that_differs_in_rows_that_nothing_reads_agrees(
    read: float | None, expected: dict[str, str]
) -> None:
    walk = Walk()
    for site in ("a:in.x", "a:out", "b:in.x"):
        walk.site(site, 0.5 if site == "a:in.x" else FAR)
        x = noise(7)
        walk.pair(tensor(f"{site}@{READ}", x), None if read is None else tensor(f"{site}@{READ}", moved(x, read)))
    diffs = walk.judge()
    assert births(diffs) == expected
    out = diffs["cond/a:out"]
    assert (out.note == UNREAD) is (not expected)
    assert out.distance.ratio == pytest.approx(read, rel=0.2) if not expected else out.distance.ratio > 1e4
    assert diffs[f"cond/a:out@{READ}"].verdict == "apart"


def test_an_excused_site_is_harmless_and_hides_nothing_behind_it() -> None:
    walk = Walk()
    walk.site("text:in.x")
    walk.site("text:out", FAR)
    chain(walk, ("block", 0.5, FAR))
    diffs = walk.judge(Judge(excuses=("text",)))
    assert diffs["cond/text:out"].verdict == "harmless"
    assert diffs["cond/text:out"].birth == "module"
    assert births(diffs)["cond/block:out"] == "module"
    assert diffs["cond/block:out"].verdict == "fail"


def test_what_an_excused_site_hands_on_is_inherited_not_born() -> None:
    """The text encoder differs by a declared setting; that the blocks are fed its output is no birth of its own."""
    walk = Walk()
    walk.site("text:in.x")
    walk.site("text:out", FAR)
    chain(walk, ("block", FAR / 2, FAR))
    found = births(walk.judge(Judge(excuses=("text",))))
    assert found["cond/text:out"] == "module"
    assert found["cond/block:in.x"] == "amplified"
    assert found["cond/block:out"] == "amplified"


def test_an_excuse_within_the_floor_leaves_no_trace() -> None:
    walk = Walk()
    chain(walk, ("text", 0.5, 1.0), ("block", 0.5, 1.0))
    diffs = walk.judge(Judge(excuses=("text",)))
    assert {d.verdict for d in diffs.values()} == {"pass"}


# --- the loop's values and several steps -----------------------------------------------------------------------


def whole_step(at: int, *, before: float, block: float, noise_pred: float, after: float) -> Walk:
    """A step of both branches: latents, one block, predictions, latents."""
    walk = Walk(at)
    for port in ("timestep", "sigma", "dt"):
        walk.loop(port)
    walk.loop("latents.before", before)
    for branch in ("cond", "uncond"):
        chain(walk, ("block", before, block), branch=branch)
    walk.ends(noise_pred, after)
    return walk


def test_later_steps_of_a_free_run_carry_over() -> None:
    judge = Judge()
    first = whole_step(0, before=0.0, block=FAR, noise_pred=FAR, after=FAR)
    assert births(first.judge(judge))["cond/block:out"] == "module"
    second = births(whole_step(1, before=FAR, block=2 * FAR, noise_pred=2 * FAR, after=2 * FAR).judge(judge))
    assert set(second.values()) == {"amplified"}
    assert second["/loop:latents.before"] == "amplified"


def test_latents_that_jump_between_two_steps_are_an_input_birth() -> None:
    judge = Judge()
    assert births(whole_step(0, before=0.0, block=0.5, noise_pred=0.5, after=0.5).judge(judge)) == {}
    second = births(whole_step(1, before=FAR, block=FAR, noise_pred=FAR, after=FAR).judge(judge))
    assert second.pop("/loop:latents.before") == "input"
    assert set(second.values()) == {"amplified"}


def test_forced_steps_give_birth_anew() -> None:
    judge = Judge()
    for at in range(2):
        found = births(whole_step(at, before=0.0, block=FAR, noise_pred=FAR, after=FAR).judge(judge))
        assert found["cond/block:out"] == "module"
        assert found["uncond/block:out"] == "module"


def test_a_birth_only_in_a_later_step() -> None:
    judge = Judge()
    for at in range(3):
        assert births(whole_step(at, before=0.5, block=1.0, noise_pred=1.0, after=1.0).judge(judge)) == {}
    found = births(whole_step(3, before=0.5, block=FAR, noise_pred=FAR, after=FAR).judge(judge))
    assert next(iter(found.items())) == ("cond/block:out", "module")


def test_a_wrong_guidance_is_born_at_the_guided_prediction() -> None:
    walk = Walk()
    for branch in ("cond", "uncond"):
        walk.loop("noise_pred", 0.5, branch=branch)
    walk.loop("noise_pred", FAR)
    walk.loop("latents.after", FAR)
    assert births(walk.judge()) == {"/loop:noise_pred": "module", "/loop:latents.after": "amplified"}


def test_a_wrong_scheduler_step_is_born_at_the_latents() -> None:
    walk = Walk()
    for port in ("sigma", "dt", "latents.before"):
        walk.loop(port)
    walk.ends(0.5, FAR)
    assert births(walk.judge()) == {"/loop:latents.after": "module"}


def test_a_wrong_dt_is_an_input_birth_and_its_step_inherits() -> None:
    walk = Walk()
    walk.loop("latents.before")
    walk.loop("dt", FAR)
    walk.ends(0.0, FAR)
    assert births(walk.judge()) == {"/loop:dt": "input", "/loop:latents.after": "amplified"}


def test_guidance_that_amplifies_rounding_is_growth() -> None:
    walk = Walk()
    for branch in ("cond", "uncond"):
        walk.loop("noise_pred", 2.5, branch=branch)
    walk.loop("noise_pred", 6.0)
    assert births(walk.judge()) == {"/loop:noise_pred": "amplified"}


def test_a_prediction_lost_outside_the_model_is_born_in_the_loop() -> None:
    walk = Walk()
    chain(walk, ("", 0.0, 0.5))
    walk.loop("noise_pred", FAR, branch="cond")
    assert births(walk.judge()) == {"cond/loop:noise_pred": "module"}


def test_the_order_of_sites_is_the_reference_order() -> None:
    walk = Walk()
    chain(walk, ("a", 0.0, 0.5), ("b", 0.5, 0.5))
    walk.candidate.reverse()
    found = Judge().step(step(walk.reference), StepRecords(0, tuple(walk.candidate)))
    assert [d.key for d in found] == [r.key for r in walk.reference]
    assert all(not math.isnan(d.distance.ratio) for d in found)


def test_none_and_rows_that_a_mask_lets_none_of_through_are_one() -> None:
    """A port hands None where the reference has zeros behind a mask."""
    masked = tensor("blocks.0:in.vision", np.zeros((1, 4, 2), np.float32))
    masked = dataclasses.replace(masked, rows="vision")
    (found,) = Judge().step(StepRecords(0, (masked,)), StepRecords(0, (none("blocks.0:in.vision"),)))
    assert (found.verdict, found.note) == ("pass", "")
    plain = dataclasses.replace(masked, rows="")
    (found,) = Judge().step(StepRecords(0, (plain,)), StepRecords(0, (none("blocks.0:in.vision"),)))
    assert (found.verdict, found.note) == ("fail", "a tensor against None")


def test_what_one_side_gives_and_the_other_does_not_is_left_to_what_reads_it() -> None:
    zeros = np.zeros((1, 4, 2), np.float32)
    for site, x, verdict in (
        (":in.vision", zeros, "unjudged"),
        (":in.vision", zeros + 1e-3, "fail"),
        (":in.vision", zeros * np.nan, "fail"),
        ("blocks.0:in.tokens", zeros + 1e-3, "unjudged"),
        ("blocks.0:in.attention_mask", zeros, "fail"),
    ):
        given, absent = StepRecords(0, (tensor(site, x),)), StepRecords(0, (none(site),))
        assert [d.verdict for d in Judge(strict_sites=False).step(given, absent)] == [verdict]
        assert [d.verdict for d in Judge(strict_sites=False).step(absent, given)] == [verdict]
        assert [d.verdict for d in Judge().step(given, absent)] == ["fail"]


def test_masks_that_let_as_many_rows_through_are_one_whatever_is_padded() -> None:
    def mask(valid: int, rows: int) -> Record:
        return tensor("blocks.0:in.attention_mask", (np.arange(rows) < valid).astype(np.float32)[None])

    (same,) = Judge().step(StepRecords(0, (mask(6, 12),)), StepRecords(0, (mask(6, 8),)))
    assert (same.verdict, same.note) == ("pass", "")
    (more,) = Judge().step(StepRecords(0, (mask(6, 12),)), StepRecords(0, (mask(7, 8),)))
    assert (more.verdict, more.note) == ("fail", "shape [1, 12] against [1, 8]")


def test_a_ports_rows_that_no_mask_pairs_are_no_origin() -> None:
    ours, theirs = (tensor("embed:in.ids", np.zeros((1, n), np.float32)) for n in (64, 60))
    (port,) = Judge(strict_sites=False).step(StepRecords(0, (ours,)), StepRecords(0, (theirs,)))
    assert (port.verdict, port.note) == ("unjudged", "shape [1, 64] against [1, 60], rows that no mask pairs")
    (own,) = Judge().step(StepRecords(0, (ours,)), StepRecords(0, (theirs,)))
    assert own.verdict == "fail"


def test_another_layout_s_norm_grows_as_any_distance_does() -> None:
    """A norm that differs has a ratio to its floor: without one it was infinite, a birth whatever came before."""
    x = np.random.default_rng(0).standard_normal((1, 4, 2, 6)).astype(np.float32)
    there = np.moveaxis(x, 1, -1) * np.float32(1.0005)
    walk = Walk()
    walk.site("embed:out", 100.0)
    walk.pair(tensor("a:out", x), tensor("a:out", there))
    found = walk.judge(Judge(strict_sites=False), {tensor("a:out", x).key: Floor(float(np.linalg.norm(x)) * 5e-6)})
    assert births(found) == {"cond/embed:out": "module", "cond/a:out": "amplified"}
    assert found["cond/a:out"].distance.ratio == pytest.approx(100.0, rel=1e-2)
    assert found["cond/a:out"].note.endswith("against [1, 2, 6, 4], and their norms differ")


@pytest.mark.parametrize(
    ("axes", "scale", "verdict"), [(True, 1.0, "unjudged"), (False, 1.0, "unjudged"), (True, 1.1, "fail")]
)
def test_a_ports_other_layout_is_no_origin_where_norms_match(axes: bool, scale: float, verdict: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 4, 2, 6)).astype(np.float32)
    moved = np.moveaxis(x, 1, -1) if axes else x.reshape(1, 4, 12)
    ours, theirs = tensor("rope:in.hidden_states", x), tensor("rope:in.hidden_states", moved * np.float32(scale))
    floors = {ours.key: Floor(1e-5)}
    (port,) = Judge(strict_sites=False).step(StepRecords(0, (ours,), floors), StepRecords(0, (theirs,)))
    assert port.verdict == verdict
    assert port.note.endswith("laid out otherwise") is (verdict == "unjudged")
    (own,) = Judge().step(StepRecords(0, (ours,), floors), StepRecords(0, (theirs,)))
    assert own.verdict == "fail"


def test_two_equal_shapes_are_never_printed_as_a_difference() -> None:
    plain = tensor("blocks.0:in.text", np.ones((1, 4, 2), np.float32))
    paired = dataclasses.replace(plain, rows="text")
    for a, b in ((plain, paired), (paired, plain), (paired, dataclasses.replace(plain, rows="qwen"))):
        (found,) = Judge().step(StepRecords(0, (a,)), StepRecords(0, (b,)))
        assert found.verdict == "fail"
        assert "[1, 4, 2]" not in found.note
        assert found.note
