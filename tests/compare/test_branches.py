"""Branches of recorded scripts are paired by what the model is given, and nothing else is renamed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parity.compare.branches import Branches, crossed
from parity.compare.diff import diff
from parity.compare.judge import Judge
from parity.records import LOOP, Floor, Provenance, Record, StepRecords
from tests.support.made import REFERENCE, moved, noise, tensor, write

TEXTS = {"cond": noise(1, (1, 12, 40)), "uncond": noise(2, (1, 12, 40))}
OUTS = {"cond": noise(3), "uncond": noise(4)}
SCRIPT = {"scheduler.shift": "5.0"}


def side(
    order: dict[str, str], scale: tuple[float, float] = (5.0, -4.0), far: float = 0.0, start: int | None = None
) -> StepRecords:
    """A step whose calls are named in an order of the side's own: name -> which branch it is."""
    records: list[Record] = []
    for name, own in order.items():
        if start is not None:
            records.append(tensor(":in.hidden_states", noise(start), branch=name))
        records.append(tensor(":in.encoder_hidden_states", moved(TEXTS[own], far), branch=name))
        records.append(tensor(f"{LOOP}:noise_pred", OUTS[own], branch=name, held=True))
    guided = scale[0] * OUTS["cond"] + scale[1] * OUTS["uncond"]
    records.append(tensor(f"{LOOP}:noise_pred", guided.astype(np.float32), branch="", held=True))
    floors = {r.key: Floor(1e-6 * r.moments.l2) for r in records if r.moments}
    return StepRecords(0, tuple(records), floors)


def alone(text: np.ndarray) -> StepRecords:
    """A step whose first branch is given a text, and both the same latents."""
    records = [tensor(":in.hidden_states", OUTS["cond"], branch=name) for name in TEXTS]
    records += [tensor(":in.encoder_hidden_states", text, branch="cond")]
    records += [tensor(f"{LOOP}:noise_pred", OUTS["cond"], branch="", held=True)]
    return StepRecords(0, tuple(records))


SAME = {"cond": "cond", "uncond": "uncond"}
OTHER = {"cond": "uncond", "uncond": "cond"}


@pytest.mark.parametrize(
    ("order", "scale", "settings", "verdict", "cause"),
    [
        (SAME, (5.0, -4.0), SCRIPT, "pass", ""),
        (OTHER, (5.0, -4.0), SCRIPT, "pass", ""),
        (OTHER, (-4.0, 5.0), SCRIPT, "fail", "the wrong way round"),  # taken apart as if it were the other order
        (SAME, (4.0, -3.0), SCRIPT, "fail", "guidance scale is 4"),
        (OTHER, (5.0, -4.0), {}, "fail", "the branches are swapped"),  # names that a family gave
    ],
)
def test_another_order_of_calls_is_no_difference(
    order: dict[str, str],
    scale: tuple[float, float],
    settings: dict[str, str],
    verdict: str,
    cause: str,
    tmp_path: Path,
) -> None:
    made = Provenance("reference", "torch", "m", {**REFERENCE.settings, **settings}, 0, 1)
    sides = write(tmp_path / "a", made, [side(SAME)]), write(tmp_path / "b", made, [side(order, scale)])
    result = diff(*sides)
    assert result.verdict == verdict, result.reason
    assert any("another order" in note.text for note in result.notes) is (order is OTHER and bool(settings))
    assert cause in " ".join(c.cause for c in result.causes)


def test_a_step_of_one_branch_alone_is_compared_under_any_name() -> None:
    branches = Branches(None)
    assert {r.key.branch for r in branches.step(side(SAME), side(OTHER)).records} == {"", "cond", "uncond"}
    alone = branches.step(side({"cond": "cond"}), side({"cond": "cond"}))
    assert {r.key.branch for r in alone.records} == {"", "cond"}


@pytest.mark.parametrize(
    ("own", "given", "renamed"),
    [
        ("uncond", False, True),  # one side counts its only call, the other the rows of its batch
        ("cond", False, False),
        ("uncond", True, False),  # by a name that somebody gave it
    ],
)
def test_a_branch_alone_is_the_one_whose_inputs_it_has(own: str, given: bool, renamed: bool) -> None:
    alone, both = side({"cond": own}), side(SAME)
    for ours, theirs in ((both, alone), (alone, both)):
        step = Branches({}, given=given).step(ours, theirs)
        name = {r.sketch.tobytes(): r.key.branch for r in step.records if r.key.is_input and r.sketch is not None}
        text = theirs.records[0].sketch if theirs is alone else ours.records[0].sketch
        assert text is not None
        expected = own if theirs is alone else "cond"
        assert (name[text.tobytes()] == expected) == (renamed or own == "cond")


