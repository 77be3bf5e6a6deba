"""Messages between processes: plain data as one JSON document, with Python's NaN and Infinity, its arrays as
safetensors. No pickle.

    a safetensors file: arrays by number, the document in its metadata

Frozen dataclasses of `TYPES` travel by name; everything else is None, a bool, a number, text, a tuple, a set, a mapping
or an array; a list arrives as a tuple. What is not of these is an error of the sender. Cost: one copy of each array on
either side.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import safetensors.numpy

from parity.hooks.sites import Held, SitePlan
from parity.paths.plan import Array, Ends, Plan, Source, Spec, Start
from parity.paths.port.settings import PortInfo
from parity.records import Facts, Floor, Key, Moments, Provenance, Record, Schedule, StepRecords

TYPES: Mapping[str, type[Any]] = {
    t.__name__: t
    for t in (
        Key, Moments, Record, Floor, StepRecords, Provenance, Facts, Schedule, PortInfo,
        Held, SitePlan, Array, Ends, Plan, Source, Spec, Start,
    )
}  # fmt: skip
"""The dataclasses that travel."""

MOST = 1 << 40
"""Bytes of a message; more is not a message."""


class BrokenWireError(Exception):
    """The other end is gone, or what it sent is no message."""


def send(pipe: Connection, message: object) -> None:
    """Write one message.

    Raises:
        TypeError: something in it does not travel. BrokenWireError: the other end is gone.
    """
    arrays: dict[str, np.ndarray] = {}
    document = json.dumps(_plain(message, arrays), separators=(",", ":"))
    data = safetensors.numpy.save(arrays, metadata={"message": document})
    try:
        pipe.send_bytes(data)
    except (OSError, ValueError) as error:
        raise BrokenWireError(str(error)) from error


def receive(pipe: Connection) -> Any:
    """Read one message.

    Raises:
        BrokenWireError: the other end is gone, or sent no message.
    """
    try:
        data = pipe.recv_bytes(MOST)
        length = int.from_bytes(data[:8], "little")
        document = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["message"])
        return _typed(document, safetensors.numpy.load(data))
    except (OSError, EOFError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise BrokenWireError(str(error)) from error


def _plain(x: object, arrays: dict[str, np.ndarray]) -> Any:
    """What JSON takes: a pair of a tag and its content where JSON has no such thing."""
    if x is None or isinstance(x, (bool, str)):
        return x
    if isinstance(x, (int, np.integer)):
        return int(x)
    if isinstance(x, (float, np.floating)):
        return float(x)
    if isinstance(x, np.ndarray):
        name = str(len(arrays))
        complex_ = x.dtype.kind == "c"
        arrays[name] = np.ascontiguousarray(x.view(x.real.dtype) if complex_ and x.ndim else x)
        return {"!": "array", "of": name, "shape": list(x.shape), "dtype": x.dtype.str}
    if isinstance(x, (tuple, list)):
        return [_plain(item, arrays) for item in x]
    if isinstance(x, (frozenset, set)):
        return {"!": "set", "of": [_plain(item, arrays) for item in sorted(x)]}
    if isinstance(x, Mapping):
        return {"!": "map", "of": [[_plain(k, arrays), _plain(v, arrays)] for k, v in x.items()]}
    if dataclasses.is_dataclass(x) and TYPES.get(type(x).__name__) is type(x):
        fields = {f.name: _plain(getattr(x, f.name), arrays) for f in dataclasses.fields(x)}
        return {"!": type(x).__name__, "of": fields}
    raise TypeError(f"{type(x).__name__} does not travel between processes")


def _typed(x: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(x, list):
        return tuple(_typed(item, arrays) for item in x)
    if not isinstance(x, dict):
        return x
    kind, of = x["!"], x["of"]
    if kind == "array":
        return arrays[of].view(np.dtype(x["dtype"])).reshape(x["shape"])
    if kind == "set":
        return frozenset(_typed(item, arrays) for item in of)
    if kind == "map":
        return {_typed(k, arrays): _typed(v, arrays) for k, v in of}
    return TYPES[kind](**{name: _typed(value, arrays) for name, value in of.items()})
