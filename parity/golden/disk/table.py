"""The parts of one golden read one after the other: what stands as it did in the step before is not read again.

Problem. The steps of a run have the same sites, in the same order, and differ in their numbers. Reading 5,000 records
a step as objects costs a hundred times what reading their bytes does.

How. The first part is read strictly (`parity.golden.disk.codec.decode_step`), and everything in its header but the
numbers of moments and floors is kept as text. A later part whose text is the same, byte for byte, therefore satisfies
all that was checked of the first: only its numbers are read, and held to what numbers must satisfy. Any other part is
read strictly again. A `Table` makes a `Record` when it is asked for one, equal to the one that `decode_step` makes.

Cost. One pass of a regular expression over the header; 56 bytes a record, and views of the mapped part.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from parity.golden.disk.codec import DOCUMENT, decode_step
from parity.golden.disk.container import BFLOAT16, MAX_HEADER, METADATA, storage, widen
from parity.golden.records import Floor, Key, Moments, Record, StepRecords

_NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?"
_COUNT = r"0|[1-9]\d{0,17}"
_MOMENTS = re.compile(
    rf'"moments":\{{"count":({_COUNT}),"nan":({_COUNT}),"inf":({_COUNT}),'
    rf'"min":({_NUMBER}),"max":({_NUMBER}),"mean":({_NUMBER}),"l2":({_NUMBER})\}}'
)
"""As the writer puts them. Text in JSON holds no bare quote, so nothing else looks like this."""
_FLOOR = re.compile(rf'"l2":({_NUMBER}),"local_l2":({_NUMBER}|"nan")(?:,"linf":({_NUMBER}))?\}}')
_START = re.compile(r'\{"step":(-?\d+),"records":\[')
_BETWEEN = '],"floors":['
_PREFIX = f'{{"{METADATA}":{{"{DOCUMENT}":'.encode()

Span = tuple[str, tuple[int, ...], int, int]
"""A tensor of a part: its safetensors dtype, its shape, its first byte and the one behind its last."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Layout:
    """What the parts of equal steps have in common.

    Attributes:
        records: of step 0, without moments, sketch and value. moments: int64 [records], the position among those with
            moments; -1 without. sketches, values, bins: where each lies; None where there is none.
        floors: their keys of step 0, with their positions. size: bytes of all tensors.
        text: everything in the header but its numbers.
    """

    records: tuple[Record, ...]
    moments: np.ndarray
    sketches: tuple[Span | None, ...]
    values: tuple[Span | None, ...]
    floors: Mapping[Key, int]
    bins: tuple[Span | None, ...]
    size: int
    text: tuple[bytes, list[str], list[str]]


@dataclass(frozen=True, slots=True)
class _Header:
    """A part's header, its numbers apart."""

    step: int
    text: tuple[bytes, list[str], list[str]]
    counts: np.ndarray
    numbers: np.ndarray
    floors: np.ndarray
    body: memoryview


