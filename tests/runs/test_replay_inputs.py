"""Which recorded calls can be made again."""

from __future__ import annotations

import numpy as np

from parity.golden.records import Key, Record, StepRecords
from parity.runs.replay.inputs import recorded_calls


def site(name: str) -> Record:
    value = np.ones((2, 3), np.float32)
    return Record(
        Key("transformer", 0, "cond", name), "tensor", value.shape, "float32", "", value.shape, None, value=value
    )


def test_a_call_of_an_attention_function_is_no_modules() -> None:
    """`record --values '*'` holds its inputs whole; there is nothing to call by that name."""
    names = ("blocks.1:in.x", "blocks.1.attention:in.query", "blocks.1.attention:out", "blocks.1:out")
    step = StepRecords(0, tuple(map(site, names)))
    assert [call.module for call, _ in recorded_calls(step, {"blocks": "", "blocks.1": "blocks"})] == ["blocks.1"]
    assert {call.module for call, _ in recorded_calls(step)} == {"blocks.1", "blocks.1.attention"}, "no tree is known"
