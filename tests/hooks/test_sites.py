"""The planner: which sites a choice names, decided from module names alone."""

from __future__ import annotations

import pytest

from parity.errors import UsageError
from parity.hooks.sites import block_of, is_block, plan_sites

MODULES = ["", "embed", "embed.proj", "blocks.0", "blocks.0.attn", "blocks.0.attn.to_q", "blocks.1", "blocks.1.attn",
           "blocks.10", "refiner.layers.0", "norm_out"]  # fmt: skip
"""As `callable_modules` lists them: `blocks` and `refiner.layers` are lists and cannot be called."""


@pytest.mark.parametrize(
    ("path", "block"),
    [
        ("blocks.0", "blocks.0"),
        ("blocks.12.attn.to_q", "blocks.12"),
        ("blocks", None),
        ("", None),
        ("embed.proj", None),
        ("refiner.layers.0", None),
        ("blocks.0a", None),
    ],
)
def test_blocks_are_items_of_the_top_modules_lists(path: str, block: str | None) -> None:
    assert (block_of(path), is_block(path)) == (block, path == block)


TOP = {"", "embed", "blocks.0", "blocks.1", "blocks.10", "norm_out"}


@pytest.mark.parametrize(
    ("glob", "modules", "must_fire"),
    [
        ("blocks", TOP, TOP),
        ("all", set(MODULES), set()),
        ("embed", {"embed"}, {"embed"}),
        ("embed*", {"embed", "embed.proj"}, {"embed", "embed.proj"}),
        ("blocks.[01].attn", {"blocks.0.attn", "blocks.1.attn"}, {"blocks.0.attn", "blocks.1.attn"}),
        ("*.to_q:out", {"blocks.0.attn.to_q"}, {"blocks.0.attn.to_q"}),
        ("blocks.*.attn.attention", set(), set()),
    ],
)
def test_a_choice_names_modules_and_those_that_must_fire(glob: str, modules: set[str], must_fire: set[str]) -> None:
    plan = plan_sites(MODULES, glob)
    assert (plan.modules, plan.must_fire) == (modules, must_fire)
    assert {plan: 1}[plan_sites(MODULES, glob)] == 1  # programs are cached by plan


@pytest.mark.parametrize(
    ("glob", "ports", "others"),
    [
        ("embed", ["in.x", "out", "out.1"], []),
        ("embed:out", ["out", "out.1", "out@image"], ["in.x"]),
        ("embed:in", ["in.x", "in.x.0"], ["inner", "out"]),
        ("embed:out.?", ["out.1"], ["out"]),
        ("all", ["in.x", "out.1"], []),
    ],
)
def test_a_choice_may_name_ports(glob: str, ports: list[str], others: list[str]) -> None:
    plan = plan_sites(MODULES, glob)
    assert [plan.wants_port("embed", port) for port in ports + others] == [True] * len(ports) + [False] * len(others)


@pytest.mark.parametrize(
    ("choice", "path", "wanted"),
    [
        ("all", "blocks.1.attn.attention", True),
        ("all", "blocks.10.attn.attention", True),  # a port's block makes the call of a module that it does not have
        ("all", "lost.attn.attention", False),
        ("all", "attention", True),
        ("blocks", "blocks.10.attn.attention", True),
        ("blocks", "embed.attention", True),
        ("blocks", "attention", True),
        ("blocks", "embed.proj.attention", False),
        ("embed", "blocks.1.attn.attention", False),
    ],
)
def test_an_attention_call_is_observed_with_its_module_or_one_around_it(choice: str, path: str, wanted: bool) -> None:
    assert plan_sites(MODULES, choice).wants_module(path) is wanted


def test_values_add_their_modules_and_only_their_ports() -> None:
    plan = plan_sites(MODULES, "embed", ("blocks.1.attn:out", "embed:in"))
    assert plan.modules == {"embed", "blocks.1.attn"}
    values = [("blocks.1.attn", "out"), ("embed", "in.x"), ("embed", "out")]
    assert [plan.wants_value(*site) for site in values] == [True, True, False]
    ports = [("blocks.1.attn", "out"), ("blocks.1.attn", "in.x"), ("embed", "out")]
    assert [plan.wants_port(*site) for site in ports] == [True, False, True]


@pytest.mark.parametrize("glob", ["norm_outt", "block.0.attn", "norm_outt:out", "blocks.7.attn.attention", "xyzzy"])
def test_an_unknown_choice_is_an_error_with_near_names(glob: str) -> None:
    near = "$" if glob == "xyzzy" else r".*near: .*(norm_out|blocks\.\d)"
    with pytest.raises(UsageError, match=rf"no module matches the site '[^']*'{near}"):
        plan_sites(MODULES, glob)
    with pytest.raises(UsageError, match="no module matches"):
        plan_sites(MODULES, "all", (glob,))
