"""What is spilled comes back as it was, and is found as in a tuple."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.compare.many import sites as module
from parity.compare.many.sites import BIRTHS, VERDICTS, Sites, among, columns_of, count, steps_of, unjudged
from parity.compare.result import Distance, SiteDiff
from parity.golden.records import Key

NUMBERS = st.one_of(st.floats(), st.just(0.0))


@st.composite
def steps(draw: st.DrawFn) -> list[list[SiteDiff]]:
    made = []
    for step in range(-1, draw(st.integers(0, 3))):
        sites = []
        for i in range(draw(st.integers(1, 6))):
            sites.append(
                SiteDiff(
                    Key("transformer", step, draw(st.sampled_from(["", "cond"])), f"blocks.{i}:out", i % 2),
                    Distance(draw(NUMBERS), draw(NUMBERS), draw(NUMBERS)),
                    cosine=draw(NUMBERS),
                    local=Distance(draw(NUMBERS), 0.0, 1.0),
                    shapes=((i,), (2,)),
                    dtypes=("float32", draw(st.sampled_from(["float32", "bfloat16"]))),
                    nonfinite=(draw(st.integers(0, 2)), draw(st.integers(0, 2))),
                    bins=tuple(draw(st.lists(st.floats(0, 9), max_size=3))),
                    birth=draw(st.sampled_from(BIRTHS)),
                    verdict=draw(st.sampled_from(VERDICTS)),
                    note=draw(st.sampled_from(["", "None against a tensor"])),
                )
            )
        made.append(sites)
    return made


def spilled(steps: Sequence[Sequence[SiteDiff]]) -> Sites:
    sites = Sites()
    for step in steps:
        sites.add(columns_of(step))
    return sites


@settings(deadline=None, max_examples=50)
@given(steps())
def test_sites_are_found_as_in_a_tuple(made: list[list[SiteDiff]]) -> None:
    sites, held = spilled(made), tuple(d for step in made for d in step)
    assert repr(list(sites)) == repr(list(held))
    assert len(sites) == len(held)
    assert repr((*sites[:2], *sites[-1:])) == repr((*held[:2], *held[-1:]))
    failed, born = frozenset({"fail", "harmless"}), frozenset({"input", None})
    for ask in (
        {"verdicts": failed},
        {"births": born, "step": 0},
        {"worse": True},
        {"apart": True, "verdicts": failed},
        {"noted": True},
        {"noted": True, "worse": True, "apart": True},
        {"which": lambda d: d.dtypes[0] != d.dtypes[1]},
    ):
        assert repr(list(among(sites, **ask))) == repr(list(among(held, **ask)))  # type: ignore[arg-type]
    assert count(sites, failed, born) == count(held, failed, born)
    assert set(steps_of(sites, failed)) == set(steps_of(held, failed))
    changed = [unjudged(x, lambda d: math.isnan(d.distance.rel_l2)) for x in (sites, held)]
    assert repr(list(changed[0])) == repr(list(changed[1]))


def test_what_is_too_much_for_memory_goes_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", 100)
    held = [
        [SiteDiff(Key("transformer", s, "", f"a.{i}:out"), Distance(float(s), float(i), 0.0)) for i in range(9)]
        for s in (0, 1)
    ]
    sites = spilled(held)
    assert sites._file._rolled  # type: ignore[attr-defined]
    assert repr(list(sites)) == repr([d for step in held for d in step])
