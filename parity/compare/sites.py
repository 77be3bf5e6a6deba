"""The judged sites of many steps in little memory: columns of numbers, and a `SiteDiff` made when it is asked for.

Problem. Two goldens of 5,000 sites and 50 steps give 250,000 `SiteDiff`s of 2.8 KB each, and a report reads a handful.

How. What a site is called and how its tensors lie is the same at every step and is held once. Who iterates over all of
them gets the same `SiteDiff`s as were added, in their order; `among` makes only those that a reader wants.

Cost. Some 100 bytes a site and step, and 8 a row bin of what does not pass. A live run keeps those of what passes too,
at 4 a bin: following the candidate may show that it does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from parity.compare.reason import Birth
from parity.compare.result import NAN, Distance, SiteDiff, SiteVerdict
from parity.records import LOOP

VERDICTS: tuple[SiteVerdict, ...] = ("pass", "fail", "harmless", "ignored", "inconclusive", "not compared")
BIRTHS: tuple[Birth | None, ...] = (None, "input", "module", "propagated")
NUMBERS = 9
"""rel_l2, floor and ratio; cosine, max_abs and linf_ratio; the local rel_l2, floor and ratio."""

Which = Callable[[SiteDiff], bool]
"""Asks for what does not depend on the step: `key` but for its step, shapes, dtypes, frame, rows, called."""


class _Made(Sequence[SiteDiff]):
    """Sites that are made when they are asked for."""

    def at(self, index: int) -> SiteDiff:
        """The site at a position from 0."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> SiteDiff: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SiteDiff, ...]: ...
    def __getitem__(self, index: int | slice) -> SiteDiff | tuple[SiteDiff, ...]:
        at = range(len(self))[index]
        return tuple(map(self.at, at)) if isinstance(at, range) else self.at(at)


@dataclass(kw_only=True, eq=False)
class Columns(_Made):
    """Judged sites of one step.

    Attributes:
        step: of them. places: one a site, of which what does not depend on the step counts. verdicts, births: uint8
            [sites], indices into VERDICTS and BIRTHS. numbers: float64 [sites, 9]. nonfinite: int64 [sites, 2].
        bins: float64, the row bins of each. notes: by position, where there is one.
    """

    step: int
    places: Sequence[SiteDiff]
    verdicts: np.ndarray
    births: np.ndarray
    numbers: np.ndarray
    nonfinite: np.ndarray
    bins: list[np.ndarray]
    notes: dict[int, str]

    @classmethod
    def empty(cls, step: int, places: Sequence[SiteDiff]) -> Columns:
        """Of sites that pass, and of which nothing was measured so far."""
        n = len(places)
        return cls(
            step=step, places=places, verdicts=np.zeros(n, np.uint8), births=np.zeros(n, np.uint8), notes={},
            numbers=np.full((n, NUMBERS), NAN), nonfinite=np.zeros((n, 2), np.int64), bins=[np.zeros(0)] * n,
        )  # fmt: skip

    @classmethod
    def of(cls, diffs: Sequence[SiteDiff]) -> Columns:
        """Sites of one step as columns."""
        made = cls.empty(diffs[0].key.step if diffs else 0, diffs)
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
        place, row, bad = self.places[index], self.numbers[index].tolist(), self.nonfinite[index].tolist()
        return replace(
            place, key=replace(place.key, step=self.step), distance=Distance(*row[:3]), local=Distance(*row[6:]),
            cosine=row[3], max_abs=row[4], linf_ratio=row[5], nonfinite=(bad[0], bad[1]),
            bins=tuple(self.bins[index].tolist()), birth=BIRTHS[self.births[index]],
            verdict=VERDICTS[self.verdicts[index]], note=self.notes.get(index, ""),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.places)

    def kept(self, *, lean: bool) -> Columns:
        """The same with the row bins of what passes in float32 or, where they are not asked for any more, without."""
        passing, none = self.where(frozenset({"pass"})).tolist(), np.zeros(0)
        small = (
            (none if lean else row.astype(np.float32)) if within else row.copy()
            for within, row in zip(passing, self.bins, strict=True)
        )
        return replace(self, bins=list(small))

    def where(self, verdicts: frozenset[str] | None, births: frozenset[str | None] | None = None) -> np.ndarray:
        """bool [sites]: which have one of these verdicts and of these births; None for any."""
        mask = np.ones(len(self), bool)
        if verdicts is not None:
            mask &= np.isin(self.verdicts, [i for i, v in enumerate(VERDICTS) if v in verdicts])
        if births is not None:
            mask &= np.isin(self.births, [i for i, b in enumerate(BIRTHS) if b in births])
        return mask

    @property
    def loop(self) -> tuple[SiteDiff, ...]:
        """The sites of the loop's own values."""
        return tuple(self[i] for i, place in enumerate(self.places) if place.key.site.startswith(f"{LOOP}:"))


class Sites(_Made):
    """Judged sites, step by step.

    Args:
        parts: those of each step.
    """

    def __init__(self, parts: Iterable[Columns] = ()) -> None:
        self.parts = list(parts)

    @classmethod
    def of(cls, diffs: Iterable[SiteDiff]) -> Sites:
        """These sites, in their order."""
        if isinstance(diffs, Sites):
            return diffs
        return cls(Columns.of(tuple(step)) for _, step in itertools.groupby(diffs, key=lambda d: d.key.step))

    def at(self, index: int) -> SiteDiff:
        for part in self.parts:
            if index < len(part):
                return part.at(index)
            index -= len(part)
        raise IndexError(index)

    def __iter__(self) -> Iterator[SiteDiff]:
        return itertools.chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))


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
) -> Iterator[SiteDiff]:
    """The sites that are asked for, in execution order; only those are made.

    Args:
        verdicts, births: any of these. step: of this step. which: what holds at every step.
        worse: with more NaN and Inf on the candidate. apart: whose distance is not 0, or unknown.
    """
    chosen: dict[int, np.ndarray] = {}  # by their places, which steps share
    for part in Sites.of(sites).parts:
        if step in (None, part.step):
            mask = part.where(verdicts, births)
            mask &= (part.nonfinite[:, 1] > part.nonfinite[:, 0]) | (not worse)
            mask &= (part.numbers[:, 0] != 0.0) | (not apart)
            if which is not None and id(part.places) not in chosen:
                chosen[id(part.places)] = np.fromiter(map(which, part.places), bool, len(part))
            mask &= True if which is None else chosen[id(part.places)]
            yield from map(part.at, np.flatnonzero(mask).tolist())


def count(sites: Iterable[SiteDiff], verdicts: frozenset[str], births: frozenset[str | None] | None = None) -> int:
    """How many sites have one of these verdicts, and of these births."""
    return sum(int(part.where(verdicts, births).sum()) for part in Sites.of(sites).parts)


def steps_of(sites: Iterable[SiteDiff], verdicts: frozenset[str] | None = None) -> Iterator[int]:
    """The steps of sites with one of these verdicts."""
    return (part.step for part in Sites.of(sites).parts if part.where(verdicts).any())


def by_step(sites: Iterable[SiteDiff]) -> Sequence[Sequence[SiteDiff]]:
    """Sites in order, those of one step at a time."""
    return Sites.of(sites).parts


def inconclusive(sites: Iterable[SiteDiff]) -> Sites:
    """The same with those that failed inconclusive, and without a birth."""
    found = Sites()
    for part in Sites.of(sites).parts:
        failed = part.where(FAILED)
        verdicts = np.where(failed, VERDICTS.index("inconclusive"), part.verdicts)
        found.parts.append(replace(part, verdicts=verdicts, births=np.where(failed, 0, part.births)))
    return found
