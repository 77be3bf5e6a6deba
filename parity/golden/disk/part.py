"""One step's records as a safetensors file, column by column.

What changes from step to step is numbers; what does not is names. So the numbers of all records are columns, arrays of
the file, and the names one text of its metadata, which the steps of a run share: it is read once. A `Record` is made
when it is asked for.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from parity.errors import MalformedError, shown
from parity.golden.disk.tensors import Stored, read_tensors, write_tensors
from parity.records import Floor, Key, Kind, Moments, Record, Scalar, StepRecords
from parity.sketch import BINS, Geometry, geometry

MAX_RECORDS = 1_000_000
MAX_STEP = 1_000_000
ROWS = "parity-records"
"""The name of the text in the metadata."""

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Shape = Annotated[tuple[_Count, ...], msgspec.Meta(max_length=64)]


class Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a record is at every step; attributes without a comment are those of `Record` and its `Key`."""

    stage: _Text
    branch: _Text
    site: _Text
    call: _Count
    kind: Kind
    dtype: _Text
    shape: _Shape
    rows: _Text
    frame: tuple[_Count, _Count]
    value: str | bool | int | None  # of a scalar; of a float None: it stands in a column
    moments: bool  # whether it has them, and so on
    sketch: bool
    held: bool
    floor: bool
    bins: Annotated[int, msgspec.Meta(ge=-1, le=BINS)]  # of its floor; -1 where that has none

    @property
    def key(self) -> Key:
        """Of step 0."""
        return Key(self.stage, 0, self.branch, self.site, self.call)


