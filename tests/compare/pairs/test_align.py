"""Records are paired by key, in the reference's order of execution; nothing that one side lacks is lost or invented."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.compare.pairs.align import align
from parity.compare.pairs.parts import in_common, of_stage
from parity.golden import Floor, Record, StepRecords
from tests.support.made import noise, none, scalar, tensor

X = noise(0, (1, 2, 3))


def records(*sites: str) -> list[Record]:
    return [tensor(site, X) for site in sites]


def paired(ours: list[Record], theirs: list[Record]) -> list[str]:
    """The sites of the pairs in order; `-` before one that the reference lacks, behind one that the candidate lacks."""
    found = []
    for pair in align(ours, theirs):
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


def test_calls_steps_and_branches_are_different_places() -> None:
    ours = [tensor("a", X), tensor("a", X, call=1), tensor("a", X, branch="uncond")]
    theirs = [tensor("a", X), tensor("a", X, step=1), tensor("a", X, branch="uncond")]
    assert paired(ours, theirs) == ["a", "-a", "a-", "a"]  # after the record it followed on its own side


@pytest.mark.parametrize(
    ("record", "expected"),
    [(none("a"), []), (scalar("a", False), []), (tensor("a", X), ["a-"])],
)
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
    ours, theirs = in_common(StepRecords(0, (a, b), floors), StepRecords(0, (b, c)))
    assert (ours.records, theirs.records, set(ours.floors)) == ((b,), (b,), {b.key})
    frames = replace(a, key=replace(a.key, stage="vae"))
    step = StepRecords(-1, (a, frames), {a.key: Floor(1.0)})
    after, before = of_stage(step, after=True), of_stage(step, after=False)
    assert (after.records, before.records, set(before.floors)) == ((frames,), (a,), {a.key})
