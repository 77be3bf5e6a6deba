"""Rows of a sweep: planned from names alone; nothing of what was asked is left out."""

from __future__ import annotations

import pytest

from parity.errors import UsageError
from parity.runs.sweep.plan import every, grid, merged, one_at_a_time, parse_sets
from parity.settings import SETTINGS, render


def test_values_that_hold_commas_are_told_apart() -> None:
    given = ["cache=off,deepcache:1,3,2,deepcache:0,2,3", "mesh=dp=1,sp=1,tp=2,dp=2,sp=1,tp=1", "jit=true,false"]
    assert parse_sets(given) == {
        "cache": ("off", "deepcache:1,3,2", "deepcache:0,2,3"),
        "mesh": ("dp=1,sp=1,tp=2", "dp=2,sp=1,tp=1"),
        "jit": ("true", "false"),
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["attention.maks=none"], "unknown setting 'attention.maks'; did you mean 'attention.mask'"),
        (["attention.mask"], "found 'attention.mask'"),
        (["attention.mask=exact,nnone"], "no value 'nnone'; did you mean 'none'"),
        (["jit=true", "jit=false"], "gives 'jit' twice"),
        (["cache=deepcache:1,3"], "no value 'deepcache:1,3'"),
        (["mesh=dp=1,sp=1,tp=2x"], "no value 'dp=1,sp=1,tp=2x'"),
        (["rope=cached,"], "no value ''"),
    ],
)
def test_what_nobody_knows_is_a_mistake(given: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_sets(given)


def test_what_a_side_does_not_take_is_a_row() -> None:
    assert parse_sets(["attention.kernel=flex"]) == {"attention.kernel": ("flex",)}


def test_a_grid_has_every_combination_and_one_at_a_time_each_value() -> None:
    sets = {"rope": ("per_call", "cached"), "jit": ("true", "false")}
    assert grid(sets) == (
        ("rope=per_call", "jit=true"),
        ("rope=per_call", "jit=false"),
        ("rope=cached", "jit=true"),
        ("rope=cached", "jit=false"),
    )
    assert one_at_a_time(sets) == (("rope=per_call",), ("rope=cached",), ("jit=true",), ("jit=false",))


def test_every_value_that_is_no_default_has_a_row() -> None:
    rows = every(blocks=4)
    assert not any(text.startswith("vae.") for row in rows for text in row), "the loop has no decoder"
    assert rows[0] == ()
    last = {row[-1] for row in rows[1:]}
    assert not any(text.startswith("tpu=") for text in last), "which chip it is nobody chooses by a price"
    for choice in (s for s in SETTINGS if s.applies_in("transformer") and not s.found):
        default = render(choice.default_for("torchax"))
        assert {f"{choice.name}={v}" for v in choice.values if v != default} <= last
        assert any(text.startswith(f"{choice.name}=") for text in last)
    assert "cache=deepcache:1,3,2" in last
    assert ("attention.kernel=splash", "attention.block_padding=unmasked") in rows


def test_a_row_has_the_last_word() -> None:
    assert merged(("jit=false", "rope=cached"), ("rope=per_call",)) == ("jit=false", "rope=per_call")
