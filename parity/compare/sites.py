"""The judged sites of many steps in little memory: columns, spilled to a temporary file.

Problem. Two goldens of 5,000 sites and 50 steps give 250,000 `SiteDiff`s of 2.8 KB each, and a report reads a handful.

How. What a site is called and how its tensors lie is the same at every step and is held once (`Places`). Its numbers
become columns of a file without a name, in memory while that is small. A byte each for verdict, birth and what is
asked for most stays in memory, so that `among` finds the sites that a reader wants without reading the others. Who
iterates over all of them gets the same `SiteDiff`s as were added, in their order.

Cost. 4 bytes of memory a site and step; some 100 bytes, and 8 a row bin, in the file.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, overload

import numpy as np

from parity.compare.reason import Birth
from parity.compare.result import NAN, Distance, SiteDiff, SiteVerdict
from parity.golden.disk.store import explained
from parity.records import LOOP, Key

IN_MEMORY = 32 << 20
"""Bytes of columns that are held in memory before they go to the temporary folder."""
VERDICTS: tuple[SiteVerdict, ...] = ("pass", "fail", "harmless", "ignored", "inconclusive", "not compared")
BIRTHS: tuple[Birth | None, ...] = (None, "input", "module", "propagated")
NUMBERS = 9
"""rel_l2, floor and ratio; cosine, max_abs and linf_ratio; the local rel_l2, floor and ratio."""
_WORSE, _APART, _NOTED = 1, 2, 4
_BLOCK, _SHOWN = 512, 20


@dataclass(frozen=True, slots=True)
class Place:
    """What a site is at every step.

    Attributes:
        key: of step 0. shapes, dtypes, frame, rows, called: as a `SiteDiff` has them.
    """

    key: Key
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    frame: tuple[int, int]
    rows: str
    called: str = ""


Places = tuple[Place, ...]
Which = Callable[[Place | SiteDiff], bool]
"""Asks for what does not depend on the step: `key` but for its step, shapes, dtypes, frame, rows, called."""


def place_of(d: SiteDiff) -> Place:
    return Place(replace(d.key, step=0), d.shapes, d.dtypes, d.frame, d.rows, d.called)


class _Made(Sequence[SiteDiff]):
    """Sites that are made when they are asked for."""

    __slots__ = ()

    def at(self, index: int) -> SiteDiff:
        """The site at a position from 0."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> SiteDiff: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SiteDiff, ...]: ...
    def __getitem__(self, index: int | slice) -> SiteDiff | tuple[SiteDiff, ...]:
        if isinstance(index, slice):
            return tuple(map(self.at, range(*index.indices(len(self)))))
        return self.at(range(len(self))[index])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns(_Made):
    """Judged sites of one step, each made when it is asked for.

    Attributes:
        step: of them. places: one a site. verdicts, births: uint8 [sites], indices into VERDICTS and BIRTHS.
        numbers: float64 [sites, 9]. nonfinite: int64 [sites, 2]. bins: float64, the row bins of each.
        notes: by position, where there is one.
    """

    step: int
    places: Places
    verdicts: np.ndarray
    births: np.ndarray
    numbers: np.ndarray
    nonfinite: np.ndarray
    bins: list[np.ndarray]
    notes: dict[int, str]

    @classmethod
    def empty(cls, step: int, places: Places) -> Columns:
        """Of sites that pass, and of which nothing was measured so far."""
        count = len(places)
        bytes_ = (np.zeros(count, np.uint8), np.zeros(count, np.uint8))
        bins = [np.zeros(0)] * count
        return cls(
            step=step, places=places, verdicts=bytes_[0], births=bytes_[1], numbers=np.full((count, NUMBERS), NAN),
            nonfinite=np.zeros((count, 2), np.int64), bins=bins, notes={},
        )  # fmt: skip

    @classmethod
    def of(cls, diffs: Sequence[SiteDiff]) -> Columns:
        """Sites of one step as columns."""
        made = cls.empty(diffs[0].key.step if diffs else 0, tuple(map(place_of, diffs)))
        for i, d in enumerate(diffs):
            made.put(i, d)
        return made

    def put(self, i: int, d: SiteDiff) -> None:
        """What was found at a site; its place stays."""
        far, local = d.distance, d.local
        self.numbers[i] = (
            far.rel_l2, far.floor, far.ratio, d.cosine, d.max_abs, d.linf_ratio, local.rel_l2, local.floor, local.ratio
        )  # fmt: skip
        self.nonfinite[i], self.bins[i] = d.nonfinite, np.array(d.bins, np.float64)
        self.verdicts[i], self.births[i] = VERDICTS.index(d.verdict), BIRTHS.index(d.birth)
        if d.note:
            self.notes[i] = d.note

    def at(self, index: int) -> SiteDiff:
        found, row = (self.verdicts[index], self.births[index]), self.numbers[index].tolist()
        bad, bins, note = self.nonfinite[index].tolist(), self.bins[index].tolist(), self.notes.get(index, "")
        return _made(self.places[index], self.step, found, row, bad, bins, note)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def loop(self) -> tuple[SiteDiff, ...]:
        """The sites of the loop's own values."""
        return tuple(self[i] for i, place in enumerate(self.places) if place.key.module == LOOP)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Sites of one step, in the file from `start` on."""

    step: int
    places: Places
    verdicts: np.ndarray
    births: np.ndarray
    flags: np.ndarray
    notes: Mapping[int, str]
    start: int

    def positions(self, verdicts: frozenset[str] | None, births: frozenset[str | None] | None, flag: int) -> np.ndarray:
        mask = np.ones(len(self.places), bool)
        if verdicts is not None:
            mask &= np.isin(self.verdicts, [i for i, v in enumerate(VERDICTS) if v in verdicts])
        if births is not None:
            mask &= np.isin(self.births, [i for i, b in enumerate(BIRTHS) if b in births])
        if flag:
            mask &= (self.flags & flag) == flag
        return np.flatnonzero(mask)


def _spool() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(IN_MEMORY, prefix="parity-")


@dataclass(eq=False, repr=False)
class Sites(_Made):
    """Judged sites, step by step, as a sequence that is not held."""

    _file: IO[bytes] = field(default_factory=_spool)
    _chunks: list[_Chunk] = field(default_factory=list)
    _known: dict[Places, Places] = field(default_factory=dict)
    _end: int = 0

    @classmethod
    def of(cls, diffs: Iterable[SiteDiff]) -> Sites:
        """These sites, in their order."""
        if isinstance(diffs, Sites):
            return diffs
        made = cls()
        for _, step in itertools.groupby(diffs, key=lambda d: d.key.step):
            made.add(Columns.of(tuple(step)))
        return made

    def add(self, step: Columns) -> None:
        """Take in the sites of one step.

        Raises:
            UsageError: the temporary folder is full.
        """
        if not step.places:
            return
        ends = np.cumsum([0, *(bins.size for bins in step.bins)], dtype=np.int64)
        parts = (step.numbers, step.nonfinite, ends, np.concatenate(step.bins))
        with explained(f"{tempfile.gettempdir()}: keeping what was found"):
            self._file.seek(self._end)
            for part in parts:
                self._file.write(np.ascontiguousarray(part).tobytes())
        flags = _WORSE * (step.nonfinite[:, 1] > step.nonfinite[:, 0]) + _APART * (step.numbers[:, 0] != 0.0)
        notes = dict(step.notes)
        flags[list(notes)] += _NOTED
        places = self._shared(step.places)
        chunk = _Chunk(step.step, places, step.verdicts, step.births, flags.astype(np.uint8), notes, self._end)
        self._chunks.append(chunk)
        self._end = self._file.tell()

    def _shared(self, places: Places) -> Places:
        """The equal one that is held already, so that it is held once."""
        if self._chunks and self._chunks[-1].places is places:
            return places
        return self._known.setdefault(places, places)

    def select(
        self,
        *,
        verdicts: frozenset[str] | None = None,
        births: frozenset[str | None] | None = None,
        step: int | None = None,
        which: Which | None = None,
        flag: int = 0,
    ) -> Iterator[SiteDiff]:
        """See `among`."""
        asked: dict[int, np.ndarray] = {}
        for chunk in self._chunks:
            if step is not None and chunk.step != step:
                continue
            at = chunk.positions(verdicts, births, flag)
            if which is not None and at.size:
                if id(chunk.places) not in asked:
                    asked[id(chunk.places)] = np.fromiter(map(which, chunk.places), bool, len(chunk.places))
                at = at[asked[id(chunk.places)][at]]
            for start in range(0, at.size, _BLOCK):
                yield from self._read(chunk, at[start : start + _BLOCK])

    def count(self, verdicts: frozenset[str], births: frozenset[str | None] | None = None) -> int:
        return sum(chunk.positions(verdicts, births, 0).size for chunk in self._chunks)

    def steps(self, verdicts: frozenset[str] | None = None) -> Iterator[int]:
        """The steps with such a site."""
        return (chunk.step for chunk in self._chunks if chunk.positions(verdicts, None, 0).size)

    def by_step(self) -> Iterator[Sequence[SiteDiff]]:
        """Sites that stand together, at most those of one step at a time."""
        for chunk in self._chunks:
            yield self._read(chunk, np.arange(len(chunk.places)))

    def inconclusive(self) -> Sites:
        """The same with those that failed inconclusive, and without a birth."""
        changed = []
        for chunk in self._chunks:
            verdicts, births = chunk.verdicts.copy(), chunk.births.copy()
            at = chunk.positions(FAILED, None, 0)
            verdicts[at], births[at] = VERDICTS.index("inconclusive"), 0
            changed.append(replace(chunk, verdicts=verdicts, births=births))
        return Sites(self._file, changed, self._known, self._end)

    def _array(self, start: int, count: int, dtype: str) -> np.ndarray:
        self._file.seek(start)
        return np.frombuffer(self._file.read(8 * count), dtype)

    def _read(self, chunk: _Chunk, at: np.ndarray) -> list[SiteDiff]:
        """The sites at rising positions of a chunk."""
        if not at.size:
            return []
        every, first, last = len(chunk.places), int(at[0]), int(at[-1]) + 1
        nonfinite = chunk.start + 8 * NUMBERS * every
        ends = nonfinite + 8 * 2 * every
        numbers = self._array(chunk.start + 8 * NUMBERS * first, NUMBERS * (last - first), "f8")
        found = self._array(nonfinite + 16 * first, 2 * (last - first), "i8")
        edges = self._array(ends + 8 * first, last - first + 1, "i8")
        bins = self._array(ends + 8 * (every + 1) + 8 * int(edges[0]), int(edges[-1] - edges[0]), "f8").tolist()
        rows, held = numbers.reshape(-1, NUMBERS)[at - first].tolist(), found.reshape(-1, 2)[at - first].tolist()
        spans = (edges - edges[0]).tolist()
        return [
            _made(
                chunk.places[i],
                chunk.step,
                (chunk.verdicts[i], chunk.births[i]),
                row,
                bad,
                bins[spans[i - first] : spans[i - first + 1]],
                chunk.notes.get(i, ""),
            )
            for i, row, bad in zip(at.tolist(), rows, held, strict=True)
        ]

    def at(self, index: int) -> SiteDiff:
        for chunk in self._chunks:
            if index < len(chunk.places):
                return self._read(chunk, np.array([index]))[0]
            index -= len(chunk.places)
        raise IndexError(index)

    def __iter__(self) -> Iterator[SiteDiff]:
        return self.select()

    def __repr__(self) -> str:
        more = f" and {len(self) - _SHOWN} more" if len(self) > _SHOWN else ""
        return f"{self[:_SHOWN]!r}{more}"

    def __len__(self) -> int:
        return sum(len(chunk.places) for chunk in self._chunks)


def _made(
    place: Place, step: int, found: tuple[int, int], row: list[float], bad: list[int], bins: list[float], note: str
) -> SiteDiff:
    """A site of its place and its numbers; of `found` the indices of its verdict and its birth."""
    key = place.key
    return SiteDiff(
        Key(key.stage, step, key.branch, key.site, key.call),
        Distance(row[0], row[1], row[2]),
        cosine=row[3],
        max_abs=row[4],
        linf_ratio=row[5],
        shapes=place.shapes,
        dtypes=place.dtypes,
        nonfinite=(bad[0], bad[1]),
        bins=tuple(bins),
        frame=place.frame,
        rows=place.rows,
        local=Distance(row[6], row[7], row[8]),
        birth=BIRTHS[found[1]],
        verdict=VERDICTS[found[0]],
        note=note,
        called=place.called,
    )


FAILED, NOT_COMPARED = frozenset({"fail"}), frozenset({"not compared"})
INTRODUCED: frozenset[str | None] = frozenset({"input", "module"})
BORN: frozenset[str | None] = frozenset({"input", "module", "propagated"})


def among(
    sites: Iterable[SiteDiff],
    *,
    verdicts: frozenset[str] | None = None,
    births: frozenset[str | None] | None = None,
    step: int | None = None,
    which: Which | None = None,
    worse: bool = False,
    apart: bool = False,
    noted: bool = False,
) -> Iterator[SiteDiff]:
    """The sites that are asked for, in execution order; only those are read.

    Args:
        verdicts, births: any of these. step: of this step. which: what holds at every step.
        worse: with more NaN and Inf on the candidate. apart: whose distance is not 0, or unknown. noted: with a note.
    """
    flag = _WORSE * worse + _APART * apart + _NOTED * noted
    return Sites.of(sites).select(verdicts=verdicts, births=births, step=step, which=which, flag=flag)


def count(sites: Iterable[SiteDiff], verdicts: frozenset[str], births: frozenset[str | None] | None = None) -> int:
    """How many sites have one of these verdicts, and of these births."""
    return Sites.of(sites).count(verdicts, births)


def steps_of(sites: Iterable[SiteDiff], verdicts: frozenset[str] | None = None) -> Iterator[int]:
    """The steps of sites with one of these verdicts."""
    return Sites.of(sites).steps(verdicts)


def by_step(sites: Iterable[SiteDiff]) -> Iterator[Sequence[SiteDiff]]:
    """Sites in order, at most those of one step at a time."""
    return Sites.of(sites).by_step()
