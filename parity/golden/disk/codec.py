"""One step's records as a safetensors part, and back.

Problem. Records mix names, numbers, sketches and whole tensors; a part must give each of them back exactly, and
nothing that is not a record.

How. Sketches, values and floor bins are tensors of the part, named `<record>.sketch`, `<record>.value` and
`<floor>.floor` by position; everything else is one JSON document in the header's metadata, under the name `parity`.
One schema a type says how it stands there, and `check_record` what a record must satisfy beside; the writer and the
reader both hold to them, so that what is written can be read. Nothing here knows files: failures are `MalformedError`,
and the caller names the file.

Cost. About 350 bytes of JSON a record beside its sketch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from parity.golden.disk.container import BFLOAT16, Tensor, header, parse_container, tensor, widen
from parity.golden.records import Floor, Key, Kind, Moments, Record, Scalar, StepRecords
from parity.golden.sketch import BINS, Geometry, geometry
from parity.golden.strict import (
    BOOL,
    COUNT,
    MAX_INT,
    NUMBER,
    TEXT,
    MalformedError,
    Schema,
    as_int,
    choice,
    integer,
    listed,
    members,
    parse,
    row,
    shown,
)
from parity.golden.strict import (
    record as of,
)

MAX_RECORDS = 1_000_000
MAX_STEP = 1_000_000
DOCUMENT = "parity"
_SCALARS: Mapping[str, Schema[Any]] = {"bool": BOOL, "int": integer(-MAX_INT), "float": NUMBER, "str": TEXT}
"""The type is written, because "nan" the text and nan the number would look the same."""


def _read_scalar(value: Any, what: str) -> Scalar:
    if not isinstance(value, dict) or len(value) != 1:
        raise MalformedError(f"{what} is {shown(value)}")
    ((name, held),) = value.items()
    if name not in _SCALARS:
        raise MalformedError(f"{what} has the unknown type {shown(name)}")
    scalar: Scalar = _SCALARS[name].read(held, what)
    return scalar


def _write_scalar(value: Scalar) -> dict[str, Any]:
    name = next(kind.__name__ for kind in (bool, int, float, str) if isinstance(value, kind))
    return {name: _SCALARS[name].write(value)}


_KEY = row(TEXT, TEXT, TEXT, COUNT)  # stage, branch, site, call: the step is the part's
_NUMBER_OF = Schema(COUNT.read, int)  # numpy's integers among them
_MOMENTS = of(Moments, count=_NUMBER_OF, nan=_NUMBER_OF, inf=_NUMBER_OF, min=NUMBER, max=NUMBER, mean=NUMBER, l2=NUMBER)
_RECORD = members(
    {"key": _KEY, "kind": choice(*get_args(Kind))},
    {
        "dtype": TEXT,
        "shape": listed(COUNT, 64),
        "rows": TEXT,
        "frame": row(COUNT, COUNT),
        "moments": _MOMENTS,
        "scalar": Schema(_read_scalar, _write_scalar),
    },
)
_FLOOR = members({"key": _KEY, "l2": NUMBER, "local_l2": NUMBER}, {"linf": NUMBER})
_PART = members(
    {
        "step": integer(-1, MAX_STEP),
        "records": listed(_RECORD, MAX_RECORDS),
        "floors": listed(_FLOOR, MAX_RECORDS),
    }
)


def check_record(record: Record, step: int) -> None:
    """Hold a record to what no schema can say.

    Raises:
        MalformedError: naming the record and what is wrong.
    """
    what = str(record.key)
    if record.key.step != step:
        raise MalformedError(f"{what}: does not belong to step {step}")
    if not record.key.site:
        raise MalformedError(f"{what}: the site is empty")
    as_int(math.prod(record.shape), f"{what}: the number of elements")
    if record.kind == "tensor":
        _check_tensor(record, what)
    else:
        _check_other(record, what)


def _check_tensor(record: Record, what: str) -> None:
    if not record.dtype:
        raise MalformedError(f"{what}: a tensor without a dtype")
    if record.moments is not None and record.moments.nan + record.moments.inf > record.moments.count:
        raise MalformedError(f"{what}: more NaN and Inf than elements")
    if record.sketch is not None:
        length = Geometry(*record.frame).size
        if record.sketch.dtype != np.float32 or record.sketch.shape != (length,):
            held = f"{record.sketch.dtype} {list(record.sketch.shape)}"
            raise MalformedError(f"{what}: the sketch of frame {record.frame} should be float32 [{length}], not {held}")
    if isinstance(record.value, np.ndarray):
        # Where rows were taken through a frame or are a range of the tensor's, the value holds those rows alone.
        taken = geometry(record.value.shape)
        if record.value.shape != record.shape and (taken.rows, taken.channels) != record.frame:
            raise MalformedError(
                f"{what}: the value's shape {record.value.shape} fits neither shape {record.shape} nor "
                f"frame {record.frame}"
            )
    elif record.value is not None:
        raise MalformedError(f"{what}: the value of a tensor is not an array")


def _check_other(record: Record, what: str) -> None:
    if record.shape or record.moments is not None or record.sketch is not None:
        raise MalformedError(f"{what}: a {record.kind} with a shape, moments or a sketch")
    if isinstance(record.value, np.ndarray) or (record.value is None) != (record.kind == "none"):
        raise MalformedError(f"{what}: a {record.kind} with the value {shown(record.value)}")


def encode_step(step: StepRecords) -> tuple[bytes, dict[str, Tensor]]:
    """The part's header and its tensors; follow the header with `container.data(tensors)`.

    Raises:
        MalformedError: a record or floor that the format does not allow, or two with the same key.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[Key] = set()
    document: dict[str, Any] = {"step": step.step, "records": [], "floors": []}
    for index, record in enumerate(step.records):
        record = _plain(record)
        entry = _members_of(record)
        _RECORD.read(_RECORD.write(entry), str(record.key))  # what is written can be read
        check_record(record, step.step)
        if record.key in seen:
            raise MalformedError(f"{record.key}: is recorded twice")
        seen.add(record.key)
        document["records"].append(entry)
        if record.sketch is not None:
            tensors[f"{index}.sketch"] = tensor(record.sketch)
        if isinstance(record.value, np.ndarray):
            try:
                tensors[f"{index}.value"] = tensor(record.value, record.dtype)
            except MalformedError as error:
                raise MalformedError(f"{record.key}: {error}") from None
    for index, (key, floor) in enumerate(step.floors.items()):
        _check_floor(key, floor, step.step)
        linf = None if math.isnan(floor.linf) else floor.linf
        document["floors"].append({"key": _row(key), "l2": floor.l2, "local_l2": floor.local_l2, "linf": linf})
        if floor.bins is not None:
            tensors[f"{index}.floor"] = tensor(floor.bins)
    text = json.dumps(_PART.write(document), separators=(",", ":"))
    return header(tensors, {DOCUMENT: text}), tensors


