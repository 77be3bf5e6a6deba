"""Inputs and outputs that the two sides name differently are paired where they can only be one, and never otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.compare.judge import Judge
from parity.compare.pairs.lone import lone_ports
from parity.compare.result import SiteDiff
from parity.compare.unlike import is_unpaired
from parity.golden import Record
from tests.support.made import Walk, births, moved, noise, none, scalar, step, tensor

X = noise(0)
SMALL = noise(1, (1, 4, 8))


def pairs(reference: list[Record], candidate: list[Record]) -> dict[str, str]:
    return {a.site: b.site for a, b in lone_ports(reference, candidate).items()}


def test_the_one_input_left_on_each_side_is_one() -> None:
    ours = [tensor("a:in.input", X), tensor("a:in.temb", SMALL), tensor("b:in.input", X)]
    theirs = [tensor("a:in.inputs", X), tensor("a:in.temb", SMALL), tensor("b:in.x", X[0])]
    assert pairs(ours, theirs) == {"a:in.inputs": "a:in.input", "b:in.x": "b:in.input"}


def test_the_one_output_of_each_side_is_one() -> None:
    ours = [tensor("a:out", X), tensor("b:out.sample", X), tensor("c:out.0", X), tensor("c:out.1", X)]
    theirs = [tensor("a:out.0", X), none("a:out.1"), tensor("b:out", X), tensor("c:out.0", X), tensor("c:out.2", X)]
    assert pairs(ours, theirs) == {"a:out.0": "a:out", "b:out": "b:out.sample"}


def test_outputs_in_another_order_are_paired_where_their_shapes_leave_one_way() -> None:
    """A block of two streams that gives its text back first, and its port that does not."""
    ours = [tensor("a:out.0", SMALL), tensor("a:out.1", X), none("a:out.2")]
    theirs = [tensor("a:out.0", X), tensor("a:out.1", SMALL)]
    assert pairs(ours, theirs) == {"a:out.0": "a:out.1", "a:out.1": "a:out.0"}
    diffs = {d.key.site: d for d in Judge(strict_sites=False).step(step(ours), step(theirs))}
    assert {site: (d.called, d.verdict) for site, d in diffs.items() if site.startswith("a:")} == {
        "a:out.0": ("out.1", "pass"),
        "a:out.1": ("out.0", "pass"),
    }


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([X, X, SMALL], [SMALL, X, X]),  # which of the two?
        ([X, SMALL], [X, SMALL]),
        ([X, SMALL], [SMALL, SMALL]),
        ([X, SMALL], [SMALL, X, X]),
    ],
)
def test_an_order_that_shapes_do_not_tell_is_not_guessed(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    sides = [[tensor(f"a:out.{i}", x) for i, x in enumerate(side)] for side in (ours, theirs)]
    assert pairs(*sides) == {}


def test_none_and_numbers_are_no_second_input() -> None:
    ours = [tensor("a:in.input", X), none("a:in.mask"), scalar("a:in.scale", 2.0)]
    assert pairs(ours, [tensor("a:in.x", X), none("a:in.bias")]) == {"a:in.x": "a:in.input"}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["a:in.x", "a:in.y"], ["a:in.z"]),  # which of the two?
        (["a:in.x"], ["a:in.y", "a:in.z"]),
        (["a:in.x"], ["a:out.0"]),
        (["a:out"], ["a:out.0", "a:out.1"]),
        (["a:in.x"], ["b:in.y"]),
        (["a:in.attention_mask"], ["a:in.keep"]),  # masks have forms of their own
        (["a:in.keep"], ["a:in.mask"]),
        (["loop:in.x"], ["loop:in.y"]),
        ([":in.timestep"], [":in.t"]),  # what a port's call hands its model it may have converted
        ([":out.0"], [":out.sample"]),
        (["a:in.x@image", "a:in.x@text"], ["a:in.y@image"]),
        (["a:in.x@image"], ["a:in.x", "a:in.y@image"]),  # its name is there, of other rows
    ],
)
def test_what_may_be_another_is_not_paired(ours: list[str], theirs: list[str]) -> None:
    assert pairs([tensor(site, X) for site in ours], [tensor(site, X) for site in theirs]) == {}


def test_calls_steps_and_branches_are_paired_by_themselves() -> None:
    ours = [tensor("a:in.x", X), tensor("a:in.x", X, call=1), tensor("a:in.x", X, branch="uncond")]
    theirs = [tensor("a:in.y", X, call=1), tensor("a:in.y", X, step=1)]
    assert {(b.call, b.step, b.branch) for b in lone_ports(ours, theirs).values()} == {(1, 0, "cond")}


@pytest.mark.parametrize("other", [SMALL, X.transpose(0, 2, 1).copy(), X[:, :48]])
def test_another_shape_is_another_thing(other: np.ndarray) -> None:
    assert pairs([tensor("a:in.x", X)], [tensor("a:in.y", other)]) == {}


def test_the_parts_of_a_joint_sequence_are_paired_each() -> None:
    ours, theirs = ([tensor(f"a:{port}@{part}", X) for part in ("image", "padding")] for port in ("in.x", "in.y"))
    assert pairs(ours, theirs) == {"a:in.y@image": "a:in.x@image", "a:in.y@padding": "a:in.x@padding"}


def walked(given: float, made: float, before: float = 0.0) -> dict[str, SiteDiff]:
    """A module of a port whose input has another name: how far its input and its output are, in floors."""
    walk = Walk()
    walk.site("embed:out", before)
    x = noise(7).astype(np.float64)
    walk.pair(tensor("a:in.input", x), tensor("a:in.inputs", moved(x, given)))
    walk.site("a:out", made)
    return walk.judge(Judge(strict_sites=False))


def test_a_divergence_behind_it_is_born_in_the_module() -> None:
    """Less than a jump from what differs before it: where its input was not known, it had only grown."""
    found = walked(given=0.5, made=100.0, before=5.0)
    assert births(found) == {"cond/embed:out": "module", "cond/a:out": "module"}
    assert (found["cond/a:in.input"].verdict, found["cond/a:in.input"].called) == ("pass", "in.inputs")
    assert births(walked(given=100.0, made=100.0, before=4.0))["cond/a:out"] == "amplified"


def test_a_divergence_that_comes_in_is_born_at_the_input() -> None:
    assert births(walked(given=1e4, made=1e4)) == {"cond/a:in.input": "input", "cond/a:out": "amplified"}


@pytest.mark.parametrize(("given", "made"), [(1e5, 0.5), (1e5, 4.0)])
def test_an_input_that_its_module_makes_the_same_of_is_another_thing(given: float, made: float) -> None:
    """One side applies an activation before the projection, the other in it."""
    found = walked(given, made)
    at = found["cond/a:in.input"]
    assert (at.verdict, at.note) == ("unjudged", "in.inputs in the candidate, which is not the same thing")
    assert is_unpaired(at.note)
    assert "cond/a:in.input" not in births(found)


@pytest.mark.parametrize("predicted", [0.5, 1e4])
def test_an_output_of_another_name_decides_where_the_model_s_own_differs(predicted: float) -> None:
    walk = Walk()
    x = noise(7).astype(np.float64)
    walk.pair(tensor("a:out", x), tensor("a:out.0", moved(x, 1e4)))
    walk.ends(predicted)
    found = walk.judge(Judge(strict_sites=False))
    if predicted > 1.0:
        assert births(found)["cond/a:out"] == "module"
    else:
        assert (found["cond/a:out"].verdict, births(found)) == ("unjudged", {})


def test_sides_built_alike_are_paired_by_name_alone() -> None:
    walk = Walk()
    walk.pair(tensor("a:in.input", X), tensor("a:in.inputs", X))
    found = walk.judge(Judge())
    assert {site: d.called for site, d in found.items()} == {"cond/a:in.input": "", "cond/a:in.inputs": ""}
    assert all(d.verdict == "fail" for d in found.values())


def test_a_name_that_meets_is_never_another() -> None:
    x = tensor("a:in.x", X)
    assert pairs([x], [x]) == {}
    assert pairs([x], [replace(x, kind="none"), tensor("a:in.y", X)]) == {}
