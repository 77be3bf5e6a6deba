"""Records that do not line up: masks of other forms, and what is inside a port or part of the contract."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from parity.compare.conclude import Collected, conclude
from parity.compare.independent import differences
from parity.compare.judge import Judge
from parity.compare.metrics import same_mask
from parity.records import Floor, Record, StepRecords
from tests.support.made import Walk, floor_of, noise, none, scalar, tensor

NAN, INF = float("nan"), float("inf")
KEYS = np.arange(64) < 38
ADDED = np.where(KEYS, 0.0, -10000.0).astype(np.float32)[None, None]


def additive(low: float) -> np.ndarray:
    return np.where(KEYS, 0.0, low).astype(np.float32)[None, None]


MANY_KEYS = np.arange(4000) < 100
LEAST = float(np.finfo(np.float32).min)


def filled(out: float, keys: int = 100) -> np.ndarray:
    """A mask of 100 queries and 400 keys, of which each query reads as many."""
    at = np.arange(400)
    return np.where((at + 3 * np.arange(100)[:, None]) % 400 < keys, 0.0, out).astype(np.float32)[None]


X5 = noise(3, (1, 4, 2, 6, 8))


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (ADDED, KEYS[None], "pass"),
        (ADDED, additive(-INF), "pass"),
        (ADDED, KEYS[None, ::-1], "fail"),  # as many, others
        (ADDED, np.ones((1, 64), bool), "fail"),
        (ADDED, np.ones((1, 40), bool), "fail"),
        (ADDED, additive(-2.0), "fail"),  # a bias, no mask
        (ADDED - np.arange(64) / 8, ADDED - np.arange(64) / 4, "fail"),  # biases of distances, beside what is left out
        (np.zeros((1, 1, 64), np.float32), np.ones((1, 64), bool), "pass"),  # leaves nothing out
        (
            np.zeros((1, 64), np.float32),
            np.ones((1, 64), np.float32),
            "not compared",
        ),  # or is of ones that let none through
        (np.full((1, 64), 0.2, np.float32), np.ones((1, 64), bool), "fail"),  # a soft mask, as of inpainting
        # As many keys, and nothing shows which.
        (ADDED, KEYS[None, :40], "not compared"),  # fewer padded keys
        (ADDED, np.repeat(KEYS[None, None], 7, axis=1), "not compared"),  # one row a query
        (MANY_KEYS[None], MANY_KEYS[None, ::-1].astype(np.float32), "not compared"),
        (MANY_KEYS[None], MANY_KEYS[None, ::-1], "fail"),
        # Too many for a sketch to say which, unless what is left out is one number.
        (filled(-1e4), filled(-3e4), "pass"),
        (filled(-1e4), filled(-1e4)[:, ::-1], "fail"),
        (filled(-1e4), filled(-1.0), "fail"),
        (filled(LEAST), filled(-1e4), "not compared"),
        (filled(LEAST), filled(-1e4, 90), "fail"),
        (filled(-INF), filled(-1e4), "not compared"),
    ],
)
def test_masks_are_compared_by_what_they_let_through(ours: np.ndarray, theirs: np.ndarray, verdict: str) -> None:
    walk = Walk()
    walk.pair(tensor("a:in.mask", ours), tensor("a:in.mask", theirs))
    (found,) = walk.judge().values()
    assert found.verdict == verdict


@pytest.mark.parametrize("moments", [{"l2": INF, "min": -1e30}, {"l2": 1e300}, {"l2": NAN}, {"count": 0}])
@pytest.mark.parametrize("shape", [(1, 40), (1, 0), (0,)])
def test_a_mask_with_impossible_moments_lets_nothing_through(shape: tuple[int, ...], moments: Any) -> None:
    """As a golden from elsewhere may say."""
    ours = tensor("a:in.mask", ADDED)
    assert ours.moments is not None
    theirs = dataclasses.replace(ours, shape=shape, sketch=None, moments=dataclasses.replace(ours.moments, **moments))
    assert same_mask(ours, theirs) == (False, False)


ROW = np.random.default_rng(0).normal(size=(1, 6, 8)).astype(np.float32)
X = noise(0)
MANY = np.repeat(ROW[:, None], 5, axis=1)
TABLE = np.random.default_rng(2).normal(size=(16, 8)).astype(np.float32)
AUDIO = np.random.default_rng(1).normal(size=(2, 64)).astype(np.float32)


def of_vae(x: np.ndarray) -> Record:
    record = tensor("audio:out", x)
    return dataclasses.replace(record, key=dataclasses.replace(record.key, stage="vae"))


@pytest.mark.parametrize(
    ("ours", "theirs", "is_inside"),
    [
        # Inside a port what does not line up is not compared, whatever its values.
        (tensor("m:in.temb", MANY), tensor("m:in.temb", ROW), True),
        (tensor("m:out", TABLE), tensor("m:out", TABLE[:12].copy()), True),
        (tensor("m:out", X), tensor("m:out", np.moveaxis(X, 1, -1) * 2), True),
        (scalar("m:in.length", 48), none("m:in.length"), True),
        (scalar("m:in.length", 16), scalar("m:in.length", 12), True),  # padded tokens are cut off
        (tensor("m:in.ids", TABLE), none("m:in.ids"), True),
        # The arguments of its model: as to shapes alone.
        (tensor(":in.timestep", MANY), tensor(":in.timestep", ROW), True),
        (tensor(":in.text", MANY), none(":in.text"), False),
        (tensor(":in.text", MANY * 0), none(":in.text"), True),  # a condition that a prompt lacks
        (scalar(":in.length", 48), none(":in.length"), False),
        (scalar(":in.length", 16), scalar(":in.length", 12), False),
        # A mask that one side lacks is a difference wherever it is.
        (tensor("m:in.attention_mask", ROW), none("m:in.attention_mask"), False),
        (tensor("m:in.keep", ROW > 0), none("m:in.keep"), False),
        # The loop's values, and what comes after the loop: audio of four times the length passed once.
        (tensor("loop:noise_pred", MANY), tensor("loop:noise_pred", ROW), False),
        (of_vae(AUDIO[:, :16]), of_vae(AUDIO), False),
    ],
)
def test_what_does_not_line_up_is_not_compared_inside_a_port_and_differs_by_contract(
    ours: Record, theirs: Record, is_inside: bool
) -> None:
    sides = StepRecords(0, (ours,)), StepRecords(0, (theirs,))
    ((found,), (strict,)) = (Judge(port=port).step(*sides) for port in (True, False))
    assert (found.verdict == "not compared") is is_inside is math.isnan(found.distance.ratio)
    assert (strict.verdict, strict.distance.ratio) == ("fail", INF)
    assert found.note == strict.note != ""


def test_an_output_whose_channels_come_last_is_asked_about() -> None:
    ours, theirs = (StepRecords(0, (tensor("loop:noise_pred", x),)) for x in (X5, np.moveaxis(X5, 1, -1).copy()))
    (found,) = Judge(port=True).step(ours, theirs)
    assert found.note == "shape [1, 4, 2, 6, 8] against [1, 2, 6, 8, 4]; the candidate's channels are last"


TURNED = X[:, ::-1].copy()


@pytest.mark.parametrize(
    ("inside", "after", "port", "verdict"),
    [
        (TURNED, 0.5, True, "not compared"),  # the text before the image, in one attention
        (TURNED, 1e4, True, "fail"),  # and what is made of it differs
        (TURNED, 0.5, False, "fail"),
        (1.01 * X, 0.5, True, "fail"),
        (0.5 * X, 0.5, True, "not compared"),  # scaled before, not in it
        (0.5 * X, 1e4, True, "fail"),
        (noise(9), 0.5, True, "not compared"),
    ],
)
@pytest.mark.parametrize("site", ["b.attn.attention:in.query", "b.attn.attention:out"])
def test_another_order_inside_a_port_is_not_compared_where_it_comes_to_the_same(
    inside: np.ndarray, after: float, port: bool, verdict: str, site: str
) -> None:
    walk = Walk()
    walk.pair(tensor(site, X), tensor(site, inside))
    walk.site("b.attn:out", after)
    assert walk.judge(Judge(port=port))[f"cond/{site}"].verdict == verdict


QUERY = "b.attn.attention:in.query"


@pytest.mark.parametrize(
    ("unlike", "verdict"), [(None, "not compared"), ((), "fail"), ((QUERY,), "not compared"), (("b.attn:out",), "fail")]
)
@pytest.mark.parametrize("inside", [TURNED, 0.5 * X])
def test_which_values_of_a_port_are_other_things_an_earlier_check_has_decided(
    unlike: tuple[str, ...] | None, inside: np.ndarray, verdict: str
) -> None:
    walk = Walk()
    walk.pair(tensor(QUERY, X), tensor(QUERY, inside))
    walk.site("b.attn:out", 0.5)
    known = (
        None if unlike is None else {dataclasses.replace(walk.reference[0].key, site=site): "why" for site in unlike}
    )
    assert walk.judge(Judge(port=True, unlike=known))[f"cond/{QUERY}"].verdict == verdict


@pytest.mark.parametrize(
    ("inside", "after", "verdict"),
    [
        (0.5 * X, 0.5, "not compared"),
        (0.5 * X, 1e4, "fail"),
        (0.5 * X + 0.2 * noise(9), 0.5, "fail"),
        (-0.5 * X, 0.5, "fail"),
    ],
)
def test_in_16_bits_an_attention_may_be_given_its_values_times_a_factor(
    inside: np.ndarray, after: float, verdict: str
) -> None:
    walk = Walk()
    walk.pair(tensor(QUERY, X), tensor(QUERY, inside))
    walk.site("b.attn:out", after)
    wide = Floor(0.02 * float(np.linalg.norm(X)))
    floors = {r.key: wide if r.key.site == QUERY else floor_of(r) for r in walk.reference}
    assert walk.judge(Judge(port=True), floors=floors)[f"cond/{QUERY}"].verdict == verdict


@pytest.mark.parametrize(("after", "verdict"), [(0.5, "not compared"), (1e4, "fail")])
def test_what_an_attention_call_gives_says_whether_it_undoes_what_it_is_given(after: float, verdict: str) -> None:
    """The block around it hands on what it is given: it says nothing."""
    walk, query = Walk(), "b.attn.attention:in.query"
    walk.pair(tensor("b:in.x", ROW), tensor("b:in.x", ROW))
    walk.pair(tensor(query, X), tensor(query, TURNED))
    walk.site("b.attn.attention:out", after)
    walk.pair(tensor("b:out", ROW), tensor("b:out", ROW))
    assert walk.judge(Judge(port=True))[f"cond/{query}"].verdict == verdict


@pytest.mark.parametrize(
    ("turned", "verdicts"),
    [
        ("query key value", ["not compared"] * 3),
        ("query key", ["not compared", "not compared", "pass"]),  # heads that lie otherwise
        ("key value", ["pass", "not compared", "not compared"]),  # text in another order
        ("key", ["pass", "fail", "pass"]),  # turned by another angle
        ("query value", ["fail", "pass", "fail"]),
    ],
)
def test_what_an_attention_call_is_given_is_in_another_order_together(turned: str, verdicts: list[str]) -> None:
    walk = Walk()
    for name in ("query", "key", "value"):
        site = f"b.attn.attention:in.{name}"
        walk.pair(tensor(site, X), tensor(site, TURNED if name in turned.split() else X))
    walk.site("b.attn:out", 0.5)
    wide = {r.key: Floor(0.02 * float(np.linalg.norm(X))) for r in walk.reference[:3]}  # in 16 bits
    found = walk.judge(Judge(port=True), floors=wide | {r.key: floor_of(r) for r in walk.reference[3:]})
    assert [found[f"cond/b.attn.attention:in.{name}"].verdict for name in ("query", "key", "value")] == verdicts


@pytest.mark.parametrize(("after", "verdict"), [(0.5, "not compared"), (1e4, "fail")])
def test_a_table_that_the_model_makes_once_may_lie_otherwise(after: float, verdict: str) -> None:
    """Columns of a rotary table: all that is made of it agrees, or something does not."""
    walk, table = Walk(), ("rope:out.0", "blocks.0:in.rope", "blocks.1:in.rope")
    for site in table:
        walk.pair(tensor(site, X), tensor(site, TURNED))
        if site.startswith("blocks"):
            walk.site(f"{site.partition(':')[0]}:out", after)
    walk.site(":out", 0.5)
    found = walk.judge(Judge(port=True))
    assert {found[f"cond/{site}"].verdict for site in table} == {verdict}


@pytest.mark.parametrize(
    ("between", "output", "verdict"), [(0.5, 0.5, "not compared"), (1e4, 0.5, "fail"), (0.5, 1e4, "fail")]
)
def test_tokens_may_stand_otherwise_in_all_blocks(between: float, output: float, verdict: str) -> None:
    """Rows first instead of frames first: put back before the output, which agrees, as does what no row order is in."""
    walk = Walk()
    for block in ("blocks.0:out", "blocks.1:out"):
        walk.pair(tensor(block, X), tensor(block, TURNED))
    walk.site("temb:out", between)
    walk.site(":out", output)
    found = walk.judge(Judge(port=True))
    assert {found[f"cond/blocks.{i}:out"].verdict for i in (0, 1)} == {verdict}


def test_what_is_called_next_need_not_read_what_is_in_another_order() -> None:
    """Two heads that change places in the queries: keys are made of the same input."""
    walk = Walk()
    for site in ("b.to_q:in.x", "b.to_k:in.x"):
        walk.pair(tensor(site, noise(5)), tensor(site, noise(5)))
        if site == "b.to_q:in.x":
            walk.pair(tensor("b.to_q:out", X), tensor("b.to_q:out", TURNED))
    walk.site("b:out", 1e4)
    assert walk.judge(Judge(port=True))["cond/b.to_q:out"].verdict == "fail"


def test_another_order_of_what_the_model_is_given_is_a_difference() -> None:
    walk = Walk()
    walk.pair(tensor(":in.text", X), tensor(":in.text", TURNED))
    walk.site(":out", 0.5)
    assert walk.judge(Judge(port=True))["cond/:in.text"].verdict == "fail"


@pytest.mark.parametrize(
    ("read", "value", "out", "behind", "failed"),
    [
        (TURNED, TURNED, 0.5, 0.5, []),  # keys and values alone, as text is
        (TURNED, TURNED, 0.5, 1e4, ["blocks.1:out"]),  # and another fault behind it
        (TURNED, TURNED, 1e4, 1e4, [":in.text"]),  # its rows have places
        (TURNED, X, 0.5, 0.5, [":in.text"]),  # a gate of zero hides it
        (X, X, 0.5, 0.5, [":in.text"]),  # another is read
    ],
)
def test_what_the_model_is_given_may_stand_in_any_order_that_an_attention_undoes(
    read: np.ndarray, value: np.ndarray, out: float, behind: float, failed: list[str]
) -> None:
    walk, attention = Walk(), "blocks.0.attn.attention"
    walk.pair(tensor(":in.text", X), tensor(":in.text", TURNED))
    walk.pair(tensor("text:in.x", X), tensor("text:in.x", read))
    for name in ("key", "value"):
        walk.pair(tensor(f"{attention}:in.{name}", 2 * X), tensor(f"{attention}:in.{name}", 2 * value))
    walk.site(f"{attention}:out", out)
    walk.site("blocks.0:out", out)
    walk.site("blocks.1:out", behind)
    walk.site(":out", max(out, behind))
    found = walk.judge(Judge(port=True))
    assert [d.key.site for d in found.values() if d.introduced] == failed
    far = found["cond/:in.text"]
    assert far.note.startswith("the reference's values in another order")
    assert far.verdict == ("fail" if ":in.text" in failed else "not compared")


@pytest.mark.parametrize(
    ("rows", "port", "verdict"),
    [
        (38, True, "not compared"),  # the text without its padding
        (40, True, "fail"),  # with some of it
        (38, False, "fail"),
        (64, True, "fail"),  # the mask left out
    ],
)
@pytest.mark.parametrize("cut", ["reference", "candidate"])
def test_text_without_its_padding_needs_no_mask(rows: int, port: bool, verdict: str, cut: str) -> None:
    walk, text = Walk(), noise(4, (1, 64, 8))
    texts = tensor(":in.text", text), tensor(":in.text", text[:, :rows])
    masks = tensor(":in.text_mask", KEYS[None]), none(":in.text_mask")
    for ours, theirs in (texts, masks):
        walk.pair(*(ours, theirs) if cut == "candidate" else (theirs, ours))
    assert walk.judge(Judge(port=port))["cond/:in.text_mask"].verdict == verdict


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "not compared"), (1.01, "fail")])
def test_text_without_its_padding_has_the_norm_of_what_is_read(factor: float, verdict: str) -> None:
    walk, text = Walk(), noise(4, (1, 64, 8))
    walk.pair(tensor(":in.text", text[:, :38]), tensor(":in.text", factor * text))
    read = tensor(":in.text@read", np.where(KEYS[None, :, None], factor * text, 0))
    walk.candidate.append(dataclasses.replace(read, key=walk.candidate[-1].key.read))
    walk.pair(none(":in.text_mask"), tensor(":in.text_mask", KEYS[None]))
    assert walk.judge(Judge(port=True))["cond/:in.text_mask"].verdict == verdict


@pytest.mark.parametrize(("apart", "verdict"), [(0.0, "pass"), (1e-3, "fail")])
def test_the_same_rows_under_another_mask_are_the_same(apart: float, verdict: str) -> None:
    walk, text = Walk(), noise(4, (1, 64, 8))
    walk.pair(tensor(":in.text", text), tensor(":in.text", text + apart * noise(5, (1, 64, 8))))
    read = (tensor(":in.text@read", np.where(mask[..., None], text, 0)) for mask in (KEYS[None], KEYS[None, ::-1]))
    walk.pair(*read)
    assert walk.judge(Judge(port=True))["cond/:in.text"].verdict == verdict


@pytest.mark.parametrize(
    ("mask", "text", "mask_is", "text_is"),
    [
        (
            KEYS[::-1],
            "pass",
            "not compared",
            "its rows that are read are the same in another order, or stand elsewhere",
        ),
        (np.ones(64, bool), "not compared", "fail", "which of its rows are read, a mask says that differs"),
    ],
)
def test_text_in_another_order_is_judged_by_the_mask_beside_it(
    mask: np.ndarray, text: str, mask_is: str, text_is: str
) -> None:
    walk, rows = Walk(), noise(4, (1, 64, 8))
    walk.pair(tensor("b:in.text", rows), tensor("b:in.text", rows[:, ::-1]))
    for part in ("read", "set"):
        sides = (np.where(KEYS[None, :, None], rows, 0), np.where(mask[None, :, None], rows[:, ::-1], 0))
        walk.pair(*(tensor(f"b:in.text@{part}", x if part == "read" else x.sum(1)) for x in sides))
    walk.pair(tensor("b:in.text_mask", KEYS[None]), tensor("b:in.text_mask", mask[None]))
    walk.pair(tensor("b:in.rope", rows[0]), tensor("b:in.rope", rows[0, ::-1]))
    found = walk.judge(Judge(port=True))
    assert (found["cond/b:in.text"].verdict, found["cond/b:in.text"].note) == (text, text_is)
    assert found["cond/b:in.text_mask"].verdict == mask_is
    assert found["cond/b:in.rope"].verdict == ("not compared" if text == "pass" else "fail")


def test_a_mask_of_another_order_leaves_its_call_judged_by_its_inputs_whatever_differs_before() -> None:
    walk, rows, mask = Walk(), noise(4, (1, 64, 8)), KEYS[::-1]
    times = np.array([999.0, 500.0])
    walk.pair(*(tensor("schedule:timesteps", x, branch="", held=True) for x in (times, times - 3)))
    walk.pair(tensor("b:in.text", rows), tensor("b:in.text", rows[:, ::-1]))
    for part in ("read", "set"):
        sides = (np.where(KEYS[None, :, None], rows, 0), np.where(mask[None, :, None], rows[:, ::-1], 0))
        walk.pair(*(tensor(f"b:in.text@{part}", x if part == "read" else x.sum(1)) for x in sides))
    walk.pair(tensor("b:in.text_mask", KEYS[None]), tensor("b:in.text_mask", mask[None]))
    walk.site("b:out", 1e5)
    found = walk.judge(Judge(port=True))
    assert found["cond/b:in.text_mask"].verdict == "not compared"
    assert found["cond/b:out"].birth == "module"


@pytest.mark.parametrize(
    ("mask", "verdict"),
    [
        (np.ones(64, bool), "pass"),
        (np.zeros((1, 1, 64), np.float32), "not compared"),  # all is read, if zeros are added, or nothing is
        (np.zeros(64, np.int64), "fail"),
        (KEYS, "fail"),
    ],
)
def test_no_mask_is_one_that_lets_every_key_through(mask: np.ndarray, verdict: str) -> None:
    sides = tensor("b:in.text_mask", mask[None]), none("b:in.text_mask")
    for order in (sides, sides[::-1]):
        walk = Walk()
        walk.pair(*order)
        assert walk.judge(Judge(port=True))["cond/b:in.text_mask"].verdict == verdict


@pytest.mark.parametrize(("inside", "verdict"), [(KEYS, "not compared"), (KEYS[::-1], "fail")])
def test_of_a_mask_of_zeros_against_one_of_ones_the_mask_made_of_it_decides(inside: np.ndarray, verdict: str) -> None:
    walk, zeros = Walk(), np.zeros((1, 64), np.float32)
    walk.pair(tensor(":in.text_mask", zeros), tensor(":in.text_mask", zeros + 1))
    walk.pair(tensor("b:in.mask", KEYS[None]), tensor("b:in.mask", inside[None]))
    found = walk.judge(Judge(port=True))
    assert found["cond/:in.text_mask"].verdict == verdict
    assert found["cond/b:in.mask"].birth == ("propagated" if verdict == "fail" else None)


def test_inputs_that_a_port_does_not_hand_out_do_not_match() -> None:
    walk = Walk()
    walk.site("b:in.x", 0.5)
    walk.pair(tensor("b:in.temb", noise(5)), None)
    walk.site("b:out", 1e4)
    walk.loop("noise_pred", 1e4)
    ours, theirs = walk.steps()
    collected, judge = Collected(), Judge(port=True)
    collected.add(ours, theirs, judge.step(ours, theirs))
    found = conclude(collected, model="m", differing=(), preflight=(), seen=judge.seen)
    assert "inputs match but for its input temb (not compared: the candidate does not hand it out)" in found.reason


@pytest.mark.parametrize(("rows", "listed"), [(38, []), (40, ["the argument text"])])
@pytest.mark.parametrize("mask", [None, np.ones((1, 38), bool)])
def test_text_without_its_padding_is_no_difference_beside_another(
    rows: int, listed: list[str], mask: np.ndarray | None
) -> None:
    walk, text = Walk(), noise(4, (1, 64, 8))
    walk.pair(tensor(":in.text", text), tensor(":in.text", text[:, :rows]))
    walk.pair(tensor(":in.text_mask", KEYS[None]), none("x") if mask is None else tensor(":in.text_mask", mask))
    walk.candidate[-1] = dataclasses.replace(walk.candidate[-1], key=walk.reference[-1].key)
    walk.loop("noise_pred", 1e4)
    ours, theirs = walk.steps()
    collected, judge = Collected(), Judge(port=True)
    collected.add(ours, theirs, judge.step(ours, theirs))
    found = differences(conclude(collected, model="m", differing=(), preflight=()))
    assert [d.place for d in found if d.place != "guidance" and "mask" not in d.place] == listed


SLIGHT = (X + 2e-4 * noise(11)).astype(np.float32)


@pytest.mark.parametrize("slight", [True, False])
def test_a_small_error_is_no_other_order(slight: bool) -> None:
    """Noise of that size moves neither extremes nor norm by as much as the floor of the whole."""
    walk = Walk()
    walk.pair(tensor("b.attn.attention:in.query", X), tensor("b.attn.attention:in.query", SLIGHT if slight else TURNED))
    walk.site("b.attn:out", 0.5)
    floors = {walk.reference[0].key: Floor(1e-5 * float(np.linalg.norm(X)))}
    found = walk.judge(Judge(port=True), floors=floors)["cond/b.attn.attention:in.query"]
    assert found.verdict == ("fail" if slight else "not compared")


@pytest.mark.parametrize(
    ("sites", "verdict"),
    [
        ({"b:in.x": X, "b:out": X}, "fail"),  # a gate of zero shows nothing
        ({"b:in.x": X, "b:out": noise(5)}, "not compared"),
        ({"b.attn:out": None, "b:out": noise(5)}, "fail"),  # the nearest decides
        ({"b.to_out:in.x": noise(6), "b.to_out:out": None, "b:out": None}, "not compared"),  # another fault behind it
        ({"b.to_out:in.x": None, "b:out": None}, "fail"),
        ({":out": noise(5)}, "fail"),  # so far away it counts where parameters lie otherwise too
    ],
)
def test_what_is_made_of_another_order_must_have_read_it(sites: dict[str, np.ndarray | None], verdict: str) -> None:
    walk, query = Walk(), "b.attn.attention:in.query"
    for site, x in sites.items():
        if site.endswith("in.x") and not site.startswith("b.to_out"):
            walk.pair(tensor(site, x), tensor(site, x))
    walk.pair(tensor(query, X), tensor(query, TURNED))
    for site, x in sites.items():
        if not site.endswith("in.x") or site.startswith("b.to_out"):
            walk.pair(*((tensor(site, x),) * 2 if x is not None else (tensor(site, X), tensor(site, noise(12)))))
    assert walk.judge(Judge(port=True))[f"cond/{query}"].verdict == verdict
