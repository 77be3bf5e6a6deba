"""Judging two goldens' steps as columns: the rule of `parity.compare.judge`, for many sites at once.

Problem. A site that passes needs four numbers; made and judged as objects it costs a hundred times what reading its
sketch does, and nearly every site of nearly every diff passes.

How. Which records meet, and how their sketches lie, is found once for as long as both sides' layouts stay. Distances
come from blocks of sketches. What is not two finite sketches (values that are held, moments alone, scalars, NaN) goes
through `Judge` itself, and so does every site beyond its floor, which needs a birth. A test holds the two ways to each
other.

Cost. One read of both sketches; 3 MB of memory for a block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.judge import (
    L2_LIMIT,
    LINF_LIMIT,
    Judge,
    beyond,
    call_of,
    input_severities,
    not_one,
    severity,
    tells,
    two_things,
)
from parity.compare.many.meet import Group, Meeting, meet
from parity.compare.many.sites import BIRTHS, NUMBERS, VERDICTS, Columns, columns_of
from parity.compare.pairs.align import Pair
from parity.compare.result import NAN, Distance, SiteDiff
from parity.compare.unlike import is_unpaired, unread
from parity.golden.disk.part import FloorTable, Table
from parity.records import LOOP, StepRecords
from parity.sketch import BINS, PER_BIN, TOTAL, Geometry

BLOCK = 1 << 17
"""Elements of the sketches that are compared at a time."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One judged step.

    Attributes:
        columns: all of its sites. loop: those of the loop's own values.
    """

    columns: Columns
    loop: tuple[SiteDiff, ...]


class ManyJudge:
    """Judges steps as `Judge` does, where both sides are tables.

    Args:
        judge: remembers what earlier steps showed, and judges what is no table.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self._meeting: Meeting | None = None

    def step(self, reference: StepRecords, candidate: StepRecords) -> Judged | None:
        """The sites of one step; None where there are none."""
        ours, theirs, floors = reference.records, candidate.records, reference.floors
        if not (isinstance(ours, Table) and isinstance(theirs, Table) and isinstance(floors, FloorTable)):
            diffs = self.judge.step(reference, candidate)
            return Judged(columns_of(diffs), tuple(d for d in diffs if d.key.module == LOOP)) if diffs else None
        self.judge.floors = floors
        meeting = self._meeting
        if meeting is None or meeting.layouts != (ours.layout, theirs.layout):
            meeting = self._meeting = meet(ours.layout, theirs.layout, strict=self.judge.strict_sites)
        if not meeting.pairs:
            return None
        return _Step(self.judge, meeting, ours, theirs, floors).judged()


