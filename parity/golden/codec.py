"""One step's records as a safetensors part, and back.

Problem. Records mix names, numbers, sketches and whole tensors; a part must give each of them back exactly, and
nothing that is not a record.

How. Sketches, values and floor bins are tensors of the part, named `<record>.sketch`, `<record>.value` and
`<floor>.floor` by position; everything else is one JSON document in the header's metadata, under the name `parity`.
`check_record` states what a record must satisfy; the writer and the reader both hold to it, so that what is written
can be read. Nothing here knows files: failures are `MalformedError`, and the caller names the file.

Cost. About 350 bytes of JSON a record beside its sketch.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np

from parity.golden.container import BFLOAT16, Tensor, header, parse_container, tensor, widen
from parity.golden.records import Floor, Key, Kind, Moments, Record, Scalar, StepRecords
from parity.golden.sketch import BINS, Geometry, geometry
from parity.golden.strict import (
    MAX_INT,
    MAX_NAME,
    MalformedError,
    as_bool,
    as_int,
    as_list,
    as_number,
    as_object,
    as_text,
    number,
    parse,
    shown,
)

MAX_RECORDS = 1_000_000
MAX_STEP = 1_000_000
DOCUMENT = "parity"
_PART = frozenset({"step", "records", "floors"})
_RECORD = frozenset({"key", "kind"})
_RECORD_OPTIONAL = frozenset({"shape", "dtype", "rows", "frame", "moments", "scalar"})
_FLOOR = frozenset({"key", "l2", "local_l2"})
_FLOOR_OPTIONAL = frozenset({"linf"})
_COUNTS = ("count", "nan", "inf")
_STATISTICS = ("min", "max", "mean", "l2")
_MOMENTS = frozenset(_COUNTS + _STATISTICS)
_KINDS = get_args(Kind)


def check_record(record: Record, step: int) -> None:
    """Hold a record to the format.

    Raises:
        MalformedError: naming the record and what is wrong.
    """
    what = str(record.key)
    if record.key.step != step:
        raise MalformedError(f"{what}: does not belong to step {step}")
    as_int(record.key.call, f"{what}: the call")
    for name, text in (
        ("stage", record.key.stage),
        ("branch", record.key.branch),
        ("site", record.key.site),
        ("dtype", record.dtype),
        ("row frame", record.rows),
    ):
        as_text(text, f"{what}: the {name}")
    if not record.key.site:
        raise MalformedError(f"{what}: the site is empty")
    if record.kind not in _KINDS:
        raise MalformedError(f"{what}: the kind {shown(record.kind)} is none of {', '.join(_KINDS)}")
    for size in (*record.shape, *record.frame):
        as_int(size, f"{what}: a size")
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
    as_int(step.step, "the step", least=-1, most=MAX_STEP)
    as_int(len(step.records), "the number of records", most=MAX_RECORDS)
    tensors: dict[str, Tensor] = {}
    records: list[dict[str, Any]] = []
    seen: set[Key] = set()
    for index, record in enumerate(step.records):
        record = _plain(record)
        check_record(record, step.step)
        if record.key in seen:
            raise MalformedError(f"{record.key}: is recorded twice")
        seen.add(record.key)
        records.append(_encode_record(record))
        if record.sketch is not None:
            tensors[f"{index}.sketch"] = tensor(record.sketch)
        if isinstance(record.value, np.ndarray):
            try:
                tensors[f"{index}.value"] = tensor(record.value, record.dtype)
            except MalformedError as error:
                raise MalformedError(f"{record.key}: {error}") from None
    floors: list[dict[str, Any]] = []
    for index, (key, floor) in enumerate(step.floors.items()):
        _check_floor(key, floor, step.step)
        floors.append(_encode_floor(key, floor))
        if floor.bins is not None:
            tensors[f"{index}.floor"] = tensor(floor.bins)
    document = json.dumps({"step": step.step, "records": records, "floors": floors}, separators=(",", ":"))
    return header(tensors, {DOCUMENT: document}), tensors


def _plain(record: Record) -> Record:
    """numpy's scalars as Python's for scalar records, as 0-d arrays for tensors."""
    if not isinstance(record.value, np.generic):
        return record
    return replace(record, value=np.asarray(record.value) if record.kind == "tensor" else record.value.item())


def _encode_key(key: Key) -> list[Any]:
    return [key.stage, key.branch, key.site, int(key.call)]


def _encode_record(record: Record) -> dict[str, Any]:
    entry: dict[str, Any] = {"key": _encode_key(record.key), "kind": record.kind}
    if record.dtype:
        entry["dtype"] = record.dtype
    if record.kind == "tensor":
        entry["shape"] = list(record.shape)
    if record.rows:
        entry["rows"] = record.rows
    if record.frame != (0, 0):
        entry["frame"] = list(record.frame)
    if (moments := record.moments) is not None:
        entry["moments"] = {name: int(getattr(moments, name)) for name in _COUNTS}
        entry["moments"] |= {name: number(getattr(moments, name)) for name in _STATISTICS}
    if record.kind == "scalar":
        entry["scalar"] = _encode_scalar(cast(Scalar, record.value), str(record.key))
    return entry


def _encode_floor(key: Key, floor: Floor) -> dict[str, Any]:
    entry = {"key": _encode_key(key), "l2": number(floor.l2), "local_l2": number(floor.local_l2)}
    return entry if math.isnan(floor.linf) else entry | {"linf": number(floor.linf)}


def _encode_scalar(value: Scalar, what: str) -> dict[str, Any]:
    # The type is said, because "nan" the string and nan the number would look the same.
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        if abs(value) > MAX_INT:
            raise MalformedError(f"{what}: the integer has more than 63 bits")
        return {"int": int(value)}
    if isinstance(value, float):
        return {"float": number(value)}
    return {"str": as_text(value, f"{what}: the value")}


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
    document = as_object(parse(metadata[DOCUMENT].encode("utf-8", "surrogatepass")), "the part", _PART)
    held = as_int(document["step"], "the step", least=-1, most=MAX_STEP)
    if held != step:
        raise MalformedError(f"it holds step {held}, not step {step}")
    entries = as_list(document["records"], "the records", MAX_RECORDS)
    records = tuple(_decode_record(entry, step, index, tensors) for index, entry in enumerate(entries))
    if len({record.key for record in records}) != len(records):
        raise MalformedError("two of its records have the same key")
    entries = as_list(document["floors"], "the floors", MAX_RECORDS)
    floors = dict(_decode_floor(entry, step, index, tensors) for index, entry in enumerate(entries))
    if len(floors) != len(entries):
        raise MalformedError("two of its floors have the same key")
    if tensors:
        raise MalformedError(f"its tensor {shown(next(iter(tensors)))} belongs to no record")
    return StepRecords(step, records, floors)


def _decode_key(value: Any, step: int, what: str) -> Key:
    fields = as_list(value, f"the key of {what}", 4)
    if len(fields) != 4:
        raise MalformedError(f"the key of {what} has {len(fields)} entries, not 4")
    stage, branch, site = (as_text(text, f"the key of {what}") for text in fields[:3])
    return Key(stage, step, branch, site, as_int(fields[3], f"the call of {what}"))


def _decode_record(value: Any, step: int, index: int, tensors: dict[str, Tensor]) -> Record:
    what = f"record {index}"
    entry = as_object(value, what, _RECORD, _RECORD_OPTIONAL)
    kind = as_text(entry["kind"], f"the kind of {what}")
    dtype = as_text(entry.get("dtype", ""), f"the dtype of {what}")
    shape = tuple(as_int(n, f"the shape of {what}") for n in as_list(entry.get("shape", []), "the shape", 64))
    frame = tuple(as_int(n, f"the frame of {what}") for n in as_list(entry.get("frame", [0, 0]), "the frame", 2))
    if len(frame) != 2:
        raise MalformedError(f"the frame of {what} is not two numbers")
    stored = tensors.pop(f"{index}.sketch", None)
    held = tensors.pop(f"{index}.value", None)
    record = Record(
        _decode_key(entry["key"], step, what),
        cast(Kind, kind),
        shape,
        dtype,
        as_text(entry.get("rows", ""), f"the rows of {what}"),
        frame,
        _decode_moments(entry["moments"], what) if "moments" in entry else None,
        None if stored is None else stored.array,
        _decode_scalar(entry["scalar"], what) if "scalar" in entry else None if held is None else _decode_value(held),
    )
    check_record(record, step)
    if "scalar" in entry and held is not None:
        raise MalformedError(f"{what} has two values")
    return record


def _decode_value(held: Tensor) -> np.ndarray:
    return widen(held.array) if held.dtype == BFLOAT16 else held.array


def _decode_moments(value: Any, what: str) -> Moments:
    entry = as_object(value, f"the moments of {what}", _MOMENTS)
    counts = [as_int(entry[name], f"the {name} of {what}") for name in _COUNTS]
    return Moments(*counts, *(as_number(entry[name], f"the {name} of {what}") for name in _STATISTICS))


def _decode_scalar(value: Any, what: str) -> Scalar:
    if not isinstance(value, dict) or len(value) != 1:
        raise MalformedError(f"the scalar of {what} is {shown(value)}")
    (name, held), what = next(iter(value.items())), f"the scalar of {what}"
    if name == "bool":
        return as_bool(held, what)
    if name == "int":
        return as_int(held, what, least=-MAX_INT)
    if name == "float":
        return as_number(held, what)
    if name == "str":
        return as_text(held, what, MAX_NAME)
    raise MalformedError(f"{what} has the unknown type {shown(name)}")


def _decode_floor(value: Any, step: int, index: int, tensors: dict[str, Tensor]) -> tuple[Key, Floor]:
    what = f"floor {index}"
    entry = as_object(value, what, _FLOOR, _FLOOR_OPTIONAL)
    stored = tensors.pop(f"{index}.floor", None)
    floor = Floor(
        as_number(entry["l2"], what),
        None if stored is None else stored.array,
        as_number(entry["local_l2"], what),
        as_number(entry.get("linf", "nan"), what),
    )
    key = _decode_key(entry["key"], step, what)
    _check_floor(key, floor, step)
    return key, floor
