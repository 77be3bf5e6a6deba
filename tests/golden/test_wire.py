"""What crosses a pipe: facts and messages come back as they were; records are held to it in test_roundtrip."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from parity.golden.facts import Facts, Schedule
from parity.golden.strict import MalformedError
from parity.golden.wire import pack_facts, pack_message, unpack, unpack_facts, unpack_message

SCHEDULE = Schedule(np.array([999.0, 500.0]), np.array([1.0, 0.5, 0.0]), None, 0.25)
FACTS = Facts(
    {"a.weight": ((2, 3), "0f"), "b": ((), "1e")},
    {"a.weight": "float32"},
    {"cond.encoder_hidden_states": np.ones((1, 4), np.float32)},
    np.zeros((1, 2, 3), np.float32),
    {"rope.cos": np.arange(4.0)},
    SCHEDULE,
    own=True,
    encoded=True,
    placement="on 8 devices",
)


def plain(value: object) -> object:
    """Arrays as what can be compared: dtype, shape and elements."""
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tolist()
    return {name: plain(item) for name, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("changes", [{}, {"own": False, "placement": ""}, {"inputs": {}, "tables": {}}])
@pytest.mark.parametrize("schedule", [SCHEDULE, dataclasses.replace(SCHEDULE, step_index=3, end=math.inf)])
def test_every_fact_comes_back(changes: dict[str, object], schedule: Schedule) -> None:
    facts = dataclasses.replace(FACTS, schedule=schedule, **changes)  # type: ignore[arg-type]
    assert plain(dataclasses.asdict(unpack_facts(pack_facts(facts)))) == plain(dataclasses.asdict(facts))


def test_a_message_holds_a_document_and_arrays() -> None:
    document, arrays = unpack_message(pack_message({"call": "observe"}, {"x": np.arange(3, dtype=np.int8)}))
    assert document == {"call": "observe"}
    assert plain(arrays["x"]) == ("int8", (3,), [0, 1, 2])


@pytest.mark.parametrize("content", [b"", b"\x80\x04.", pack_message({}, {}), pack_facts(FACTS)[:-1]])
def test_other_bytes_are_refused(content: bytes) -> None:
    for read in (unpack, unpack_facts):
        with pytest.raises(MalformedError):
            read(content)
