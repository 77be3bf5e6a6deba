"""The parts of one golden read one after the other: what stands as it did in the step before is not read again.

Problem. The steps of a run have the same sites, in the same order, and differ in their numbers. Reading 5,000 records
a step as objects costs a hundred times what reading their bytes does.

How. The first part is read strictly (`parity.golden.disk.codec.decode_step`), and everything in its header but the
numbers of moments and floors is kept as text. A later part whose text is the same, byte for byte, therefore satisfies
all that was checked of the first: only its numbers are read, and checked as numbers. Where they stand
is known from the part before (`parity.golden.disk.template`), or found by regular expressions. Any other part is
read strictly again. A `Table` makes a `Record` when it is asked for one, equal to the one that `decode_step` makes.

Cost. That of the template; 56 bytes a record, and views of the mapped part.
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
from parity.golden.disk.template import Template
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
_ESCAPED = tuple(re.compile(p.pattern.replace('"', r'\\"').encode()) for p in (_START, _MOMENTS, _FLOOR))
"""The same in a header, which holds the document as a text."""
_BETWEEN = '],"floors":['
_QUOTE = ord("\\")
"""The first byte of a text in a header; only `"nan"` stands where a number could."""
_PREFIX = f'{{"{METADATA}":{{"{DOCUMENT}":'.encode()

Span = tuple[str, tuple[int, ...], int, int]
"""A tensor of a part: its safetensors dtype, its shape, its first byte and the one behind its last."""

Text = tuple[bytes, list[str], list[str]]
"""A header without its numbers: behind the document, and the pieces of its records and floors."""


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
    text: Text


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """What differs from part to part: the numbers of a header, and the tensors' bytes.

    Attributes:
        step: of the part. counts: int64 [records with moments, 3]: count, nan and inf. moments: float64 [records with
            moments, 4]: min, max, mean and l2. floors: float64 [floors, 3]: l2, local_l2 and linf. body: the tensors.
    """

    step: int
    counts: np.ndarray
    moments: np.ndarray
    floors: np.ndarray
    body: memoryview

    @property
    def sound(self) -> bool:
        """Whether they are what numbers must be."""
        negative = (self.floors < 0).any() or (self.counts < 0).any()
        finite = np.isfinite(self.moments).all() and not np.isinf(self.floors).any()
        return bool(finite and not negative and (self.counts[:, 1:].sum(axis=1) <= self.counts[:, 0]).all())


class Table(Sequence[Record]):
    """The records of one step, each made when it is asked for.

    Attributes:
        layout, step: of them. counts: int64 [records with moments, 3]: count, nan and inf. numbers: float64
            [records with moments, 4]: min, max, mean and l2. body: the part's tensors.
    """

    def __init__(self, layout: Layout, numbers: Numbers) -> None:
        self.layout, self.step, self.body = layout, numbers.step, numbers.body
        self.counts, self.numbers = numbers.counts, numbers.moments

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

    def __init__(self, layout: Layout, numbers: Numbers) -> None:
        self.layout, self.step, self.numbers, self.body = layout, numbers.step, numbers.floors, numbers.body

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
        self._template: tuple[Template, np.ndarray] | None = None

    def decode(self, buffer: memoryview, step: int) -> StepRecords:
        """The records of a part.

        Raises:
            MalformedError: see `parity.golden.disk.codec.decode_step`.
        """
        split = _split(buffer)
        if split is None:
            return decode_step(buffer, step)
        layout, numbers = self._layout, self._as_before(*split)
        if layout is None or numbers is None or layout.size != len(numbers.body) or numbers.step != step:
            return self._anew(buffer, step, *split)
        return StepRecords(step, Table(layout, numbers), FloorTable(layout, numbers))

    def _as_before(self, header: memoryview, body: memoryview) -> Numbers | None:
        """The numbers of a part whose header has the text of the one before."""
        if self._template is None:
            return None
        template, present = self._template
        found = template.numbers(header)
        return None if found is None else _numbers(found, present, body)

    def _anew(self, buffer: memoryview, step: int, header: memoryview, body: memoryview) -> StepRecords:
        """A part of which nothing is known yet, or whose numbers stand otherwise."""
        raw = bytes(header)
        found = _found(raw, body)
        if found is None or found[1].step != step:
            return decode_step(buffer, step)
        text, numbers = found
        layout = self._layout
        if layout is None or layout.text != text or layout.size != len(body):
            read = decode_step(buffer, step)
            if not _is_complete(numbers, read):
                return read
            layout = self._layout = _layout(text, read, len(body))
        self._template = _template(raw, numbers)
        return StepRecords(step, Table(layout, numbers), FloorTable(layout, numbers))


def _split(buffer: memoryview) -> tuple[memoryview, memoryview] | None:
    """The header and the tensors of a part."""
    length = int.from_bytes(buffer[:8], "little")
    if len(buffer) < 8 or length > min(MAX_HEADER, len(buffer) - 8):
        return None
    return buffer[8 : 8 + length], buffer[8 + length :]


def _found(raw: bytes, body: memoryview) -> tuple[Text, Numbers] | None:
    """A header's text and numbers, where it stands as the writer writes it and they are what numbers must be."""
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
    moments, limits = _columns(ours, 8, range(4, 8), np.float64), _columns(theirs, 4, range(1, 4), np.float64)
    numbers = Numbers(int(start[1]), counts, moments, limits, body)
    return ((raw[end:].rstrip(b" "), ours[::8], theirs[::4]), numbers) if numbers.sound else None


