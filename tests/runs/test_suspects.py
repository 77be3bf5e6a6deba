"""The second look: which module is suspected, what is observed of it, and a fault found where it is."""

from __future__ import annotations

import pytest

from parity.compare.result import Origin, Result
from parity.golden.records import Key
from parity.runs.suspects import block_of_origin, children_plan
from tests.compare.make_records import because

MODULES = ("", "proj", "blocks.0", "blocks.0.attn", "blocks.0.attn.to_q", "blocks.1", "blocks.10", "blocks.10.ff")


def failing(site: str, failed: str | None = "structure") -> Result:
    return Result("fail", failed, because(""), origin=Origin(Key("transformer", 0, "cond", site), "module"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("site", "suspect"),
    [
        ("blocks.0.attn.attention:out@image", "blocks.0"),
        ("blocks.10:out.0", "blocks.10"),
        ("proj:out", "proj"),
        ("loop:latents.after", None),
        (":out", None),
    ],
)
def test_the_suspect_is_the_block_or_the_child(site: str, suspect: str | None) -> None:
    assert block_of_origin(failing(site)) == suspect


def test_a_preflight_failure_has_no_suspect() -> None:
    assert block_of_origin(failing("blocks.0:out", "preflight")) is None


def test_only_the_suspect_is_observed() -> None:
    plan = children_plan("blocks.1", MODULES)
    assert plan is None  # nothing below it, and blocks.10 is another block
    plan = children_plan("blocks.0", MODULES)
    assert plan is not None
    assert plan.modules == {"blocks.0", "blocks.0.attn", "blocks.0.attn.to_q"}
    assert plan.wants_module("blocks.0.attn.attention")
    assert not plan.wants_module("blocks.10.attn.attention")
    assert not plan.wants_module("proj")
