"""Records are paired by key in the reference's order, and what the sides name differently if it can only be one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from parity.compare.judge import Judge
from parity.compare.pairs import align, decodes, laid_alike, lone_ports
from parity.compare.result import SiteDiff
from parity.records import Floor, Record, StepRecords
from tests.support.made import Walk, births, moved, noise, none, scalar, step, tensor

X, SMALL = noise(0), noise(1, (1, 4, 8))


def test_in_which_form_a_result_is_asked_for_is_not_compared() -> None:
    ours, theirs = ([scalar(":in.return_dict", asked)] for asked in (False, True))
    assert paired(ours, theirs) == []


@pytest.mark.parametrize(
    ("site", "shape", "found"),
    [
        ("loop:latents.after", (1, 2, 3, 4, 16), (1, 16, 2, 3, 4)),
        ("loop:latents.after", (1, 24, 16), None),  # it is compared as the model is given it
        ("decode:in.z", (1, 24, 16), (1, 24, 16)),  # nothing else shows it
        ("loop:latents.after", (1, 16, 4, 4, 4), (1, 16, 4, 4, 4)),
    ],
)
def test_the_loops_values_are_laid_out_as_the_references(
    site: str, shape: tuple[int, ...], found: tuple[int, ...] | None
) -> None:
    ours, theirs = (step([tensor(site, noise(5, size), branch="", held=True)]) for size in ((1, 16, 2, 3, 4), shape))
    assert next((r.shape for r in laid_alike(ours, theirs)[1].records), None) == found


VIDEO = noise(5, (1, 16, 3, 2, 6))
CUT = VIDEO[:, :, 1:]


def tokens(x: np.ndarray, channels: int = 16) -> np.ndarray:
    return x.reshape(1, channels, -1).swapaxes(1, 2)


def packed(x: np.ndarray) -> np.ndarray:
    """Tokens of patches of 2 x 2, the channels first in each."""
    b, c, t, h, w = x.shape
    laid = x.reshape(b, c, t, h // 2, 2, w // 2, 2).transpose(0, 2, 3, 5, 1, 4, 6)
    return laid.reshape(b, -1, c * 4)


@pytest.mark.parametrize(
    ("ours", "theirs", "given", "verdict"),
    [
        (CUT, VIDEO, VIDEO, "pass"),  # the reference steps the frames behind an image's
        (VIDEO, CUT, VIDEO, "pass"),
        (CUT, tokens(VIDEO), VIDEO, "pass"),
        (tokens(VIDEO), CUT, VIDEO, "pass"),
        (CUT, packed(VIDEO), VIDEO, "pass"),
        (CUT, 1.01 * VIDEO, VIDEO, "fail"),
        (VIDEO, 1.01 * CUT, VIDEO, "fail"),
        (CUT, 1.01 * packed(VIDEO), VIDEO, "fail"),
        (CUT, VIDEO[:, :, ::-1], VIDEO, "fail"),
        (CUT, VIDEO, CUT, "fail"),  # another video size: the model is given more
        (CUT, tokens(VIDEO)[:, ::-1], VIDEO, "fail"),  # in an order that is not known
    ],
)
def test_of_an_image_to_video_loop_the_frames_that_both_sides_step_are_compared(
    ours: np.ndarray, theirs: np.ndarray, given: np.ndarray, verdict: str
) -> None:
    judged = Judge(port=True).step(*laid_alike(stepped(VIDEO, ours, ours), stepped(given, theirs, theirs)))
    assert [d.verdict for d in judged if d.key.module == "loop"] == [verdict] * 2


def test_frames_that_a_step_loses_are_no_image_s() -> None:
    judged = Judge(port=True).step(*laid_alike(stepped(VIDEO, VIDEO, VIDEO), stepped(VIDEO, VIDEO, CUT)))
    assert [d.verdict for d in judged if d.key.module == "loop"] == ["pass", "fail"]


def stepped(given: np.ndarray, before: np.ndarray, after: np.ndarray) -> StepRecords:
    """A step of a loop whose model is given this."""
    loop = {"before": before, "after": after}
    values = (tensor(f"loop:latents.{at}", np.ascontiguousarray(x), branch="", held=True) for at, x in loop.items())
    return step([tensor(":in.hidden_states", given), *values])


def records(*sites: str) -> list[Record]:
    return [tensor(site, X) for site in sites]


def paired(ours: list[Record], theirs: list[Record]) -> list[str]:
    """The sites of the pairs in order; `-` before one that the reference lacks, behind one that the candidate lacks."""
    found = []
    for pair in align(ours, theirs, lambda module: False):
        assert all(r is None or r.key == pair.key for r in (pair.reference, pair.candidate))
        found.append(f"{'-' * (pair.reference is None)}{pair.key.site}{'-' * (pair.candidate is None)}")
    return found


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ("abc", "cab", ["a", "b", "c"]),
        ("ab", "waxybz", ["-w", "a", "-x", "-y", "b", "-z"]),  # behind the record before them
        ("abc", "ac", ["a", "b-", "c"]),
        ("", "", []),
    ],
)
def test_pairs_keep_the_order_of_the_reference(ours: str, theirs: str, expected: list[str]) -> None:
    assert paired(records(*ours), records(*theirs)) == expected


@pytest.mark.parametrize("turned", [False, True])
def test_none_stands_for_each_item_that_the_other_side_gives(turned: bool) -> None:
    tables = records(":in.tables.0", ":in.tables.1")
    sides = ([none(":in.tables"), *records("a:out")], [*tables, *records("a:out")])
    found = [
        (p.key.site, p.reference, p.candidate) for p in align(*sides[:: -1 if turned else 1], lambda module: False)
    ]
    lacking = [(site, *(pair[::-1] if turned else pair)) for site, *pair in found if site != "a:out"]
    assert lacking == [(table.key.site, sides[0][0], table) for table in tables]


def test_calls_steps_and_branches_are_different_places() -> None:
    ours = [tensor("a", X), tensor("a", X, call=1), tensor("a", X, branch="uncond")]
    theirs = [tensor("a", X), tensor("a", X, step=1), tensor("a", X, branch="uncond")]
    assert paired(ours, theirs) == ["a", "-a", "a-", "a"]  # after the record it followed on its own side


@pytest.mark.parametrize(("record", "expected"), [(none("a"), []), (scalar("a", False), []), (tensor("a", X), ["a-"])])
def test_only_a_tensor_on_one_side_is_a_site(record: Record, expected: list[str]) -> None:
    assert paired([record], []) == expected
    assert paired([], [record]) == [f"-{site.removesuffix('-')}" for site in expected]
    assert paired([record], [none("a")]) == paired([none("a")], [record]) == ["a"]


ORDERS = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(ORDERS, ORDERS)
@settings(max_examples=50)
def test_every_tensor_is_paired_once_in_the_order_of_the_reference(ours: list[str], theirs: list[str]) -> None:
    found = [site.strip("-") for site in paired(records(*ours), records(*theirs))]
    assert sorted(found) == sorted({*ours, *theirs})
    assert [n for n in found if n in ours] == ours
    for before, name in itertools.pairwise(theirs):
        assert name in ours or found[found.index(name) - 1] == before


def test_parts_of_a_step_keep_their_floors() -> None:
    a, b, c = (tensor(f"{name}:out", np.ones((2, 3), np.float32)) for name in "abc")
    floors = {a.key: Floor(1.0), b.key: Floor(2.0)}
    step = StepRecords(0, (a, b, c), floors).where({b.key, c.key}.__contains__)
    assert (step.records, set(step.floors)) == ((b, c), {b.key})


# --- Inputs and outputs that the two sides name differently are paired if they can only be one, and never otherwise

TURNED = X.transpose(0, 2, 1).copy()


def of(sites: str) -> list[Record]:
    """Tensors of a list of sites; a trailing `!` stands for a small one, `?` for None."""
    found = []
    for site in sites.split():
        name, kind = site.rstrip("!?"), site[-1]
        found.append(none(name) if kind == "?" else tensor(name, SMALL if kind == "!" else X))
    return found


def pairs(ours: list[Record], theirs: list[Record]) -> dict[str, str]:
    return {a.site: b.site for a, b in lone_ports(ours, theirs).items()}


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        # The one input, or output, that is left on each side.
        ("a:in.input a:in.temb! b:in.input", "a:in.inputs a:in.temb! b:in.x",
         {"a:in.inputs": "a:in.input", "b:in.x": "b:in.input"}),
        ("a:out b:out.sample c:out.0 c:out.1", "a:out.0 a:out.1? b:out c:out.0 c:out.2",
         {"a:out.0": "a:out", "b:out": "b:out.sample"}),
        ("a:in.input a:in.mask?", "a:in.x a:in.bias?", {"a:in.x": "a:in.input"}),
        ("a:in.x@image a:in.x@padding", "a:in.y@image a:in.y@padding",
         {"a:in.y@image": "a:in.x@image", "a:in.y@padding": "a:in.x@padding"}),
        # Outputs in another order, if their shapes leave one way.
        ("a:out.0! a:out.1 a:out.2?", "a:out.0 a:out.1!", {"a:out.0": "a:out.1", "a:out.1": "a:out.0"}),
        ("a:out.0 a:out.1 a:out.2!", "a:out.0! a:out.1 a:out.2", {}),  # which of the two?
        ("a:out.0 a:out.1!", "a:out.0 a:out.1!", {}),
        ("a:out.0 a:out.1!", "a:out.0! a:out.1!", {}),
        ("a:out.0 a:out.1!", "a:out.0! a:out.1 a:out.2", {}),
        # One of several outputs, as a tap names it.
        ("a:out.0 a:out.1", "a:out", {"a:out": "a:out.0"}),
        ("a:out.0! a:out.1", "a:out", {"a:out": "a:out.1"}),
        ("a:out.0! a:out.1 a:out.2", "a:out", {}),
        ("a:out.0! a:out.1!", "a:out", {}),
        # What may be something else.
        ("a:in.x a:in.y", "a:in.z", {}),
        ("a:in.x", "a:in.y a:in.z", {}),
        ("a:in.x", "a:out.0", {}),
        ("a:out", "a:out.0 a:out.1", {}),
        ("a:in.x", "b:in.y", {}),
        ("a:in.x", "a:in.y!", {}),
        ("a:in.attention_mask", "a:in.keep", {}),  # masks have forms of their own
        ("a:in.keep", "a:in.mask", {}),
        ("loop:in.x", "loop:in.y", {}),
        (":in.timestep", ":in.t", {}),  # what a port's call hands its model it may have converted
        (":out.0", ":out.sample", {}),
        ("a:in.x@image a:in.x@text", "a:in.y@image", {}),
        ("a:in.x@image", "a:in.x a:in.y@image", {}),  # its name is there, of other rows
        ("a:in.x", "a:in.x", {}),
        ("a:in.x", "a:in.x? a:in.y", {}),
    ],
)  # fmt: skip
def test_ports_are_paired_only_if_they_can_be_one(ours: str, theirs: str, expected: dict[str, str]) -> None:
    assert pairs(of(ours), of(theirs)) == expected


def test_shape_call_step_and_branch_have_to_agree_and_numbers_do_not_count() -> None:
    assert pairs([tensor("a:in.x", X), scalar("a:in.scale", 2.0)], [tensor("a:in.y", X[0])]) == {"a:in.y": "a:in.x"}
    for other in (TURNED, X[:, :48]):
        assert pairs([tensor("a:in.x", X)], [tensor("a:in.y", other)]) == {}
    ours = [tensor("a:in.x", X), tensor("a:in.x", X, call=1), tensor("a:in.x", X, branch="uncond")]
    theirs = [tensor("a:in.y", X, call=1), tensor("a:in.y", X, step=1)]
    assert {(b.call, b.step, b.branch) for b in lone_ports(ours, theirs).values()} == {(1, 0, "cond")}


@pytest.mark.parametrize("keys", [(8, 3), (8, 8)])
def test_attention_calls_that_only_their_shapes_tell_apart_may_be_made_in_another_order(keys: tuple[int, int]) -> None:
    def calls(*order: int) -> list[Record]:
        drawn = {n: tensor("a.attention:in.key", X[:, : keys[n]] + n, call=order.index(n)) for n in order}
        outs = [tensor("a.attention:out", X + n, call=order.index(n)) for n in order]
        return [*drawn.values(), *outs]

    floors = {r.key: Floor(1e-3) for r in calls(0, 1)}
    found = Judge(port=True).step(StepRecords(0, tuple(calls(0, 1)), floors), StepRecords(0, tuple(calls(1, 0))))
    assert {d.verdict for d in found} == ({"fail"} if keys[0] == keys[1] else {"pass"})
    assert {d.called for d in found} == {""}


def test_reordered_outputs_are_judged_against_each_other() -> None:
    ours, theirs = of("a:out.0! a:out.1"), of("a:out.0 a:out.1!")
    found = {d.key.site: (d.called, d.verdict) for d in Judge(port=True).step(step(ours), step(theirs))}
    assert found == {"a:out.0": ("out.1", "pass"), "a:out.1": ("out.0", "pass")}


def walked(given: float, out: float, before: float = 0.0) -> dict[str, SiteDiff]:
    """A module of a port whose input has another name: how far its input and its output are, in floors."""
    walk = Walk()
    walk.site("embed:out", before)
    x = noise(7).astype(np.float64)
    walk.pair(tensor("a:in.input", x), tensor("a:in.inputs", moved(x, given)))
    walk.site("a:out", out)
    return walk.judge(Judge(port=True))


@pytest.mark.parametrize(
    ("floors", "expected"),
    [
        ((0.5, 100.0, 5.0), {"embed:out": "module", "a:out": "module"}),
        ((100.0, 100.0, 4.0), {"embed:out": "module", "a:in.input": "propagated", "a:out": "propagated"}),
        ((1e4, 1e4, 0.0), {"a:in.input": "input", "a:out": "propagated"}),
        # It may be another thing, since one side applies an activation before.
        ((1e5, 0.5, 0.0), {}),
        ((1e5, 4.0, 0.0), {"a:out": "module"}),
    ],
)
def test_an_input_of_another_name_differs_where_the_output_shows_it(
    floors: tuple[float, float, float], expected: dict[str, str]
) -> None:
    found = walked(*floors)
    assert births(found) == expected
    site = found["cond/a:in.input"]
    assert site.called == "in.inputs"
    assert site.verdict == ("pass" if floors[0] < 1.0 else "fail" if "a:in.input" in expected else "not compared")


@pytest.mark.parametrize("predicted", [0.5, 1e4])
def test_an_output_of_another_name_decides_only_if_the_models_own_differs(predicted: float) -> None:
    walk = Walk()
    x = noise(7).astype(np.float64)
    walk.pair(tensor("a:out", x), tensor("a:out.0", moved(x, 1e4)))
    walk.ends(predicted)
    found = walk.judge(Judge(port=True))
    if predicted > 1.0:
        assert births(found)["a:out"] == "module"
    else:
        assert (found["cond/a:out"].verdict, births(found)) == ("not compared", {})


def test_sides_of_one_implementation_are_paired_by_name_alone() -> None:
    walk = Walk()
    walk.pair(tensor("a:in.input", X), tensor("a:in.inputs", X))
    found = walk.judge(Judge())
    assert {site: (d.called, d.verdict) for site, d in found.items()} == {
        "cond/a:in.input": ("", "fail"),
        "cond/a:in.inputs": ("", "fail"),
    }


# --- calls of the decoder ----------------------------------------------------------------------------------------


def decoded(*seeds: float) -> StepRecords:
    """A decoder's calls, each of the latents of a seed, some of them a little off."""
    made = [noise(int(seed), (1, 4, 8)) + (seed % 1) * noise(99, (1, 4, 8)) for seed in seeds]
    sites = ("decode:in.z", "decode:out")
    return StepRecords(-1, tuple(tensor(site, x, branch="", call=i) for i, x in enumerate(made) for site in sites))


@pytest.mark.parametrize(
    ("ours", "theirs", "numbers"),
    [
        ((1,), (2, 1), [1, 0]),  # a warm-up before it
        ((1,), (1, 2), [0, 1]),
        ((1,), (2, 3, 1.01), [1, 2, 0]),  # the video while it is made, and rounding
        ((1,), (2, 3), [1, 0]),  # a fault: the last one
        ((1, 2), (1, 3, 2), [0, 2, 1]),
        ((1, 2), (2, 1), [0, 1]),  # as many: in their order
        ((1, 2), (2,), [1]),
        ((1, 2), (1,), [0]),
        ((1, 2, 3), (1, 4), [0, 2]),
        ((1,), (), []),
    ],
)
def test_calls_of_a_decoder_are_paired_by_what_they_are_given(
    ours: tuple[float, ...], theirs: tuple[float, ...], numbers: list[int]
) -> None:
    paired = decodes(decoded(*ours), decoded(*theirs))
    assert [r.key.call for r in paired.records if r.key.is_input] == numbers
    assert [r.key.call for r in paired.records if not r.key.is_input] == numbers