def _template(raw: bytes, numbers: Numbers) -> tuple[Template, np.ndarray] | None:
    """A header's template, and which numbers of its floors are there: bool [floors, 3]. None where some were written
    otherwise than the writer does."""
    every = (span for pattern in _ESCAPED for found in pattern.finditer(raw) for span in found.regs[1:])
    spans = [span for span in every if span[0] >= 0 and raw[span[0]] != _QUOTE]
    present = ~np.isnan(numbers.floors)
    if len(spans) != 1 + 7 * len(numbers.counts) + int(present.sum()):
        return None
    template = Template.of(raw, spans)
    return None if template is None else (template, present)


def _numbers(found: list[int | float], present: np.ndarray, body: memoryview) -> Numbers | None:
    """The numbers between a template's text, where they are what numbers must be."""
    step, limits = found[0], found[len(found) - int(present.sum()) :]
    held = found[1 : len(found) - len(limits)]
    whole = [held[i::7] for i in range(3)]
    if not isinstance(step, int) or any(set(map(type, column)) - {int} for column in whole):
        return None
    floors = np.full(present.shape, math.nan)
    try:
        counts = np.array(whole, np.int64).T.reshape(-1, 3)
        moments = np.array([held[i::7] for i in range(3, 7)], np.float64).T.reshape(-1, 4)
        floors[present] = limits
    except OverflowError:
        return None
    numbers = Numbers(step, counts, moments, floors, body)
    return numbers if numbers.sound else None


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


def _is_complete(numbers: Numbers, read: StepRecords) -> bool:
    """Whether all numbers of a part were found: written otherwise than the writer does, some stay in the text."""
    with_moments = sum(r.moments is not None for r in read.records)
    return len(numbers.counts) == with_moments and len(numbers.floors) == len(read.floors)


def _layout(text: Text, read: StepRecords, size: int) -> Layout:
    """The layout of a part that was read strictly."""
    entries = json.loads(b"{" + text[0][2:]) if len(text[0]) > 2 else {}
    spans = {name: (x["dtype"], tuple(x["shape"]), *x["data_offsets"]) for name, x in entries.items()}
    bare = tuple(map(_bare, read.records))
    position = itertools.count()
    keys = map(_of_step_0, read.floors)
    return Layout(
        records=bare,
        moments=np.array([-1 if r.moments is None else next(position) for r in read.records], np.int64),
        sketches=tuple(spans.get(f"{i}.sketch") for i in range(len(bare))),
        values=tuple(spans.get(f"{i}.value") for i in range(len(bare))),
        floors={key: i for i, key in enumerate(keys)},
        bins=tuple(spans.get(f"{i}.floor") for i in range(len(read.floors))),
        size=size,
        text=text,
    )


def _of_step_0(key: Key) -> Key:
    return Key(key.stage, 0, key.branch, key.site, key.call)


def _bare(r: Record) -> Record:
    """A record of step 0 without what changes from part to part."""
    value = None if isinstance(r.value, np.ndarray) else r.value
    return Record(_of_step_0(r.key), r.kind, r.shape, r.dtype, r.rows, r.frame, value=value)
