"""Values that are held whole for the reference to follow: which of them a compiled program brings to the host, when."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
import torchax
from torchax import interop

from parity.hooks.reduce.on_jax import BatchingReducer, jax_records, split
from parity.hooks.rows import NoRows
from parity.hooks.sites import EVERYTHING, OUTPUTS, Held, SitePlan
from parity.hooks.tap import Tap
from parity.records import Record


def held(whole: Held, step: int) -> dict[str, Record]:
    """What a module that hands on its input, beside another output, leaves at a step."""
    reducer = BatchingReducer()
    tap = Tap(SitePlan("none", (), frozenset(), whole), reducer, NoRows(), ("",), {"": {}})
    with torchax.default_env():
        given, made = (interop.torch_view(jnp.full((1, 4, 8), x)) for x in (2.0, 3.0))
        tap.hold("block", 0, "in.x", given)
        tap.hold("block", 0, "in.mask", None)
        tap.hold("block", 0, "out", (made, given))
        records = jax_records(*split(tap), step)
    return {r.key.port: r for r in records}


@pytest.mark.parametrize(("step", "there"), [(-1, True), (0, True), (3, False)], ids=["a stage", "first", "later"])
def test_outputs_reach_the_host_at_the_step_that_is_looked_at(step: int, there: bool) -> None:
    found = held(OUTPUTS, step)
    assert found.keys() == ({"whole.out.0", "whole.out.1"} if there else set())
    assert all(r.value is not None for r in found.values())


def test_inputs_are_held_in_a_step_that_is_looked_at_and_a_tensor_once() -> None:
    found = held(EVERYTHING, 3)
    assert [(r.value == x).all() for r, x in ((found["whole.in.x"], 2.0), (found["whole.out.0"], 3.0))] == [True, True]
    assert found["whole.in.mask"].kind == "none"
    assert found["whole.out.1"].value == "block:in.x 0", "named, not held twice"


OTHER = Held(frozenset({"in", "out"}), frozenset({"other"}))
SMALL, FEW = Held(frozenset({"out"}), each=64), Held(frozenset({"out"}), most=200)


@pytest.mark.parametrize("whole", [OTHER, SMALL, FEW])
def test_what_is_not_asked_for_or_has_no_room_is_said_to_be_missing(whole: Held) -> None:
    found = held(whole, 3 if "in" in whole.ports else 0)
    missing = {port for port, r in found.items() if isinstance(r.value, str)}
    assert missing == found.keys() - {"whole.in.mask"} - ({"whole.out.0"} if whole is FEW else set())
