"""Records pair up by key, in the reference's execution order; nothing that one side lacks is lost or invented."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parity.compare.judge import excused
from parity.compare.pairs.align import Pair, align
from parity.golden import Key, Record
from tests.support.made import noise, none, scalar, tensor

SMALL = (1, 2, 3)


def made(*sites: str) -> list[Record]:
    return [tensor(site, noise(0, SMALL)) for site in sites]


def names(pairs: tuple[Pair, ...]) -> list[str]:
    return [p.key.site for p in pairs]


def sides(pairs: tuple[Pair, ...]) -> list[str]:
    """`both`, `reference` or `candidate`: who has a record."""
    told = {(True, True): "both", (True, False): "reference", (False, True): "candidate"}
    return [told[p.reference is not None, p.candidate is not None] for p in pairs]


def test_pairs_come_in_the_reference_order_whatever_the_candidates() -> None:
    pairs = align(made("a:out", "b:out", "c:out"), made("c:out", "a:out", "b:out"))
    assert names(pairs) == ["a:out", "b:out", "c:out"]
    assert sides(pairs) == ["both"] * 3
    assert all(p.reference is not None and p.reference.key == p.key for p in pairs)
    assert all(p.candidate is not None and p.candidate.key == p.key for p in pairs)


def test_what_only_the_candidate_has_follows_the_record_before_it() -> None:
    pairs = align(made("a:out", "b:out"), made("w:out", "a:out", "x:out", "y:out", "b:out", "z:out"))
    assert names(pairs) == ["w:out", "a:out", "x:out", "y:out", "b:out", "z:out"]
    assert sides(pairs) == ["candidate", "both", "candidate", "candidate", "both", "candidate"]


def test_what_only_the_reference_has_keeps_its_place() -> None:
    pairs = align(made("a:out", "b:out", "c:out"), made("a:out", "c:out"))
    assert names(pairs) == ["a:out", "b:out", "c:out"]
    assert sides(pairs) == ["both", "reference", "both"]


def test_calls_steps_and_branches_are_different_places() -> None:
    x = noise(0, SMALL)
    ours = [tensor("a:out", x), tensor("a:out", x, call=1), tensor("a:out", x, branch="uncond")]
    theirs = [tensor("a:out", x), tensor("a:out", x, step=1), tensor("a:out", x, branch="uncond")]
    pairs = align(ours, theirs)
    assert [(p.key.call, p.key.step, p.key.branch) for p in pairs] == [
        (0, 0, "cond"),
        (0, 1, "cond"),  # after the record it followed on its own side
        (1, 0, "cond"),
        (0, 0, "uncond"),
    ]
    assert sides(pairs) == ["both", "candidate", "reference", "both"]


def test_none_and_absent_are_the_same_on_either_side() -> None:
    assert align([none("a:in.mask")], []) == ()
    assert align([], [none("a:in.mask")]) == ()


def test_a_scalar_argument_that_one_side_does_not_take_is_no_site() -> None:
    assert align([scalar("a:in.return_dict", False)], []) == ()


def test_none_on_both_sides_and_none_against_a_tensor_are_pairs() -> None:
    ours = [none("a:in.mask"), none("a:in.image")]
    theirs = [none("a:in.mask"), *made("a:in.image")]
    pairs = align(ours, theirs)
    assert sides(pairs) == ["both", "both"]


def test_a_tensor_on_one_side_stays() -> None:
    assert sides(align(made("a:out"), [])) == ["reference"]
    assert sides(align([], made("a:out"))) == ["candidate"]


def test_nothing_against_nothing() -> None:
    assert align([], []) == ()


ORDERS = st.lists(st.sampled_from([f"{c}:out" for c in "abcdefgh"]), unique=True)


@given(ORDERS, ORDERS)
def test_every_tensor_appears_once_and_the_reference_order_is_kept(ours: list[str], theirs: list[str]) -> None:
    found = names(align(made(*ours), made(*theirs)))
    assert sorted(found) == sorted({*ours, *theirs})
    assert [n for n in found if n in ours] == ours
    alone = [n for n in theirs if n not in ours]
    for before, name in itertools.pairwise(theirs):
        if name in alone:
            assert found[found.index(name) - 1] == before


def test_excuses_name_a_module_or_a_site() -> None:
    def key(site: str) -> Key:
        return Key("transformer", 0, "cond", site)

    globs = (":in.image_embeds", "image_embedder", "image_embedder.*")
    assert excused(key(":in.image_embeds"), globs)
    assert excused(key("image_embedder:out"), globs)
    assert excused(key("image_embedder.norm_in:in.input"), globs)
    assert not excused(key(":in.hidden_states"), globs)
    assert not excused(key("image_embedder_2:out"), globs)
    assert not excused(key("x_embedder:out"), ())


def test_records_are_paired_not_copied() -> None:
    (ours,), (theirs,) = made("a:out"), made("a:out")
    (pair,) = align([ours], [theirs])
    assert pair.reference is ours
    assert pair.candidate is theirs
    assert isinstance(ours.sketch, np.ndarray)
