"""Which modules of an agreeing run are worth a look of their own."""

from __future__ import annotations

import dataclasses

import pytest

from parity.compare.local import MOST, doubtful
from parity.compare.result import Distance, SiteDiff
from parity.golden import Key

MODULES = ("a", "a.attn", "b", "c", "d", "e", "f")


def site(name: str, ratio: float, branch: str = "cond") -> SiteDiff:
    return SiteDiff(Key("transformer", 0, branch, name), Distance(ratio * 1e-6, 1e-6, ratio))


def of(*sites: SiteDiff) -> tuple[str, ...]:
    return doubtful(sites, MODULES)


@pytest.mark.parametrize(("ratio", "expected"), [(0.9, ()), (1.1, ("a",)), (2.9, ("a",))])
def test_above_its_floor_and_above_its_inputs(ratio: float, expected: tuple[str, ...]) -> None:
    assert of(site("a:in.x", 0.1), site("a:out", ratio)) == expected


def test_what_is_handed_on_leaves_no_doubt() -> None:
    assert of(site("a:in.x", 0.5), site("a:out", 1.4)) == ()
    assert of(site("a:out", 2.0), site("b:in.x", 2.0), site("b:out", 2.2), site("c:out", 2.2)) == ("a",)
    assert of(site("a:out", 2.0), site("b:in.x", 0.1), site("b:out", 2.2)) == ("a", "b")


def test_an_input_is_made_by_the_module_around_it_and_an_attention_call_by_its_own() -> None:
    assert of(site("a.attn.attention:in.query", 2.0)) == ("a.attn",)
    assert of(site("a.attn.attention:out", 2.0)) == ("a.attn",)
    assert of(site("b:in.x", 2.0)) == ()  # by the top module's own code, which is never run alone


def test_branches_do_not_hide_one_another() -> None:
    assert of(site("a:out", 2.0), site("b:out", 2.0, "uncond")) == ("a", "b")


def test_what_never_decides_leaves_no_doubt() -> None:
    excused = dataclasses.replace(site("a:out", 2.0), verdict="harmless")
    assert of(site("a:out@padding", 2.0), site("loop:noise_pred", 2.0, ""), excused) == ()


def test_a_few_at_most() -> None:
    assert len(of(*(site(f"{m}:out", 1.1 * 4**i) for i, m in enumerate(MODULES)))) == MOST
