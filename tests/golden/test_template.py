"""A part read by the text of the one before gives what reading it strictly gives, refusals among it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.golden import Floor, Key, Moments, Record, StepRecords
from parity.golden.disk import table
from parity.golden.disk.codec import decode_step, encode_step
from parity.golden.disk.container import data
from parity.golden.disk.table import Parts
from parity.golden.disk.template import Template
from parity.golden.strict import MalformedError

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
ODD = 'blocks.0 "l2":1.0,}{"moments":{"count":1 \\ é:out'
"""A site's name with everything by which numbers are found."""


def part(step: StepRecords) -> memoryview:
    header, tensors = encode_step(step)
    return memoryview(b"".join((header, *map(bytes, data(tensors)))))


def made(step: int, numbers: list[float], local: float = math.nan) -> StepRecords:
    """Two tensors and a scalar, with these numbers."""
    keys = [Key("transformer", step, "cond", site) for site in (ODD, "blocks.1:out", "loop:sigma")]
    sketch = np.arange(6, dtype=np.float32) + step
    of = [Moments(6, step % 3, 1, a, b, c, abs(d)) for a, b, c, d in (numbers[:4], numbers[4:8])]
    records = [Record(k, "tensor", (2, 3), "float32", "", (2, 3), m, sketch) for k, m in zip(keys[:2], of, strict=True)]
    floors = {keys[0]: Floor(abs(numbers[8]), sketch[:2] * 0.1, local), keys[1]: Floor(0.0, linf=abs(numbers[9]))}
    return StepRecords(step, (*records, Record(keys[2], "scalar", dtype="float", value=0.5)), floors)


def plain(step: StepRecords) -> str:
    """Everything in a step, as text: NaN equals NaN there."""
    return repr([list(step.records), [(k, step.floors[k]) for k in step.floors]])


def outcome(read: Callable[[], StepRecords]) -> str:
    """The records that are read, or why they are refused."""
    try:
        return plain(read())
    except MalformedError as error:
        return str(error)


def damaged(buffer: memoryview, old: bytes, new: bytes) -> memoryview:
    """The part with other bytes in its header, whose length fits."""
    length = int.from_bytes(buffer[:8], "little")
    header = bytes(buffer[8 : 8 + length])
    assert header.count(old) >= 1
    header = header.replace(old, new, 1)
    return memoryview(len(header).to_bytes(8, "little") + header + bytes(buffer[8 + length :]))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(NUMBERS, min_size=10, max_size=10), min_size=3, max_size=3))
def test_later_parts_are_what_strict_reading_gives(numbers: list[list[float]]) -> None:
    parts = Parts()
    for step, some in enumerate(numbers):
        buffer = part(made(step, some))
        assert plain(parts.decode(buffer, step)) == plain(decode_step(buffer, step))


def test_the_template_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    buffers = [part(made(step, [10.0**-step * i for i in range(10)])) for step in range(3)]
    parts.decode(buffers[0], 0)

    def found(raw: bytes, body: memoryview) -> None:
        raise AssertionError("the numbers were looked for again")

    monkeypatch.setattr(table, "_found", found)
    for step in (1, 2):
        assert plain(parts.decode(buffers[step], step)) == plain(decode_step(buffers[step], step))


def test_numbers_that_come_and_go_are_found_again() -> None:
    parts = Parts()
    for step, local in enumerate((math.nan, 0.5, math.nan, 0.25)):
        buffer = part(made(step, [1.5] * 10, local))
        assert plain(parts.decode(buffer, step)) == plain(decode_step(buffer, step))


@pytest.mark.parametrize(
    "new",
    [b"01.5", b"1.", b".5", b"+1.5", b"1_0.0", b"NaN", b"Infinity", b"-Infinity", b"1e999", b'\\"1.5\\"', b"[1.5]",
     b"null", b"true", b"1.5 ", b" 1.5", b"15", b"-2.5", b"1.5,1.5", b"1.5}", b"", b"9" * 400, b"\xff", b"1.5e-3"],
)  # fmt: skip
@pytest.mark.parametrize("name", [b"min", b"l2", b"count", b"nan", b"linf"])
def test_what_is_no_such_number_is_refused_as_strictly(new: bytes, name: bytes) -> None:
    parts = Parts()
    parts.decode(part(made(0, [1.5] * 10)), 0)
    at = b'\\"' + name + b'\\":'
    old = at + (b"1.5" if name in (b"min", b"l2", b"linf") else b"6" if name == b"count" else b"1")
    buffer = damaged(part(made(1, [1.5] * 10)), old, at + new)
    assert outcome(lambda: parts.decode(buffer, 1)) == outcome(lambda: decode_step(buffer, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"blocks.1:out", b"blocks.2:out"), (b"float32", b"float64"), (b"[2,3]", b"[3,2]"), (b'"F32"', b'"I32"'),
     (b'\\"step\\":1', b'\\"step\\":2'), (b"]}", b"]]"), (b"}", b","), (b",", b"}")],
)  # fmt: skip
def test_another_text_is_read_strictly(old: bytes, new: bytes) -> None:
    parts = Parts()
    parts.decode(part(made(0, [1.5] * 10)), 0)
    buffer = damaged(part(made(1, [1.5] * 10)), old, new)
    assert outcome(lambda: parts.decode(buffer, 1)) == outcome(lambda: decode_step(buffer, 1))


def test_more_tensors_behind_the_same_text_are_no_match() -> None:
    parts = Parts()
    parts.decode(part(made(0, [1.5] * 10)), 0)
    longer = memoryview(bytes(part(made(1, [1.5] * 10))) + bytes(8))
    with pytest.raises(MalformedError):
        parts.decode(longer, 1)


def test_a_step_without_numbers_of_its_own() -> None:
    """A scalar alone: the step's index is all that changes."""
    parts = Parts()
    for step in range(3):
        only = replace(made(step, [1.5] * 10), floors={})
        buffer = part(replace(only, records=tuple(only.records[2:])))
        assert plain(parts.decode(buffer, step)) == plain(decode_step(buffer, step))


def test_a_number_at_the_end_has_no_template() -> None:
    assert Template.of(b'{"a":1', [(5, 6)]) is None
    assert Template.of(b"1", [(0, 1)]) is None
