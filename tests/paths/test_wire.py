"""Messages between processes: what goes in comes out, what cannot travel is refused, a broken end is noticed."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from parity.hooks.sites import Held, SitePlan
from parity.paths.plan import Array, Plan
from parity.paths.worker import wire
from parity.records import Floor, Key, Moments, Record, StepRecords

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.tuples() | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


def sent(message: object) -> Any:
    """The message at the other end."""
    here, there = Pipe()
    with ThreadPoolExecutor(1) as pool:  # who sends waits until all is taken
        sending = pool.submit(wire.send, here, message)
        arrived = wire.receive(there)
        sending.result()
    return arrived


@given(plain)
def test_plain_data_arrives_as_it_was_sent(message: object) -> None:
    arrived = sent(message)
    assert arrived == message
    assert type(arrived) is type(message)


@given(
    st.sampled_from(["float32", "float64", "float16", "int64", "int32", "uint8", "bool"]),
    st.lists(st.integers(0, 4), max_size=4),
)
def test_arrays_arrive_bit_for_bit_with_their_shape(dtype: str, shape: list[int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    y = sent({"x": x, "beside": x.T})
    np.testing.assert_array_equal(y["x"], x)
    np.testing.assert_array_equal(y["beside"], x.T)
    assert (y["x"].dtype, y["x"].shape) == (x.dtype, x.shape)


def test_numbers_that_json_has_no_word_for_arrive() -> None:
    nan, inf = sent([float("nan"), -math.inf])
    assert math.isnan(nan)
    assert inf == -math.inf


def test_records_and_requests_arrive_whole() -> None:
    key = Key("transformer", 3, "cond", "blocks.0:out", 1)
    moments = Moments(6, 1, 0, -1.0, 2.0, 0.5, 3.0)
    record = Record(key, "tensor", (2, 3), "bfloat16", "text", (2, 3), moments, np.ones(4, np.float32), np.eye(3))
    none = Record(Key("transformer", 3, "", "loop:x"), "none")
    arrived = sent(StepRecords(3, (record, none), {key: Floor(0.25, np.ones(2, np.float32))}))
    first = arrived.records[0]
    assert (first.key, first.moments, first.rows) == (key, moments, "text")
    np.testing.assert_array_equal(first.value, np.eye(3))
    assert math.isnan(arrived.floors[key].linf)
    plan = Plan(sites=SitePlan("none", (), frozenset(), Held(frozenset({"in"}), most=5)), floors=True)
    assert sent(plan) == plan
    key = Key("transformer", 0, "cond", "block:out")
    assert sent(Plan(follow={key: Array(np.ones(2), "float16")})).follow[key].dtype == "float16"
    assert sent(StepRecords(0, ())) == StepRecords(0, ())


@pytest.mark.parametrize("message", [object(), {"x": open}, [1j]])
def test_what_does_not_travel_is_refused(message: object) -> None:
    with pytest.raises(TypeError, match="does not travel"):
        wire.send(Pipe()[0], message)


@pytest.mark.parametrize("cut", [0, 4, 8, 20, -1])
def test_a_message_that_breaks_off_is_noticed(cut: int) -> None:
    here, there = Pipe()
    wire.send(here, {"x": np.ones(5)})
    os.write(here.fileno(), os.read(there.fileno(), 1 << 20)[:cut])
    here.close()
    with pytest.raises(wire.BrokenWireError):
        wire.receive(there)


@pytest.mark.parametrize("data", [b"\xff" * 12, (16).to_bytes(4, "big") + b"not safetensors!"])
def test_what_is_no_message_is_refused_before_memory_is_taken(data: bytes) -> None:
    here, there = Pipe()
    os.write(here.fileno(), data)
    with pytest.raises(wire.BrokenWireError):
        wire.receive(there)