_COLUMNS: Mapping[str, tuple[str, int]] = {
    "step": ("int64", 0), "counts": ("int64", 3), "moments": ("float64", 4), "sketches": ("float32", 0),
    "floors": ("float64", 3), "bins": ("float32", 0), "scalars": ("float64", 0),
}  # fmt: skip
"""Name -> dtype and width of each array but for held values: `value.<record>`."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Layout:
    """What the steps of a run have in common.

    Attributes:
        records: of step 0, without what is in columns. moments, sketches, scalars: int64 [records], where each begins
            in its column; -1 where there is none. values: whether its value is held.
        floors: their keys of step 0, with their positions. bins: int64 [floors], where each begins; -1 without.
        bin_counts: int64 [floors]. lengths: of the columns.
    """

    records: tuple[Record, ...]
    moments: np.ndarray
    sketches: np.ndarray
    scalars: np.ndarray
    values: tuple[bool, ...]
    floors: Mapping[Key, int]
    bins: np.ndarray
    bin_counts: np.ndarray
    lengths: Mapping[str, int]


class Table(Sequence[Record]):
    """The records of one step, each made when it is asked for.

    Attributes:
        layout, step: of them. counts: int64 [records with moments, 3]: count, nan and inf. numbers: float64
            [records with moments, 4]: min, max, mean and l2. sketches: float32, one behind the other.

    Args:
        made: the records, where they are there.
    """

    def __init__(
        self, layout: Layout, step: int, arrays: Mapping[str, Stored], made: Sequence[Record] | None = None
    ) -> None:
        self.layout, self.step, self._arrays, self._made = layout, step, arrays, made
        self.counts, self.numbers, self.sketches = (arrays[name].bits for name in ("counts", "moments", "sketches"))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if self._made is not None:
            return self._made[index]
        base, at, start = self.layout.records[index], self.layout.moments[index], self.layout.sketches[index]
        return Record(  # `replace` takes longer
            Key(base.key.stage, self.step, base.key.branch, base.key.site, base.key.call),
            base.kind,
            base.shape,
            base.dtype,
            base.rows,
            base.frame,
            None if at < 0 else Moments(*self.counts[at].tolist(), *self.numbers[at].tolist()),
            None if start < 0 else self.sketches[start : start + Geometry(*base.frame).size],
            self._value(index % len(self)),
        )

    def _value(self, index: int) -> np.ndarray | Scalar | None:
        if self.layout.values[index]:
            return self._arrays[f"value.{index}"].values
        at = int(self.layout.scalars[index])
        return self.layout.records[index].value if at < 0 else float(self._arrays["scalars"].bits[at])

    def __len__(self) -> int:
        return len(self.layout.records)


def chosen(records: Sequence[Record], which: Callable[[Record], bool]) -> Iterator[Record]:
    """The records that are asked for by what is the same at every step; a golden's others are not made.

    Args:
        which: a function of a module, which steps that share a layout are asked once.
    """
    if isinstance(records, Table):
        return (records[i] for i in _places(records.layout, which))
    return filter(which, records)


def named(records: Sequence[Record]) -> Sequence[Record]:
    """The records as far as they are the same at every step, which makes none: their keys are of step 0."""
    return records.layout.records if isinstance(records, Table) else records


def recorded_modules(records: Sequence[Record], stage: str) -> frozenset[str]:
    """The modules of a stage of which there is a record."""
    return frozenset(r.key.module for r in named(records) if r.key.stage == stage)


@functools.lru_cache(maxsize=8)
def _places(layout: Layout, which: Callable[[Record], bool]) -> tuple[int, ...]:
    return tuple(i for i, base in enumerate(layout.records) if which(base))


class FloorTable(Mapping[Key, Floor]):
    """The floors of one step, each made when it is asked for.

    Attributes:
        layout, step: of them. numbers: float64 [floors, 3]: l2, NaN and linf. bins: float32, one floor's behind
            the other's.
    """

    def __init__(self, layout: Layout, step: int, arrays: Mapping[str, Stored]) -> None:
        self.layout, self.step = layout, step
        self.numbers, self.bins = arrays["floors"].bits, arrays["bins"].bits

    def times(self, factors: np.ndarray, most: np.ndarray) -> FloorTable:
        """The floors, each so many times as wide, but those that are not so wide already no wider than this.

        Args:
            factors, most: float64 [floors].
        """
        wider, held = copy.copy(self), np.flatnonzero(self.layout.bins >= 0)
        held = held[np.argsort(self.layout.bins[held])].repeat(self.layout.bin_counts[held])  # the floor of each bin
        wider.numbers, wider.bins = (
            np.minimum(x * factors[at], np.maximum(x, most[at])).T.astype(x.dtype)
            for x, at in ((self.numbers.T, slice(None)), (self.bins, held))
        )
        return wider

    def __getitem__(self, key: Key) -> Floor:
        if key.step != self.step:
            raise KeyError(key)
        at = self.layout.floors[replace(key, step=0)]
        start, count = int(self.layout.bins[at]), int(self.layout.bin_counts[at])
        l2, _, linf = self.numbers[at].tolist()
        return Floor(l2, None if start < 0 else self.bins[start : start + count], linf)

    def __iter__(self) -> Iterator[Key]:
        return (replace(key, step=self.step) for key in self.layout.floors)

    def __len__(self) -> int:
        return len(self.layout.floors)


# --- names


_READ = msgspec.json.Decoder(Annotated[tuple[Row, ...], msgspec.Meta(max_length=MAX_RECORDS)])


@functools.lru_cache(maxsize=4)
def layout_of(text: str) -> Layout:
    """The layout that a part's text names.

    Raises:
        MalformedError: it names no records, or two with the same key.
    """
    try:
        rows = _READ.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise MalformedError(f"its records: {error}") from None
    for row in rows:
        if wrong := _wrong(row):
            raise MalformedError(f"{row.key}: {wrong}")
    keys = [row.key for row in rows]
    if len(set(keys)) != len(keys):
        raise MalformedError("two of its records have the same key")
    return _laid_out(tuple(rows))


@functools.lru_cache(maxsize=4)
def _laid_out(rows: tuple[Row, ...]) -> Layout:
    floors = [row for row in rows if row.floor]
    sizes = {
        "moments": [1 if row.moments else None for row in rows],
        "sketches": [Geometry(*row.frame).size if row.sketch else None for row in rows],
        "scalars": [1 if row.kind == "scalar" and row.value is None else None for row in rows],
        "bins": [None if row.bins < 0 else row.bins for row in floors],
    }
    lengths = {name: sum(size or 0 for size in each) for name, each in sizes.items()}
    return Layout(
        records=tuple(Record(r.key, r.kind, r.shape, r.dtype, r.rows, r.frame, value=r.value) for r in rows),
        values=tuple(row.held for row in rows),
        floors={row.key: i for i, row in enumerate(floors)},
        bin_counts=np.array([count or 0 for count in sizes["bins"]], np.int64),
        lengths={"step": 1, "floors": len(floors), "counts": lengths["moments"], **lengths},
        **{name: _starts(each) for name, each in sizes.items()},
    )


def _wrong(row: Row) -> str:
    """What is wrong with a row that no type says; empty for nothing."""
    if not row.site:
        return "the site is empty"
    if math.prod(row.shape) > 2**63 - 1 or row.frame[0] * row.frame[1] > 2**63 - 1:
        return "the number of elements is too large"
    if row.bins >= 0 and not row.floor:
        return "bins without a floor"
    if row.kind == "tensor":
        return "" if row.dtype and row.value is None else "a tensor without a dtype, or with the value of a scalar"
    if row.shape or row.moments or row.sketch or row.held or (row.kind == "none" and row.value is not None):
        return f"a {row.kind} with a shape, moments, a sketch or another's value"
    return ""


def _starts(sizes: Sequence[int | None]) -> np.ndarray:
    """int64: where each begins, one behind the other; -1 for what is not there, None."""
    known = np.array([size or 0 for size in sizes], np.int64)
    return np.where(np.array([size is not None for size in sizes], bool), np.cumsum(known) - known, -1)


# --- from memory


def tabled(step: StepRecords) -> tuple[Table, FloorTable]:
    """A step's records and their floors as columns, as a golden's are; steps that are alike share a layout."""
    if isinstance(step.records, Table) and isinstance(step.floors, FloorTable):
        return step.records, step.floors
    rows, arrays = _columns(step, tuple(map(_plain, step.records)))
    layout = _laid_out(rows)
    return Table(layout, step.step, arrays, step.records), FloorTable(layout, step.step, arrays)


# --- writing


def write_part(path: Path, step: StepRecords) -> None:
    """Write a step.

    Raises:
        MalformedError: a record or floor that the format does not allow, or two with the same key.
        OSError: it cannot be written.
    """
    records = tuple(map(_plain, step.records))
    if foreign := [record.key for record in records if record.key.step != step.step]:
        raise MalformedError(f"{foreign[0]}: does not belong to step {step.step}")
    if loose := step.floors.keys() - {record.key for record in records}:
        raise MalformedError(f"the floor of {next(iter(loose))}: there is no such record")
    rows, arrays = _columns(step, records)
    held = {f"value.{i}": _array(r.value, r) for i, r in enumerate(records) if isinstance(r.value, np.ndarray)}
    try:
        text = msgspec.json.encode(rows).decode()
    except (OverflowError, UnicodeError) as error:
        raise MalformedError(f"a record of step {step.step}: {error}") from None
    _check_columns(layout_of(text), {**arrays, **held})  # what is written can be read
    write_tensors(path, {**arrays, **held}, (ROWS, text))


def _columns(step: StepRecords, records: Sequence[Record]) -> tuple[tuple[Row, ...], dict[str, Stored]]:
    """A step's records, as `_plain` gives them: what they are at every step, and their numbers column by column."""
    floors = [step.floors.get(record.key) for record in records]
    known = [floor for floor in floors if floor is not None]
    moments = [record.moments for record in records if record.moments is not None]
    found: dict[str, Sequence[Any] | np.ndarray] = {
        "step": [step.step],
        "counts": [(m.count, m.nan, m.inf) for m in moments],
        "moments": [(m.min, m.max, m.mean, m.l2) for m in moments],
        "sketches": _joined(record.sketch for record in records),
        "floors": [(floor.l2, math.nan, floor.linf) for floor in known],
        "bins": _joined(floor.bins for floor in known),
        "scalars": [record.value for record in records if isinstance(record.value, float)],
    }
    columns = {
        name: Stored(np.asarray(found[name], dtype).reshape((-1, width) if width else -1), dtype)
        for name, (dtype, width) in _COLUMNS.items()
    }
    return tuple(map(_row, records, floors)), columns


