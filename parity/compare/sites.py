"""A step of both sides, measured; and its sites as columns, of which a `SiteDiff` is made where one is asked for.

Problem. A generation has hundreds of thousands of sites. Nearly all agree, and all that is asked of those is how many
they are; measured one by one they cost a hundred times what reading their sketches does.

How. Which records stand against each other, and how their sketches lie, is found once for as long as both sides'
layouts stay (`parity.compare.pairs`). Distances come from blocks of sketches. What is not two sketches alone (values
that are held, masks, moments, scalars, None) is then looked at pair by pair (`parity.compare.metrics`). A step keeps
the numbers of its sites in arrays; what a rule says of one is kept as it was said. Which sites are looked at is decided
by columns (`Sites.where`), and by what is the same at every step, which is asked once (`picked`).

Cost. One read of both sketches; 3 MB of memory for a block; some 400 bytes a site, and 8 a row bin of what does not
pass.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.linalg import norm

from parity.compare.metrics import between, compared, ratios, whole
from parity.compare.pairs import Meeting
from parity.compare.result import NAN, Distance, Result, SiteDiff, SiteVerdict
from parity.floors import L2_LIMIT, LINF_LIMIT
from parity.golden.disk.part import FloorTable, Table
from parity.records import Key, Record
from parity.sketch import Geometry

Which = Callable[[SiteDiff], bool]
"""Asks for what is the same at every step: a key but for its step, shapes, dtypes, rows. A function of a module, since
steps that share a layout are asked once."""


@dataclass(eq=False, repr=False)
class Sites(Sequence[SiteDiff]):
    """The sites of one step, in execution order.

    Attributes:
        meeting, step: of both sides' records. numbers: float64 [sites, 5], of each as it was measured its distance,
            floor and ratio to it, the cosine, and the worst row bin. nonfinite: int64 [2, sites], NaNs and infinities.
            bins: of those that are beyond a floor, by position.
        verdicts: of each, as `SiteDiff` has them. severities: float64 [sites], see `severity`. floors: float64 [sites],
            relative. These as they were judged.
    """

    meeting: Meeting
    step: int
    numbers: np.ndarray
    nonfinite: np.ndarray
    bins: Mapping[int, Sequence[float]]

    def __post_init__(self) -> None:
        self.verdicts = np.array([place.verdict for place in self.meeting.places], "U12")
        self.severities, self.floors = _severities(self.numbers), self.numbers[:, 1].copy()
        self._made: dict[int, SiteDiff] = {}

    def __len__(self) -> int:
        return len(self.meeting.places)

    def __getitem__(self, index: Any) -> Any:
        at = range(len(self))[index]
        if (found := self._made.get(at)) is None:
            found = self._made[at] = self._at(at)
        return found

    def __setitem__(self, index: int, site: SiteDiff) -> None:
        self._made[range(len(self))[index]] = site
        self.verdicts[index], self.severities[index] = site.verdict, severity(site)
        self.floors[index] = site.distance.floor

    def leave_out(self, index: int, note: str) -> None:
        """Say of a site that it is not compared, and why."""
        self[index] = replace(self[index], verdict="not compared", note=note)

    def __iter__(self) -> Iterator[SiteDiff]:
        return (self._made.get(i) or self._at(i) for i in range(len(self)))

    def where(self, *verdicts: SiteVerdict, beyond: bool = False, which: Which | None = None) -> list[int]:
        """The positions of the sites that have one of these verdicts; of any without.

        Args:
            beyond: only those beyond their floors. which: only these.
        """
        found = np.isin(self.verdicts, verdicts) if verdicts else np.ones(len(self), bool)
        if beyond:
            found &= self.severities > L2_LIMIT
        if which is None:
            return np.flatnonzero(found).tolist()
        return [i for i in _places(self.meeting, which) if found[i]]

    def _at(self, i: int) -> SiteDiff:
        place, (far, floor, ratio, cosine, peak) = self.meeting.places[i], self.numbers[i].tolist()
        return SiteDiff(  # `replace` takes far longer
            Key(place.key.stage, self.step, place.key.branch, place.key.site, place.key.call),
            Distance(far, floor, ratio),
            cosine=cosine,
            shapes=place.shapes,
            dtypes=place.dtypes,
            nonfinite=tuple(self.nonfinite[:, i].tolist()),
            peak=peak,
            bins=self.bins.get(i, ()),
            frame=place.frame,
            rows=place.rows,
            verdict=place.verdict,
            called=place.called,
        )


class AllSites(Sequence[SiteDiff]):
    """The sites of several steps, one step's behind the other's."""

    def __init__(self, parts: Iterable[Sequence[SiteDiff]] = ()) -> None:
        self.parts = [*parts]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: Any) -> Any:
        return [*self][index]  # a whole comparison is walked

    def __iter__(self) -> Iterator[SiteDiff]:
        for part in self.parts:
            yield from part


def picked(
    sites: Sequence[SiteDiff], *verdicts: SiteVerdict, which: Which | None = None, step: int | None = None
) -> Iterator[SiteDiff]:
    """The sites that have one of these verdicts; of any without.

    Args:
        which: only these. step: only those of this step.
    """
    for part in sites.parts if isinstance(sites, AllSites) else [sites]:
        if not isinstance(part, Sites):
            held = (d for d in part if step in (None, d.key.step) and (not verdicts or d.verdict in verdicts))
            yield from (d for d in held if which is None or which(d))
        elif step in (None, part.step):
            yield from (part[i] for i in part.where(*verdicts, which=which))


def how_many(sites: Sequence[SiteDiff], *verdicts: SiteVerdict) -> int:
    """How many sites have one of these verdicts."""
    parts = sites.parts if isinstance(sites, AllSites) else [sites]
    verdicts_of = (part.verdicts if isinstance(part, Sites) else [d.verdict for d in part] for part in parts)
    return sum(int(np.isin(held, verdicts).sum()) for held in verdicts_of)


def introduced(result: Result) -> Iterator[SiteDiff]:
    """The sites at which a divergence starts that no setting explains, in execution order."""
    return (d for d in picked(result.sites, "fail") if d.introduced)


@functools.lru_cache(maxsize=64)
def _places(meeting: Meeting, which: Which) -> tuple[int, ...]:
    return tuple(i for i, place in enumerate(meeting.places) if which(place))


def beyond(d: SiteDiff) -> bool:
    """Whether a site is beyond its floor; a NaN or a missing floor is, agreement is never assumed."""
    return severity(d) > L2_LIMIT


def severity(d: SiteDiff) -> float:
    """The largest ratio to a floor, that of the largest element or row bin scaled to the L2 limit; NaN is infinite."""
    r, worst = d.distance.ratio, d.peak * L2_LIMIT / LINF_LIMIT
    return max(math.inf if math.isnan(r) and d.distance.rel_l2 != 0.0 else (0.0 if math.isnan(r) else r), worst)


def _severities(numbers: np.ndarray) -> np.ndarray:
    """`severity` of many."""
    far, _, ratios, _, peaks = numbers.T
    known = np.where(np.isnan(ratios), np.where(far == 0.0, 0.0, math.inf), ratios)
    return np.fmax(known, peaks * L2_LIMIT / LINF_LIMIT)


# --- a step, measured

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
        moments: int64 [pairs] of each side, where its moments are; -1 without. norms, limits: float64 [pairs], the
            reference's norm and its floor, in its units; NaN without. relative: float64 [pairs], how far two sketches
            are apart, relative to the norm; NaN where there are not two.
    """

    def __init__(self, meeting: Meeting, ours: Table, theirs: Table, floors: FloorTable) -> None:
        self.meeting, self.ours, self.theirs, self.floors = meeting, ours, theirs, floors
        sides = zip((ours, theirs), meeting.at, strict=True)
        self.moments = [_with_missing(side.layout.moments, -1)[at] for side, at in sides]
        self.norms = _with_missing(ours.numbers[:, 3], NAN)[self.moments[0]]
        self.limits = _with_missing(floors.numbers[:, 0], NAN)[meeting.floors]
        # NaN and Inf of both sides; what has no moments is alike to nothing.
        several = zip((ours, theirs), self.moments, ([[-1, -1]], [[-2, -2]]), strict=True)
        self._bad = [np.append(side.counts[:, 1:], none, axis=0)[at] for side, at, none in several]
        self._alike = (self._bad[0] == self._bad[1]).all(axis=1)
        self._bins = [
            _with_missing(column, -1)[meeting.floors] for column in (floors.layout.bins, floors.layout.bin_counts)
        ]
        count = len(meeting.places)
        self._l2, self._own, self._cosine, self._floor = np.full((4, count), NAN)
        self._peaks, self._shown, self.relative = np.zeros(count), dict[int, Sequence[float]](), self._l2

    def sites(self) -> Sites:
        """Every pair, before it is known which of them decide."""
        with np.errstate(all="ignore"):
            for view, at in self.meeting.groups.items():
                rows = max(1, BLOCK // view.size)
                for start in range(0, at.size, rows):
                    self._block(view, at[start : start + rows])
            scale = np.where(np.isnan(self.norms), self._own, self.norms)
            size = np.where(scale > 0, scale, 1.0)
            self.relative = self._l2 / size
            floors, of_floors = self._floor / size, ratios(self._l2, self._floor)
        bad = np.maximum([counts.sum(axis=1) for counts in self._bad], 0)
        numbers = np.stack([self.relative, floors, of_floors, self._cosine, self._peaks], axis=1)
        sites = Sites(self.meeting, self.ours.step, numbers, bad, self._shown)
        for i in self.meeting.others:
            a, b = (at[i] for at in self.meeting.at)
            ours, theirs = None if a < 0 else self.ours[a], None if b < 0 else self.theirs[b]
            floor = None if ours is None else self.floors.get(ours.key)
            sites[i] = compared(ours, theirs, floor, sites[i], own=self.meeting.own[i])
        return sites

    def _block(self, view: Geometry, at: np.ndarray) -> None:
        """Measure some pairs of sketches that lie alike."""
        x, y = (
            _gathered(side.sketches, side.layout.sketches[where[at]], view.size)
            for side, where in zip((self.ours, self.theirs), self.meeting.at, strict=True)
        )
        self._l2[at], self._own[at], self._cosine[at], apart = between(x, y, view, self._alike[at])
        self._floor[at] = self.limits[at]
        starts, counts = (column[at] for column in self._bins)
        held = np.flatnonzero((starts >= 0) & (counts == view.bins))
        bins, at = ratios(apart[held], _gathered(self.floors.bins, starts[held], view.bins)), at[held]
        self._peaks[at] = np.fmax.reduce(bins, axis=1, initial=0.0)
        passes = (ratios(self._l2[at], self._floor[at]) <= L2_LIMIT) & (self._peaks[at] <= LINF_LIMIT)
        passes &= ~np.isin(at, self.meeting.others)
        self._shown |= {int(at[n]): array("d", bins[n].tobytes()) for n in np.flatnonzero(~passes)}

    def _records(self, i: int) -> list[Record]:
        """Of both sides what is at a site."""
        sides = zip((self.ours, self.theirs), self.meeting.at, strict=True)
        return [side[at[i]] for side, at in sides if at[i] >= 0]

    def held_bytes(self, i: int) -> tuple[bytes, bytes]:
        """What both sides have at a site, bit for bit; empty where it is no tensor of both."""
        both = [r.sketch.tobytes() for r in self._records(i) if r.sketch is not None]
        return (both[0], both[1]) if len(both) == 2 else (b"", b"")

    def values(self, i: int) -> tuple[np.ndarray, np.ndarray] | None:
        """What both sides hold whole at a site, or is small, in float64; None elsewhere."""
        held = [x for x in map(whole, self._records(i)) if x is not None]
        return (held[0], held[1]) if len(held) == 2 else None

    def numbers(self, i: int) -> tuple[float, float] | None:
        """What both sides have at a site that holds one number on each; None elsewhere."""
        held = [r.moments.mean for r in self._records(i) if r.moments is not None and r.moments.count == 1]
        return (held[0], held[1]) if len(held) == 2 else None

    def hands_on(self, branch: str, module: str) -> bool:
        """Whether an output of the reference's module is one of its inputs."""
        own = [r for r in self.ours if (r.key.branch, r.key.module) == (branch, module) and r.shape]
        given = {r.sketch.tobytes() for r in own if r.key.is_input and r.sketch is not None}
        return any(r.sketch.tobytes() in given for r in own if not r.key.is_input and r.sketch is not None)

    def same_values(self, at: Sequence[int], factor: float, least: float = ORDER) -> bool:
        """Whether the candidate's tensor may hold the reference's values times a factor, in any order, or in another
        where that is 1, by the minimum, maximum, mean and l2 of both.

        As far as floors let the two be apart in L2, that over the root of the count moves the mean at most; an extremum
        is moved by some times as much, and in proportion to its size.

        Args:
            at: where it is, or where its parts are. least: how far apart they are then, relatively.
        """
        of = list(at)
        if factor == 1.0 and not (self.relative[of] > least).any():
            return False
        (a, b), near = (moments[of] for moments in self.moments), L2_LIMIT * float(norm(self.limits[of]))
        if (a < 0).any() or (b < 0).any() or math.isnan(near):
            return False
        counts = self.ours.counts[a, 0], self.theirs.counts[b, 0]
        if counts[0].sum() != counts[1].sum():
            return False
        x, y = _together(self.ours.numbers[a], counts[0]), _together(self.theirs.numbers[b], counts[1])
        ends, root = np.sort(factor * x[:2]), math.sqrt(counts[0].sum())
        most = np.minimum(near, EXTREME * near / root + near * np.abs(ends) / max(abs(factor) * x[3], 1e-30))
        apart = np.abs([*(y[:2] - ends), (y[2] - factor * x[2]) * root, y[3] - abs(factor) * x[3]])
        return bool((apart <= max(abs(factor), 1.0) * np.array([*most, near, near])).all())


def _together(numbers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Minimum, maximum, mean and l2 of all parts of a value."""
    mean = numbers[:, 2] @ counts / max(counts.sum(), 1)
    return np.array([numbers[:, 0].min(), numbers[:, 1].max(), mean, norm(numbers[:, 3])])


def _with_missing(column: np.ndarray, missing: float) -> np.ndarray:
    """A column, and last what stands at the position -1, of what is not there."""
    return np.append(column, missing).astype(column.dtype, copy=False)


def _gathered(column: np.ndarray, starts: np.ndarray, size: int) -> np.ndarray:
    """float32 [sites, size] from where each begins; a view where they lie one behind the other."""
    if starts.size and (np.diff(starts) == size).all():
        return column[starts[0] : starts[0] + starts.size * size].reshape(-1, size)
    return column[starts[:, None] + np.arange(size)]
