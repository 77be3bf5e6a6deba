"""Recorded module calls put together again from a golden's records. Nothing is executed; imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from parity.errors import UsageError
from parity.golden.records import PADDING, Key, Record, StepRecords
from parity.paths.plan import Array, ModuleCall, Tree

_Place = tuple[str, str, int]
"""(branch, module, call)."""


def recorded_calls(step: StepRecords, modules: Collection[str] = ()) -> Iterator[tuple[ModuleCall, list[Record]]]:
    """Each call of a module whose inputs are all held, with the records of its outputs, in execution order.

    Args:
        modules: the model's, where they are known: a call of an attention function is no module's.
    """
    given: dict[_Place, list[Record]] = {}
    outputs: dict[_Place, list[Record]] = {}
    for record in step.records:
        place = (record.key.branch, record.key.module, record.key.call)
        if record.key.is_input:
            given.setdefault(place, []).append(record)
        elif record.key.port.split(".")[0].split("@")[0] == "out":
            outputs.setdefault(place, []).append(record)
    for place, records in given.items():
        branch, module, number = place
        if not module or (modules and module not in modules):
            continue
        if place not in outputs or not all(_is_held(r) for r in records):
            continue
        call = ModuleCall(module=module, step=step.step, number=number, branches=(branch,), kwargs=_arguments(records))
        yield call, outputs[place]


def _is_held(record: Record) -> bool:
    """Whether the value can be put together: a tensor with its value, not one of several parts."""
    if record.kind != "tensor":
        return True
    parts = record.key.port.split("@")[1:]
    return isinstance(record.value, np.ndarray) and all(part == PADDING for part in parts)


def _arguments(records: list[Record]) -> dict[str, Tree]:
    """Arguments by name; `in.rotary.0` and `in.rotary.1` are a tuple again."""
    padding = {_plain(r.key): r for r in records if r.key.is_padding}
    nested: dict[str, Any] = {}
    for record in records:
        if record.key.is_padding:
            continue
        value = _value(record, padding.get(_plain(record.key)))
        *path, last = record.key.port.split(".")[1:]
        at = nested
        for name in path:
            at = at.setdefault(name, {})
        at[last] = value
    return {name: _tuples(value) for name, value in nested.items()}


def _tuples(x: Any) -> Any:
    if not isinstance(x, dict):
        return x
    items = {name: _tuples(value) for name, value in x.items()}
    return tuple(items[str(i)] for i in range(len(items))) if all(n.isdecimal() for n in items) else items


def _plain(key: Key) -> Key:
    return Key(key.stage, key.step, key.branch, key.site.removesuffix(f"@{PADDING}"), key.call)


def _value(record: Record, padding: Record | None) -> Tree:
    """The tensor as the module was given it: valid rows and padded rows are held apart, zero where the other is not."""
    if record.kind != "tensor":
        assert not isinstance(record.value, np.ndarray)
        return record.value
    values = np.asarray(record.value)
    if padding is not None and isinstance(padding.value, np.ndarray):
        if padding.value.shape != values.shape:
            held = f"{list(values.shape)} and {list(padding.value.shape)}"
            raise UsageError(f"{record.key.site}: valid and padded rows differ in shape ({held}): record it again")
        values = values | padding.value if values.dtype == bool else values + padding.value
    if values.ndim > 1 and record.rows:
        values = values[:, : record.shape[1]]  # rows of a stream that this path was not given stand at the end
    return Array(values, record.dtype)