def _joined(arrays: Iterable[np.ndarray | None]) -> np.ndarray:
    """Those that are there, one behind the other."""
    return np.concatenate([np.zeros(0, np.float32), *(x for x in arrays if x is not None)])


def _array(value: np.ndarray, record: Record) -> Stored:
    try:
        return Stored.of(value, record.dtype)
    except MalformedError as error:
        raise MalformedError(f"{record.key}: {error}") from None


def _plain(record: Record) -> Record:
    """numpy's scalars as Python's for scalar records, as 0-d arrays for tensors."""
    if not isinstance(record.value, np.generic):
        return record
    return replace(record, value=np.asarray(record.value) if record.kind == "tensor" else record.value.item())


def _text(text: str) -> str:
    """A text as UTF-8 has it: half a character, as in names of files, is written as an escape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _row(record: Record, floor: Floor | None) -> Row:
    value = record.value
    if record.kind == "scalar" and not isinstance(value, (str, bool, int, float)):
        raise MalformedError(f"{record.key}: a scalar with the value {shown(value)}")
    key = record.key
    return Row(
        stage=key.stage,
        branch=key.branch,
        site=_text(key.site),
        call=key.call,
        kind=record.kind,
        dtype=record.dtype,
        shape=tuple(record.shape),
        rows=record.rows,
        frame=record.frame,
        value=_text(value) if isinstance(value, str) else value if isinstance(value, int) else None,
        moments=record.moments is not None,
        sketch=record.sketch is not None,
        held=isinstance(value, np.ndarray),
        floor=floor is not None,
        bins=-1 if floor is None or floor.bins is None else floor.bins.size,
    )


# --- reading


def read_part(path: Path, buffer: memoryview, step: int) -> StepRecords:
    """The records and floors of a step; sketches and values are views of the buffer.

    Args:
        path: of the file. buffer: its content, mapped.

    Raises:
        MalformedError: it is no part of a golden, is of another step, or what it holds does not add up.
    """
    metadata, arrays = read_tensors(path, buffer)
    if ROWS not in metadata:
        raise MalformedError(f"it is not a part of a golden (no '{ROWS}' in its metadata)")
    layout = layout_of(metadata[ROWS])
    _check_columns(layout, arrays)
    found = int(arrays["step"].bits[0])
    if found != step:
        raise MalformedError(f"it holds step {found}, not step {step}")
    return StepRecords(step, Table(layout, step, arrays), FloorTable(layout, step, arrays))


def _check_columns(layout: Layout, arrays: Mapping[str, Stored]) -> None:
    held = {f"value.{i}" for i, has in enumerate(layout.values) if has}
    if strange := sorted(arrays.keys() ^ (_COLUMNS.keys() | held)):
        raise MalformedError(f"its tensor {shown(strange[0])} belongs to no record, or is missing")
    for name, (dtype, width) in _COLUMNS.items():
        shape = (layout.lengths[name], width) if width else (layout.lengths[name],)
        if arrays[name].dtype != dtype or arrays[name].bits.shape != shape:
            raise MalformedError(f"its {name} should be {dtype} {list(shape)}")
    counts, floors = arrays["counts"].bits, arrays["floors"].bits
    if (counts < 0).any() or (counts[:, 1] > counts[:, 0] - counts[:, 2]).any():
        raise MalformedError("it counts more NaN and Inf than elements, or less than none")
    if (floors < 0).any() or (arrays["bins"].bits < 0).any():
        raise MalformedError("one of its floors is negative")
    for name in held:
        record, shape = layout.records[int(name.partition(".")[2])], arrays[name].bits.shape
        # Where rows were taken through a frame or are a range of the tensor's, the value holds those rows alone.
        taken = geometry(shape)
        if shape != record.shape and (taken.rows, taken.channels) != record.frame:
            raise MalformedError(
                f"{record.key}: the value's shape {shape} fits neither shape {record.shape} nor frame {record.frame}"
            )