def _row(key: Key) -> tuple[str, str, str, int]:
    return key.stage, key.branch, key.site, key.call


def _members_of(record: Record) -> dict[str, Any]:
    """A record's members as its schema has them; None for what is not written."""
    return {
        "key": _row(record.key),
        "kind": record.kind,
        "dtype": record.dtype or None,
        "shape": record.shape if record.kind == "tensor" else None,
        "rows": record.rows or None,
        "frame": record.frame if record.frame != (0, 0) else None,
        "moments": record.moments,
        "scalar": record.value if record.kind == "scalar" else None,
    }


def _plain(record: Record) -> Record:
    """numpy's scalars as Python's for scalar records, as 0-d arrays for tensors."""
    if not isinstance(record.value, np.generic):
        return record
    return replace(record, value=np.asarray(record.value) if record.kind == "tensor" else record.value.item())


def _check_floor(key: Key, floor: Floor, step: int) -> None:
    what = f"the floor of {key}"
    if key.step != step:
        raise MalformedError(f"{what}: does not belong to step {step}")
    if floor.l2 < 0 or floor.local_l2 < 0 or floor.linf < 0:
        raise MalformedError(f"{what}: is negative")
    bins = floor.bins
    if bins is not None and (bins.dtype != np.float32 or bins.ndim != 1 or bins.size > BINS):
        raise MalformedError(f"{what}: its bins should be float32 [<= {BINS}], not {bins.dtype} {list(bins.shape)}")


def decode_step(buffer: memoryview, step: int) -> StepRecords:
    """The records of a part; sketches and values are read-only views of `buffer`, but for bfloat16 values.

    Raises:
        MalformedError: anything that `encode_step` would not have written.
    """
    metadata, tensors = parse_container(buffer)
    if DOCUMENT not in metadata:
        raise MalformedError("it is a safetensors file, but not a part of a golden")
    document = _PART.read(parse(metadata[DOCUMENT].encode("utf-8", "surrogatepass")), "")
    if document["step"] != step:
        raise MalformedError(f"it holds step {document['step']}, not step {step}")
    records = tuple(_record(entry, step, index, tensors) for index, entry in enumerate(document["records"]))
    if len({record.key for record in records}) != len(records):
        raise MalformedError("two of its records have the same key")
    floors = dict(_floor(entry, step, index, tensors) for index, entry in enumerate(document["floors"]))
    if len(floors) != len(document["floors"]):
        raise MalformedError("two of its floors have the same key")
    if tensors:
        raise MalformedError(f"its tensor {shown(next(iter(tensors)))} belongs to no record")
    return StepRecords(step, records, floors)


def _key(entry: dict[str, Any], step: int) -> Key:
    stage, branch, site, call = entry.pop("key")
    return Key(stage, step, branch, site, call)


def _record(entry: dict[str, Any], step: int, index: int, tensors: dict[str, Tensor]) -> Record:
    stored, held = tensors.pop(f"{index}.sketch", None), tensors.pop(f"{index}.value", None)
    if "scalar" in entry and held is not None:
        raise MalformedError(f"records[{index}] has two values")
    value = entry.pop("scalar", None if held is None else _value(held))
    record = Record(_key(entry, step), **entry, sketch=None if stored is None else stored.array, value=value)
    check_record(record, step)
    return record


def _value(held: Tensor) -> np.ndarray:
    return widen(held.array) if held.dtype == BFLOAT16 else held.array


def _floor(entry: dict[str, Any], step: int, index: int, tensors: dict[str, Tensor]) -> tuple[Key, Floor]:
    stored = tensors.pop(f"{index}.floor", None)
    key, floor = _key(entry, step), Floor(**entry, bins=None if stored is None else stored.array)
    _check_floor(key, floor, step)
    return key, floor