class _Step:
    """One step being judged."""

    def __init__(self, judge: Judge, meeting: Meeting, ours: Table, theirs: Table, floors: FloorTable) -> None:
        self.judge, self.meeting, self.ours, self.theirs, self.floors = judge, meeting, ours, theirs, floors
        count = len(meeting.pairs)
        self.numbers = np.full((count, NUMBERS), NAN)
        self.bins: list[np.ndarray] = [_NONE] * count
        self.peaks = np.zeros(count)
        self.verdicts = np.zeros(count, np.uint8)
        self.births = np.zeros(count, np.uint8)
        self.notes: dict[int, str] = {}
        bad = [np.append(side.counts[:, 1] + side.counts[:, 2], 0) for side in (ours, theirs)]
        self.nonfinite = np.stack([bad[s][meeting.moments[:, s]] for s in (0, 1)], axis=1)

    def judged(self) -> Judged:
        for group in self.meeting.groups:
            self._sketches(group)
        for i in self.meeting.others:
            self._one(i)
        loop = [self._diff(i) for i in np.flatnonzero(self.meeting.loop).tolist()]
        dirty = any(d.key.site in _LATENTS and beyond(d) for d in loop)
        self._bear(loop)
        self.judge.dirty = self.judge.dirty or dirty
        counts = np.array([b.size for b in self.bins], np.int64)
        columns = Columns(
            step=self.ours.step,
            places=self.meeting.places,
            verdicts=self.verdicts,
            births=self.births,
            numbers=self.numbers,
            nonfinite=self.nonfinite,
            counts=counts,
            bins=np.concatenate([_NONE, *self.bins]),
            notes=self.notes,
        )
        return Judged(columns, tuple(self._diff(i) for i in np.flatnonzero(self.meeting.loop).tolist()))

    def _sketches(self, group: Group) -> None:
        """Measure what meets as sketches, block by block."""
        size = group.view.size
        rows = max(1, BLOCK // size)
        for start in range(0, group.at.size, rows):
            part = slice(start, start + rows)
            x, y = (
                _gathered(side.sketches, starts[part], size)
                for side, starts in zip((self.ours, self.theirs), group.starts, strict=True)
            )
            limits = np.full((group.at[part].size, group.view.bins), NAN)
            held = np.flatnonzero(group.bins[part] >= 0)
            if held.size:
                limits[held] = _gathered(self.floors.bins, group.bins[part][held], group.view.bins)
            with np.errstate(all="ignore"):
                self._block(group, part, x.astype(np.float64), y.astype(np.float64), limits)

    def _block(self, group: Group, part: slice, x: np.ndarray, y: np.ndarray, limits: np.ndarray) -> None:
        at, view = group.at[part], group.view
        moments = self.meeting.moments[at, 0]
        apart = y - x
        whole = slice(None) if view.exact else slice(TOTAL)
        l2, own, other = (np.sqrt(np.einsum("ij,ij->i", v[:, whole], v[:, whole])) for v in (apart, x, y))
        scale = np.where(moments >= 0, np.append(self.ours.numbers[:, 3], NAN)[moments], own)
        size = np.where(scale > 0, scale, 1.0)
        cosine = np.where((own > 0) & (other > 0), (own**2 + other**2 - l2**2) / 2 / (own * other), NAN)
        floor = np.append(self.floors.numbers[:, 0], NAN)[group.floors[part]]
        ratios = _ratios(l2, floor)
        self.numbers[at, :4] = np.stack([l2 / size, floor / size, ratios, cosine], axis=1)
        bins = _ratios(_bin_norms(apart, view), limits)
        self.peaks[at] = np.fmax.reduce(bins, axis=1, initial=0.0)
        held = group.bins[part] >= 0
        for i, row, has in zip(at.tolist(), bins, held.tolist(), strict=True):
            if has:
                self.bins[i] = row
        for i in at[~np.isfinite(l2 + own + other)].tolist():
            self._one(i)

    def _one(self, i: int) -> None:
        """A site as `Judge` sees it."""
        a, b = self.meeting.pairs[i]
        key = replace(self.meeting.places[i].key, step=self.ours.step)
        d = self.judge.site(Pair(key, None if a < 0 else self.ours[a], None if b < 0 else self.theirs[b]))
        self.numbers[i, :6] = (
            d.distance.rel_l2,
            d.distance.floor,
            d.distance.ratio,
            d.cosine,
            d.max_abs,
            d.linf_ratio,
        )
        self.nonfinite[i] = d.nonfinite
        self.bins[i] = np.array(d.bins, np.float64)
        self.peaks[i] = max((r for r in (d.linf_ratio, *d.bins) if not math.isnan(r)), default=0.0)
        self.verdicts[i] = VERDICTS.index(d.verdict)
        if d.note:
            self.notes[i] = d.note

    def _bear(self, loop: Sequence[SiteDiff]) -> None:
        """Verdicts and births of what is beyond its floor."""
        self._acquit()
        self._tell_apart()
        rel, ratios = self.numbers[:, 0], self.numbers[:, 2]
        unknown, far = np.isnan(ratios), self._far()
        far &= ~self.meeting.padding & (self.verdicts != VERDICTS.index("inconclusive"))
        self.verdicts[self.meeting.padding] = VERDICTS.index("ignored")
        at = np.flatnonzero(far).tolist()
        if not at:
            return
        severities = np.where(unknown, np.where(rel != 0.0, math.inf, 0.0), ratios)
        severities = np.maximum(severities, self.peaks * L2_LIMIT / LINF_LIMIT)
        unpaired = np.array([i for i, note in self.notes.items() if is_unpaired(note)], np.int64)
        severities[unpaired] = 0.0
        uncompared = {call_of(p.key) for p in (self.meeting.places[i] for i in unpaired.tolist()) if p.key.is_input}
        worst = np.zeros(len(self.meeting.numbers))
        np.maximum.at(worst, self.meeting.calls, severities[self.meeting.inputs])
        found = [self._diff(i) for i in at]
        inputs = input_severities(loop)
        for d in found:
            number = self.meeting.numbers.get(call_of(d.key))
            if number is not None:
                inputs[call_of(d.key)] = float(worst[number])
        for i, d in zip(at, self.judge.born(found, inputs, uncompared), strict=True):
            self.verdicts[i], self.births[i] = VERDICTS.index(d.verdict), BIRTHS.index(d.birth)

    def _far(self) -> np.ndarray:
        rel, ratios = self.numbers[:, 0], self.numbers[:, 2]
        return np.where(np.isnan(ratios), rel != 0.0, (ratios > L2_LIMIT) | (self.peaks > LINF_LIMIT))

    def _acquit(self) -> None:
        """`parity.compare.unlike.acquitted` of many."""
        if not self.meeting.read.size:
            return
        far = self._far()
        for i, j in self.meeting.read.tolist():
            if far[i] and not far[j]:
                self.numbers[i], self.peaks[i], self.bins[i] = self.numbers[j], self.peaks[j], self.bins[j]
                self.notes[i] = unread(self.meeting.places[i].key)

    def _tell_apart(self) -> None:
        """`parity.compare.judge.told_apart` of many."""
        far = self._far() if self.meeting.lone else _NONE
        for i, outputs in self.meeting.lone:
            if not far[i]:
                continue
            d, made = self._diff(i), [severity(o) for o in map(self._diff, outputs) if tells(o)]
            if two_things(d, max(made, default=0.0)):
                d = not_one(d)
                self.verdicts[i], self.notes[i] = VERDICTS.index(d.verdict), d.note

    def _diff(self, i: int) -> SiteDiff:
        place, row = self.meeting.places[i], self.numbers[i].tolist()
        return SiteDiff(
            replace(place.key, step=self.ours.step),
            Distance(*row[:3]),
            cosine=row[3],
            max_abs=row[4],
            linf_ratio=row[5],
            shapes=place.shapes,
            dtypes=place.dtypes,
            nonfinite=(int(self.nonfinite[i, 0]), int(self.nonfinite[i, 1])),
            bins=tuple(self.bins[i].tolist()),
            frame=place.frame,
            rows=place.rows,
            birth=BIRTHS[self.births[i]],
            verdict=VERDICTS[self.verdicts[i]],
            note=self.notes.get(i, ""),
            called=place.called,
        )


_NONE = np.zeros(0)
_LATENTS = (f"{LOOP}:latents.before", f"{LOOP}:latents.after")


def _gathered(column: np.ndarray, starts: np.ndarray, size: int) -> np.ndarray:
    """float32 [sites, size] from where each begins; what lies one behind the other is copied at once, or not at all."""
    edges = np.flatnonzero(np.diff(starts) != size) + 1
    if starts.size and not edges.size:
        return column[starts[0] : starts[0] + starts.size * size].reshape(-1, size)
    found = np.empty((starts.size, size), np.float32)
    for first, last in zip([0, *edges.tolist()], [*edges.tolist(), starts.size], strict=True):
        found[first:last] = column[starts[first] : starts[first] + (last - first) * size].reshape(-1, size)
    return found


def _bin_norms(apart: np.ndarray, view: Geometry) -> np.ndarray:
    """`parity.sketch.bin_norms` of many sketches: float64 [sites, bins]."""
    if not view.exact:
        return np.linalg.norm(apart[:, TOTAL:].reshape(-1, BINS, PER_BIN), axis=2)[:, : view.bins]
    rows = np.square(apart).reshape(-1, view.rows, view.channels).sum(axis=2)
    return np.sqrt(np.add.reduceat(rows, np.arange(0, view.rows, view.rows_per_bin), axis=1))


def _ratios(values: np.ndarray, floors: np.ndarray) -> np.ndarray:
    """`parity.compare.metrics.ratio` of many."""
    found = np.where(floors == 0.0, np.where(values == 0.0, 0.0, math.inf), values / floors)
    return np.where(np.isnan(values) | ~np.isfinite(floors), NAN, found)