def test_a_batch_in_another_order_is_not_compared_where_it_was_not_taken_apart() -> None:
    """Frames that are folded into the batch: nobody knows which rows are whose."""

    def folded(step: StepRecords, x: np.ndarray, **floors: Floor) -> StepRecords:
        more = [tensor("conv:in.x", x, branch=branch) for branch in ("cond", "uncond")]
        known = {r.key: Floor(1e-6 * r.moments.l2) for r in more if r.moments}
        return StepRecords(0, (*more, *step.records), {**step.floors, **known})

    frames = noise(7, (4, 12, 40))
    turned = frames[::-1].copy()
    # What both branches have alike was not taken apart either: only values in another order may be the same.
    for order, other, verdict in (
        (OTHER, turned, "not compared"),
        (SAME, turned, "fail"),
        (OTHER, 1.1 * turned, "fail"),
    ):
        branches = Branches(None)
        ours, theirs = folded(side(SAME), frames), folded(side(order), other)
        judge = Judge(branches=branches)
        sites = judge.step(ours, branches.step(ours, theirs))
        assert {d.verdict for d in sites if d.key.module == "conv"} == {verdict}
        assert {d.verdict for d in sites if d.key.module != "conv"} == {"pass"}


def three(order: dict[str, str], far: float = 0.0) -> StepRecords:
    """Other branches are given what cond is, and predict something else: they skip a layer, or another."""
    texts, outs = TEXTS | dict.fromkeys(("skip", "late"), TEXTS["cond"]), OUTS | {"skip": noise(5), "late": noise(6)}
    records: list[Record] = []
    for name, own in order.items():
        records.append(tensor(":in.encoder_hidden_states", moved(texts[own], far), branch=name))
        records.append(tensor(f"{LOOP}:noise_pred", moved(outs[own], far), branch=name, held=True))
    return StepRecords(0, (*records, tensor(f"{LOOP}:noise_pred", outs["cond"], branch="", held=True)))


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ({"cond": "cond", "uncond": "uncond", "call3": "skip"}, {}),
        ({"cond": "cond", "uncond": "uncond", "mine": "skip"}, {"cond": "cond", "uncond": "uncond", "mine": "call3"}),
        ({"uncond": "skip", "cond": "uncond", "call3": "cond"}, {"uncond": "call3", "cond": "uncond", "call3": "cond"}),
        ({"cond": "skip", "uncond": "uncond", "call3": "cond"}, {"cond": "call3", "uncond": "uncond", "call3": "cond"}),
        ({"cond": "cond", "uncond": "uncond"}, {}),
    ],
)
def test_branches_that_are_given_the_same_are_paired_by_what_they_predict(
    order: dict[str, str], names: dict[str, str]
) -> None:
    ours = three({"cond": "cond", "uncond": "uncond", "call3": "skip"})
    assert crossed(ours, three(order)) == crossed(ours, three(order, 1e3)) == names
    wrong = {name: "uncond" if own == "skip" else own for name, own in order.items()}
    assert crossed(ours, three(wrong)) in ({}, names)


def test_four_branches_are_paired_in_any_order() -> None:
    """LTX-2's: two prompts, and one without a layer, and one without the sound."""
    ours = three({"cond": "cond", "uncond": "uncond", "call3": "skip", "call4": "late"})
    theirs = three({"uncond": "cond", "cond": "uncond", "no_sound": "late", "no_layer": "skip"})
    names = {"uncond": "cond", "cond": "uncond", "no_layer": "call3", "no_sound": "call4"}
    assert crossed(ours, theirs) == names


def test_inputs_that_are_wrong_in_either_order_are_not_renamed() -> None:
    assert crossed(side(SAME), side(OTHER, far=1e-3)) == {"cond": "uncond", "uncond": "cond"}
    assert crossed(side(SAME), side(SAME, far=0.3)) == {}
    # What one branch alone is given makes no order nearer in which it meets nothing.
    ours, theirs = alone(TEXTS["cond"]), alone(moved(TEXTS["cond"], 0.3))
    assert crossed(ours, theirs) == {}
    # One branch is given another text, and the other shows the order.
    ours, theirs = side(SAME), side(OTHER)
    wrong = tensor(":in.encoder_hidden_states", noise(9, (1, 12, 40)), branch="cond")
    theirs = replace(theirs, records=[wrong if r.key == wrong.key else r for r in theirs.records])
    assert crossed(ours, theirs) == OTHER
    # Another text encoder leaves little of either text: guidance shows the order.
    records = []
    for r in side(OTHER).records:
        near, other = TEXTS[OTHER.get(r.key.branch, "cond")], noise(9, (1, 12, 40))
        wrong = tensor(":in.encoder_hidden_states", 0.5 * near + other, branch=r.key.branch)
        records.append(wrong if r.key == wrong.key else r)
    assert crossed(side(SAME), replace(side(OTHER), records=records)) == OTHER
    # What all branches are given says nothing of their order, and neither does wrong guidance.
    assert crossed(side(SAME, start=5), side(OTHER, (6.0, -5.0), start=6)) == OTHER
    assert crossed(side(SAME, start=5), side(SAME, (6.0, -5.0), start=6)) == {}
    both = {"cond": "cond", "uncond": "cond"}  # the negative prompt is lost
    assert crossed(side(SAME), side(both)) == {}


@pytest.mark.parametrize(("order", "names"), [(SAME, {}), (OTHER, OTHER)])
def test_texts_of_other_lengths_are_in_the_order_in_which_they_line_up(
    order: dict[str, str], names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rounding of the text was farther than a length that does not fit."""
    monkeypatch.setitem(TEXTS, "uncond", noise(2, (1, 9, 40)))
    assert crossed(side(SAME), side(order, far=1.0)) == names
