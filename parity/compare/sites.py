"""The sites of a comparison as columns, of which a `SiteDiff` is made where one is asked for.

Problem. A generation has hundreds of thousands of sites. Nearly all agree, and all that is asked of those is how many
they are.

How. A step keeps the numbers of its sites in arrays; what a rule says of one is kept as it was said. Which sites are
looked at is decided by columns (`Sites.where`), and by what is the same at every step, which is asked once (`picked`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parity.compare.metrics import LINF_LIMIT
from parity.compare.pairs import Meeting
from parity.compare.result import Distance, Result, SiteDiff, SiteVerdict
from parity.floors import L2_LIMIT
from parity.records import Key

Which = Callable[[SiteDiff], bool]
"""Asks for what is the same at every step: a key but for its step, shapes, dtypes, rows. A function of a module, since
steps that share a layout are asked once."""


class Sites(Sequence[SiteDiff]):
    """The sites of one step, in execution order.

    Attributes:
        meeting, step: of both sides' records. verdicts: of each, as `SiteDiff` has them. severities: float64 [sites],
            see `severity`. floors: float64 [sites], relative.

    Args:
        numbers: float64 [sites, 4], of each its distance, floor and ratio to it, and the cosine. peaks: float64
            [sites], the worst row bin. nonfinite: int64 [2, sites], NaNs and infinities. bins: of those that are
            beyond a floor, by position.
    """

    def __init__(
        self,
        meeting: Meeting,
        step: int,
        numbers: np.ndarray,
        peaks: np.ndarray,
        nonfinite: np.ndarray,
        bins: Mapping[int, Sequence[float]],
    ) -> None:
        self.meeting, self.step = meeting, step
        self.verdicts = np.array([place.verdict for place in meeting.places], "U12")
        self.severities, self.floors = _severities(numbers, peaks), numbers[:, 1].copy()
        self._numbers, self._peaks, self._nonfinite, self._bins = numbers, peaks, nonfinite, bins
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
        place, (far, floor, ratio, cosine) = self.meeting.places[i], self._numbers[i].tolist()
        return SiteDiff(  # `replace` takes far longer
            Key(place.key.stage, self.step, place.key.branch, place.key.site, place.key.call),
            Distance(far, floor, ratio),
            cosine=cosine,
            shapes=place.shapes,
            dtypes=place.dtypes,
            nonfinite=tuple(self._nonfinite[:, i].tolist()),
            peak=float(self._peaks[i]),
            bins=self._bins.get(i, ()),
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


def _severities(numbers: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """`severity` of many."""
    far, ratios = numbers[:, 0], numbers[:, 2]
    known = np.where(np.isnan(ratios), np.where(far == 0.0, 0.0, math.inf), ratios)
    return np.fmax(known, peaks * L2_LIMIT / LINF_LIMIT)
