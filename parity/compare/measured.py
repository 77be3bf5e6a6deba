"""One step measured: how far each pair of records is apart, in blocks of sketches, and what the numbers alone say.

Problem. Nearly every site of nearly every comparison passes; measured one by one it costs a hundred times what reading
its sketch does.

How. Which records stand against each other, and how their sketches lie, is found once for as long as both sides'
layouts stay (`parity.compare.pairs`). Distances come from blocks of sketches. What is not two sketches alone (values
that are held, masks, moments, scalars, None) is then looked at pair by pair (`parity.compare.metrics`).

Cost. One read of both sketches; 3 MB of memory for a block; some 400 bytes a site, and 8 a row bin of what does not
pass.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np

from parity.compare.metrics import LINF_LIMIT, between, compared, ratios
from parity.compare.pairs import Meeting
from parity.compare.result import NAN, Distance, SiteDiff
from parity.floors import L2_LIMIT
from parity.golden.disk.part import FloorTable, Table
from parity.records import Key
from parity.sketch import Geometry

BLOCK = 1 << 16
"""Elements of the sketches that are compared at a time."""

ORDER = 0.1
"""Relative L2 distance above which two tensors may hold the same values in another order: below it noise of that size
moves neither extremes nor norm by more than rounding may."""

EXTREME = 3.0
"""How much more than the elements on average an extreme one may be moved by rounding."""


class Measured:
    """One step of two sides.

    Attributes:
        meeting: of the sides' layouts. ours, theirs, floors: the step's records, and the reference's floors.
        numbers: float64 [pairs, 4], of each its distance, floor and ratio to it, and the cosine. peaks: float64
            [pairs], the worst row bin. moments: int64 [pairs] of each side, where its moments are; -1 without.
    """

    def __init__(self, meeting: Meeting, ours: Table, theirs: Table, floors: FloorTable) -> None:
        self.meeting, self.ours, self.theirs, self.floors = meeting, ours, theirs, floors
        self.numbers, self.peaks = np.full((len(meeting.places), 4), NAN), np.zeros(len(meeting.places))
        self.bins: dict[int, Sequence[float]] = {}
        sides = zip((ours, theirs), meeting.at, strict=True)
        self.moments = [np.append(side.layout.moments, -1)[at] for side, at in sides]
        # NaN and Inf of both sides; what has no moments is alike to nothing.
        self.counts = [
            np.append(side.counts[:, 1:], [[none, none]], axis=0)[at]
            for side, at, none in zip((ours, theirs), self.moments, (-1, -2), strict=True)
        ]

    def sites(self) -> list[SiteDiff]:
        """Every pair, before it is known which of them decide."""
        for view, at in self.meeting.groups.items():
            rows = max(1, BLOCK // view.size)
            for start in range(0, at.size, rows):
                with np.errstate(all="ignore"):
                    self._block(view, at[start : start + rows])
        numbers, peaks = self.numbers.tolist(), self.peaks.tolist()
        bad = np.maximum([counts.sum(axis=1) for counts in self.counts], 0).T.tolist()
        sites = [self._site(i, *each) for i, each in enumerate(zip(numbers, peaks, bad, strict=True))]
        for i in self.meeting.others:
            a, b = (at[i] for at in self.meeting.at)
            ours, theirs = None if a < 0 else self.ours[a], None if b < 0 else self.theirs[b]
            floor = None if ours is None else self.floors.get(ours.key)
            sites[i] = compared(ours, theirs, floor, sites[i], own=self.meeting.own[i])
        return sites

    def _site(self, i: int, numbers: Sequence[float], peak: float, bad: Sequence[int]) -> SiteDiff:
        place = self.meeting.places[i]  # `replace` would take most of the time of a diff
        return SiteDiff(
            Key(place.key.stage, self.ours.step, place.key.branch, place.key.site, place.key.call),
            Distance(*numbers[:3]),
            cosine=numbers[3],
            shapes=place.shapes,
            dtypes=place.dtypes,
            nonfinite=(bad[0], bad[1]),
            peak=peak,
            bins=self.bins.get(i, ()),
            frame=place.frame,
            rows=place.rows,
            verdict=place.verdict,
            called=place.called,
        )

    def _block(self, view: Geometry, at: np.ndarray) -> None:
        """Measure some pairs of sketches that lie alike."""
        x, y = (
            _gathered(side.sketches, side.layout.sketches[where[at]], view.size).astype(np.float64)
            for side, where in zip((self.ours, self.theirs), self.meeting.at, strict=True)
        )
        alike = (self.counts[0][at] == self.counts[1][at]).all(axis=1)
        l2, own, cosine, apart = between(x, y, view, alike)
        known = np.append(self.ours.numbers[:, 3], NAN)[self.moments[0][at]]
        scale = np.where(np.isnan(known), own, known)
        size = np.where(scale > 0, scale, 1.0)
        floors, layout = self.meeting.floors[at], self.floors.layout
        floor = np.append(self.floors.numbers[:, 0], NAN)[floors]
        self.numbers[at] = np.stack([l2 / size, floor / size, ratios(l2, floor), cosine], axis=1)
        starts, counts = (np.append(column, -1)[floors] for column in (layout.bins, layout.bin_counts))
        held = np.flatnonzero((starts >= 0) & (counts == view.bins))
        bins = ratios(apart[held], _gathered(self.floors.bins, starts[held], view.bins))
        at = at[held]
        self.peaks[at] = np.fmax.reduce(bins, axis=1, initial=0.0)
        passes = (self.numbers[at, 2] <= L2_LIMIT) & (self.peaks[at] <= LINF_LIMIT) & ~np.isin(at, self.meeting.others)
        self.bins |= {int(at[n]): array("d", bins[n].tobytes()) for n in np.flatnonzero(~passes)}

    def held_bytes(self, i: int) -> tuple[bytes, bytes]:
        """What both sides have at a site, bit for bit; empty where it is no tensor of both."""
        records = [
            side[at[i]] for side, at in zip((self.ours, self.theirs), self.meeting.at, strict=True) if at[i] >= 0
        ]
        both = [r.sketch.tobytes() for r in records if r.sketch is not None]
        return (both[0], both[1]) if len(both) == 2 else (b"", b"")

    def apart(self, i: int) -> float:
        """How far two records are apart, in the reference's units."""
        return float(self.numbers[i, 0]) * self.norm(i)

    def norm(self, i: int) -> float:
        """The reference's; NaN where no moments are held."""
        at = self.moments[0][i]
        return NAN if at < 0 else float(self.ours.numbers[at, 3])

    def floor(self, i: int) -> float:
        """The reference's, in its units; NaN without."""
        at = self.meeting.floors[i]
        return NAN if at < 0 else float(self.floors.numbers[at, 0])

    def hands_on(self, branch: str, module: str) -> bool:
        """Whether an output of the reference's module is one of its inputs."""
        own = [r for r in self.ours if (r.key.branch, r.key.module) == (branch, module) and r.shape]
        given = {r.sketch.tobytes() for r in own if r.key.is_input and r.sketch is not None}
        return any(r.sketch.tobytes() in given for r in own if not r.key.is_input and r.sketch is not None)

    def same_values(self, i: int, factor: float, least: float | None = None) -> bool:
        """Whether the candidate's tensor may hold the reference's values times a factor, in any order, or in another
        where that is 1, by the minimum, maximum, mean and l2 of both. `least`: how far apart they are then, relatively.

        As far as floors let the two be apart in L2, that over the root of the count moves the mean at most; an extremum
        is moved by some times as much, and in proportion to its size.
        """
        if factor == 1.0 and not self.numbers[i, 0] > (ORDER if least is None else least):
            return False
        (a, b), at = (moments[i] for moments in self.moments), self.meeting.floors[i]
        if a < 0 or b < 0 or at < 0 or self.ours.counts[a, 0] != self.theirs.counts[b, 0]:
            return False
        x, y, near = self.ours.numbers[a], self.theirs.numbers[b], L2_LIMIT * float(self.floors.numbers[at, 0])
        ends, root = np.sort(factor * x[:2]), math.sqrt(self.ours.counts[a, 0])
        most = np.minimum(near, EXTREME * near / root + near * np.abs(ends) / max(abs(factor) * x[3], 1e-30))
        apart = np.abs([*(y[:2] - ends), (y[2] - factor * x[2]) * root, y[3] - abs(factor) * x[3]])
        return bool((apart <= max(abs(factor), 1.0) * np.array([*most, near, near])).all())


def _gathered(column: np.ndarray, starts: np.ndarray, size: int) -> np.ndarray:
    """float32 [sites, size] from where each begins; a view where they lie one behind the other."""
    if starts.size and (np.diff(starts) == size).all():
        return column[starts[0] : starts[0] + starts.size * size].reshape(-1, size)
    return column[starts[:, None] + np.arange(size)]