class Table(Sequence[Record]):
    """The records of one step, each made when it is asked for.

    Attributes:
        layout, step: of them. counts: int64 [records with moments, 3]: count, nan and inf. numbers: float64
            [records with moments, 4]: min, max, mean and l2. body: the part's tensors.
    """

    def __init__(self, layout: Layout, header: _Header) -> None:
        self.layout, self.step, self.body = layout, header.step, header.body
        self.counts, self.numbers = header.counts, header.numbers

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, index: int | slice) -> Record | tuple[Record, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        base, at = self.layout.records[index], int(self.layout.moments[index])
        key = base.key
        sketch, value = self.layout.sketches[index], self.layout.values[index]
        return Record(
            Key(key.stage, self.step, key.branch, key.site, key.call),
            base.kind,
            base.shape,
            base.dtype,
            base.rows,
            base.frame,
            None if at < 0 else Moments(*self.counts[at].tolist(), *self.numbers[at].tolist()),
            None if sketch is None else _array(self.body, sketch),
            base.value if value is None else _array(self.body, value),
        )

    def __len__(self) -> int:
        return len(self.layout.records)

    def where(self, which: Callable[[Record], bool]) -> Iterator[Record]:
        """The records whose layout is asked for."""
        return (self[i] for i, base in enumerate(self.layout.records) if which(base))


class FloorTable(Mapping[Key, Floor]):
    """The floors of one step, each made when it is asked for.

    Attributes:
        layout, step: of them. numbers: float64 [floors, 3]: l2, local_l2 and linf. body: the part's tensors.
    """

    def __init__(self, layout: Layout, header: _Header) -> None:
        self.layout, self.step, self.numbers, self.body = layout, header.step, header.floors, header.body

    def __getitem__(self, key: Key) -> Floor:
        if key.step != self.step:
            raise KeyError(key)
        at = self.layout.floors[replace(key, step=0)]
        span = self.layout.bins[at]
        l2, local, linf = self.numbers[at].tolist()
        return Floor(l2, None if span is None else _array(self.body, span), local, linf)

    def __iter__(self) -> Iterator[Key]:
        return (replace(key, step=self.step) for key in self.layout.floors)

    def __len__(self) -> int:
        return len(self.layout.floors)


def _array(body: memoryview, span: Span) -> np.ndarray:
    dtype, shape, start, end = span
    found = np.frombuffer(body[start:end], storage(dtype)).reshape(shape)
    return widen(found) if dtype == BFLOAT16 else found


class Parts:
    """Reads the parts of one golden."""

    def __init__(self) -> None:
        self._layout: Layout | None = None

    def decode(self, buffer: memoryview, step: int) -> StepRecords:
        """The records of a part.

        Raises:
            MalformedError: see `parity.golden.disk.codec.decode_step`.
        """
        header = _header(buffer)
        if header is None or header.step != step:
            return decode_step(buffer, step)
        layout = self._layout
        if layout is None or layout.text != header.text or layout.size != len(header.body):
            read = decode_step(buffer, step)
            if not _is_complete(header, read):
                return read
            layout = self._layout = _layout(header, read)
        return StepRecords(step, Table(layout, header), FloorTable(layout, header))


def _header(buffer: memoryview) -> _Header | None:
    """A part's header, where it stands as the writer writes it and its numbers are what numbers must be."""
    length = int.from_bytes(buffer[:8], "little")
    if len(buffer) < 8 or length > min(MAX_HEADER, len(buffer) - 8):
        return None
    raw = bytes(buffer[8 : 8 + length])
    end = raw.find(b'}"}', len(_PREFIX)) + 2  # the end of the text: every quote in it stands behind a backslash
    if not raw.startswith(_PREFIX) or end < 2:
        return None
    try:
        document = json.loads(raw[len(_PREFIX) : end].decode("ascii"))
    except ValueError:
        return None
    start = _START.match(document) if isinstance(document, str) else None
    if start is None or document.count(_BETWEEN) != 1:
        return None
    records, _, floors = document[start.end() :].partition(_BETWEEN)
    ours, theirs = _MOMENTS.split(records), _FLOOR.split(floors)
    counts = _columns(ours, 8, range(1, 4), np.int64)
    numbers, limits = _columns(ours, 8, range(4, 8), np.float64), _columns(theirs, 4, range(1, 4), np.float64)
    if not np.isfinite(numbers).all() or np.isinf(limits).any() or (limits < 0).any():
        return None
    if (counts[:, 1] + counts[:, 2] > counts[:, 0]).any():
        return None
    text = (raw[end:].rstrip(b" "), ours[::8], theirs[::4])
    return _Header(int(start[1]), text, counts, numbers, limits, buffer[8 + length :])


def _columns(pieces: list[Any], every: int, of: range, dtype: type) -> np.ndarray:
    """Columns of the numbers between pieces of text: [rows, columns]."""
    convert = int if dtype is np.int64 else float
    columns = []
    for i in of:
        texts = pieces[i::every]
        special = None in texts or '"nan"' in texts
        columns.append(list(map(_float if special else convert, texts)))
    return np.array(columns, dtype).T.reshape(-1, len(of))


def _float(text: str | None) -> float:
    return math.nan if text is None or text == '"nan"' else float(text)


def _is_complete(header: _Header, read: StepRecords) -> bool:
    """Whether all numbers of a part were found: written otherwise than the writer does, some stay in the text."""
    with_moments = sum(r.moments is not None for r in read.records)
    return len(header.counts) == with_moments and len(header.floors) == len(read.floors)


def _layout(header: _Header, read: StepRecords) -> Layout:
    """The layout of a part that was read strictly."""
    entries = json.loads(b"{" + header.text[0][2:]) if len(header.text[0]) > 2 else {}
    spans = {name: (x["dtype"], tuple(x["shape"]), *x["data_offsets"]) for name, x in entries.items()}
    bare = tuple(
        replace(
            r,
            key=replace(r.key, step=0),
            moments=None,
            sketch=None,
            value=None if isinstance(r.value, np.ndarray) else r.value,
        )
        for r in read.records
    )
    position = itertools.count()
    keys = [replace(key, step=0) for key in read.floors]
    return Layout(
        records=bare,
        moments=np.array([-1 if r.moments is None else next(position) for r in read.records], np.int64),
        sketches=tuple(spans.get(f"{i}.sketch") for i in range(len(bare))),
        values=tuple(spans.get(f"{i}.value") for i in range(len(bare))),
        floors={key: i for i, key in enumerate(keys)},
        bins=tuple(spans.get(f"{i}.floor") for i in range(len(keys))),
        size=len(header.body),
        text=header.text,
    )
