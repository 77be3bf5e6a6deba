"""The planner: which sites a choice names, decided from module names alone."""

from __future__ import annotations

import pytest

from parity.errors import UsageError
from parity.hooks.sites import block_of, is_block, plan_sites

MODULES = [
    "",
    "embed",
    "embed.proj",
    "blocks.0",
    "blocks.0.attn",
    "blocks.0.attn.to_q",
    "blocks.1",
    "blocks.1.attn",
    "blocks.10",
    "refiner.layers.0",
    "norm_out",
]
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
    assert block_of(path) == block
    assert is_block(path) == (path == block)


def test_blocks_choose_the_top_its_children_and_its_blocks() -> None:
    plan = plan_sites(MODULES, "blocks")
    assert plan.modules == {"", "embed", "blocks.0", "blocks.1", "blocks.10", "norm_out"}
    assert plan.must_fire == plan.modules


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("blocks.0.attn.attention", True),
        ("blocks.0.attention", True),
        ("refiner.layers.0.attention", False),
        ("attention", False),
        ("blocks.0.attn", False),
        ("blocks.0.attn.to_q", False),
    ],
)
def test_blocks_choose_the_attention_calls_within_blocks(path: str, wanted: bool) -> None:
    assert plan_sites(MODULES, "blocks").wants_module(path) is wanted


def test_all_chooses_everything_and_none_in_particular() -> None:
    plan = plan_sites(MODULES, "all")
    assert plan.modules == set(MODULES)
    assert plan.must_fire == frozenset()
    assert plan.wants_module("refiner.layers.0.attention")
    assert plan.wants_port("embed", "out.1")
    assert not plan.wants_value("embed", "out.1")


@pytest.mark.parametrize(
    ("glob", "modules"),
    [
        ("embed", {"embed"}),
        ("embed*", {"embed", "embed.proj"}),
        ("blocks.?", {"blocks.0", "blocks.1"}),
        ("blocks.[01].attn", {"blocks.0.attn", "blocks.1.attn"}),
        ("*.to_q:out", {"blocks.0.attn.to_q"}),
        ("", {""}),
        ("*", set(MODULES)),
        ("blocks.*.attn.attention", set()),
    ],
)
def test_a_glob_chooses_the_modules_it_matches(glob: str, modules: set[str]) -> None:
    plan = plan_sites(MODULES, glob)
    assert plan.modules == modules
    assert plan.must_fire == modules


@pytest.mark.parametrize(
    ("glob", "port", "wanted"),
    [
        ("embed", "in.x", True),
        ("embed", "out", True),
        ("embed:out", "out", True),
        ("embed:out", "out.1", True),
        ("embed:out", "out@image", True),
        ("embed:out", "in.x", False),
        ("embed:in", "in.x", True),
        ("embed:in", "in.x.0", True),
        ("embed:in", "inner", False),
        ("embed:in.x", "in.x", True),
        ("embed:in.x", "in.y", False),
        ("embed:out.?", "out.1", True),
        ("embed:out.?", "out", False),
    ],
)
def test_a_glob_may_name_ports(glob: str, port: str, wanted: bool) -> None:
    assert plan_sites(MODULES, glob).wants_port("embed", port) is wanted


def test_a_glob_may_name_attention_calls() -> None:
    plan = plan_sites(MODULES, "blocks.0.attn.attention:out")
    assert plan.wants_module("blocks.0.attn.attention")
    assert not plan.wants_module("blocks.1.attn.attention")
    assert plan.wants_port("blocks.0.attn.attention", "out")
    assert not plan.wants_port("blocks.0.attn.attention", "in.query")


def test_values_add_their_modules_and_only_their_ports() -> None:
    plan = plan_sites(MODULES, "embed", ("blocks.1.attn:out", "embed:in"))
    assert plan.modules == {"embed", "blocks.1.attn"}
    assert plan.wants_value("blocks.1.attn", "out")
    assert plan.wants_port("blocks.1.attn", "out")
    assert not plan.wants_port("blocks.1.attn", "in.x")
    assert plan.wants_value("embed", "in.x")
    assert not plan.wants_value("embed", "out")
    assert plan.wants_port("embed", "out")


def test_plans_are_hashable_so_that_programs_are_kept_by_plan() -> None:
    assert {plan_sites(MODULES, "all"): 1}[plan_sites(MODULES, "all")] == 1


@pytest.mark.parametrize("glob", ["norm_outt", "block.0.attn", "norm_outt:out", "blocks.7.attn.attention"])
def test_an_unknown_glob_is_an_error_with_near_names(glob: str) -> None:
    with pytest.raises(UsageError, match=r"no module matches.*near: .*(norm_out|blocks\.\d)"):
        plan_sites(MODULES, glob)
    with pytest.raises(UsageError, match="no module matches"):
        plan_sites(MODULES, "all", (glob,))


def test_a_glob_like_nothing_is_an_error_without_names() -> None:
    with pytest.raises(UsageError, match=r"no module matches the site 'xyzzy'$"):
        plan_sites(MODULES, "xyzzy")


def test_blocks_of_what_wraps_a_model_are_those_of_the_model() -> None:
    inside = ["vae", "vae.conv", "vae.decoder", "vae.decoder.up_blocks.0", "vae.decoder.up_blocks.0.resnets.0"]
    plan = plan_sites(["", *inside], "blocks")
    assert plan.modules == {"", "vae", "vae.decoder.up_blocks.0"}
    assert plan_sites(["", *inside, "blocks.0"], "blocks").modules == {"", "vae", "blocks.0"}
