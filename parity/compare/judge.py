"""Judging one step: every site's distance from its floor, measured in blocks of sketches.

Problem. Nearly every site of nearly every comparison passes; measured one by one it costs a hundred times what reading
its sketch does.

How. Which records stand against each other, and how their sketches lie, is found once for as long as both sides'
layouts stay. Distances come from blocks of sketches. What is not two sketches alone (values that are held, masks,
moments, scalars, None) is then looked at pair by pair (`parity.compare.metrics`), and what is beyond its floor is asked
where the divergence begins (`parity.compare.births`).

A right port may have the image before the text in its attention, or the columns of a rotary table laid out otherwise:
the reference's values in another order. That is no fault if the next values that are compared match again: the output
of the nearest module around it, or the input of the module called next. The output of a module that only hands on its
input (a gate of zero) shows nothing, and the whole model's output is so far away that it counts only where the port's
parameters lie otherwise too. Nothing is fitted: what reads a value decides.

Cost. One read of both sketches; 3 MB of memory for a block; some 400 bytes a site, and 8 a row bin of what does not
pass.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from parity.compare.births import CUT, Argument, Arguments, Births, Excuse, above, beyond, call_of
from parity.compare.metrics import (
    ALIKE,
    LINF_LIMIT,
    REORDERED,
    UNREAD,
    between,
    compared,
    distance,
    is_mask,
    keys_through,
    ratios,
    unread,
)
from parity.compare.pairs import Branches, Meeting, meet
from parity.compare.preflight import Factors
from parity.compare.result import NAN, Distance, SiteDiff
from parity.compare.values import PREDICTED
from parity.floors import L2_LIMIT
from parity.golden.disk.part import FloorTable, Table, tabled
from parity.records import ATTENTION, LOOP, LOOP_STAGE, Key, Record, StepRecords
from parity.sketch import Geometry

BLOCK = 1 << 16
"""Elements of the sketches that are compared at a time."""


@dataclass
class Common:
    """What two streams of records have in common.

    Attributes:
        modules, compared: the reference's modules with a tensor, and those of them with one that was compared.
        alone: tensors that only the reference has, and only the candidate. missing: see `Meeting`. floors: those of
            the reference.
    """

    modules: set[str] = field(default_factory=set)
    compared: set[str] = field(default_factory=set)
    alone: tuple[int, int] = (0, 0)
    missing: dict[object, tuple[str, ...]] = field(default_factory=dict)
    floors: int = 0

    def add(self, meeting: Meeting, sites: Iterable[SiteDiff], floors: int) -> None:
        """Count one judged step."""
        self.modules |= meeting.modules
        if not self.compared >= meeting.modules:
            decided = (d for d in sites if d.verdict not in ("ignored", "not compared"))
            self.compared |= meeting.modules & {d.key.module for d in decided if all(d.dtypes)}
        self.alone = self.alone[0] + meeting.alone[0], self.alone[1] + meeting.alone[1]
        self.missing |= meeting.missing
        self.floors += floors


@dataclass
class Judge:
    """Judges a run step by step.

    Attributes:
        excuses: the sites that a declared differing setting changes by design.
        port: whether the candidate's modules are a user's own. mapped: modules of the reference that other names of the
            candidate are mapped onto; None without a mapping. Inside both, what does not line up is not compared.
        laid_out: the modules whose parameters a port holds in another order or times a factor, with the factors.
        branches: the candidate's, which may be in another order. seen: what both sides had in common so far.
    """

    excuses: tuple[Excuse, ...] = ()
    port: bool = False
    mapped: Collection[str] | None = None
    laid_out: Factors = field(default_factory=dict)
    branches: Branches = field(default_factory=lambda: Branches({}))
    births: Births = field(init=False)
    seen: Common = field(default_factory=Common)
    _meeting: Meeting | None = None
    _given: dict[Argument, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.births = Births(self.excuses)

    def step(self, reference: StepRecords, candidate: StepRecords) -> tuple[SiteDiff, ...]:
        """The sites of one step, in execution order, with births."""
        (ours, floors), (theirs, _) = tabled(reference), tabled(candidate)
        meeting = self._meeting
        if meeting is None or meeting.layouts != (ours.layout, theirs.layout):
            meeting = self._meeting = meet(
                ours.layout, theirs.layout, port=self.port, mapped=self.mapped, laid_out=self.laid_out
            )
        step = _Step(meeting, ours, theirs, floors)
        sites = step.measured()
        step.read(sites)
        step.set_in_order(sites)
        _narrow(sites)
        _tell_apart(sites)
        if self.branches.crossed:
            step.excuse_batches(sites)
        step.excuse_masks(sites)
        step.excuse_other_orders(sites)
        self.births.judge(sites, self._arguments(step, sites))
        step.name_same(sites)
        self.seen.add(meeting, sites, len(floors))
        return tuple(sites)

    def _arguments(self, step: _Step, sites: Sequence[SiteDiff]) -> Arguments:
        """What the reference's model is given, beside what it was given in the steps before."""
        given = step.arguments()
        before, self._given = self._given, given | self._given
        moving = {at for at, value in given.items() if self._given[at] != value}
        whole = {sites[i].key for at in step.folded(sites) for i in at}
        return Arguments(moving, before.keys() - moving, step.handed_on(sites, given), whole)


class _Step:
    """One step being measured."""

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

    def measured(self) -> list[SiteDiff]:
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

    def name_same(self, sites: list[SiteDiff]) -> None:
        """Of the sites that differ, say which have the values of an earlier one: what a module gives is handed on."""
        first: dict[tuple[str, bytes, bytes], str] = {}
        for i, d in enumerate(sites):
            both = self._sketches(i) if d.verdict == "fail" else (b"", b"")
            if both[0] and (same := first.setdefault((d.key.branch, *both), d.key.site)) != d.key.site:
                sites[i] = replace(d, same=same)

    def arguments(self) -> dict[Argument, bytes]:
        """What the reference's model is given, by branch and site."""
        inputs = ((i, self.meeting.places[i].key) for i in self.meeting.inputs)
        return {(key.branch, key.site): self._sketches(i)[0] for i, key in inputs if key.module == ""}

    def handed_on(self, sites: Sequence[SiteDiff], given: Mapping[Argument, bytes]) -> Set[Key]:
        """The inputs inside the model that differ and are an argument of it, bit for bit, which agrees."""
        inputs = [i for i in self.meeting.inputs if beyond(sites[i])]
        others = {(sites[i].key.branch, sites[i].key.site) for i in inputs}
        agree = {(at[0], value) for at, value in given.items() if at not in others and any(value)}
        return {sites[i].key for i in inputs if agree and (sites[i].key.branch, self._sketches(i)[0]) in agree}

    def _sketches(self, i: int) -> tuple[bytes, bytes]:
        """What both sides have at a site, bit for bit; empty where it is no tensor of both."""
        records = [
            side[at[i]] for side, at in zip((self.ours, self.theirs), self.meeting.at, strict=True) if at[i] >= 0
        ]
        both = [r.sketch.tobytes() for r in records if r.sketch is not None]
        return (both[0], both[1]) if len(both) == 2 else (b"", b"")

    def excuse_batches(self, sites: list[SiteDiff]) -> None:
        """Of a candidate whose batch has another order, what was not taken apart by branch is not compared where it may
        be the reference's in another order."""
        for at in self.folded(sites):
            if self._same_values(at[0], 1.0, least=0.0):
                for i in at:
                    note = "not taken apart by guidance branch, whose order is another in the candidate's batch"
                    sites[i] = replace(sites[i], verdict="not compared", note=note)

    def folded(self, sites: Sequence[SiteDiff]) -> Iterator[list[int]]:
        """The calls that differ and hold several branches at once, as frames that are folded into the batch: the same
        stands for each of them."""
        calls: dict[tuple[str, int], list[int]] = {}
        for i in np.flatnonzero(~(self.numbers[:, 2] <= L2_LIMIT) | (self.peaks > LINF_LIMIT)).tolist():
            d = sites[i]
            if d.key.branch and d.verdict == "pass" and beyond(d):
                calls.setdefault((d.key.site, d.key.call), []).append(i)
        for at in calls.values():
            rows, many = (sites[at[0]].shapes[0] or (0,))[0], len(at)
            if rows > many > 1 and rows % many == 0 and len({self._sketches(i) for i in at}) == 1:
                yield at

    def read(self, sites: list[SiteDiff]) -> None:
        """What is read alone decides: not rows that no query reads, nor frames beyond what a picture shows. In a norm
        over both, many that nobody reads hide the few that are read."""
        for i, j in self.meeting.parts.items():
            whole, part = sites[i], sites[j]
            if np.isnan(part.distance.ratio) and part.distance.rel_l2 != 0.0:
                continue
            if self._apart(j) > 2.0 * self._apart(i):  # no part can be: each side's mask picks other rows
                continue
            numbers = {name: getattr(part, name) for name in ("distance", "cosine", "max_abs", "linf_ratio", "peak")}
            if not beyond(part):  # else the whole's bins say where it differs
                note = unread(whole.key) if beyond(whole) else whole.note
                whole = replace(whole, bins=part.bins, note=note)
            sites[i] = replace(whole, **numbers)

    def set_in_order(self, sites: list[SiteDiff]) -> None:
        """Of rows that are read nothing depends on the order, or on where they stand, but by a position that a module
        gives them: what it makes of that shows it. Where nobody knows the rows, a mask that moves with them says so."""
        masks = [d.key for d in sites if "mask" in d.key.port and beyond(d)]
        moved = {key.branch for key in masks} | {(key.branch, "") for key in masks if key.module == ""}
        for i, j in self.meeting.sets.items():
            whole, part = sites[i], sites[j]
            may_move = whole.rows or (whole.key.branch, "") in moved or (whole.key.module and whole.key.branch in moved)
            if not may_move or not (beyond(whole) or whole.verdict == "not compared"):
                continue
            least = np.fmax(self._floor(j), SUMS * self._floor(self.meeting.parts.get(i, i)))
            far = distance(part.distance.rel_l2 * self._norm(j), self._norm(j), float(least))
            agrees, unlike = far.ratio <= L2_LIMIT, whole.verdict == "not compared" and not math.isnan(far.ratio)
            if agrees or unlike:
                numbers = replace(whole, distance=far, cosine=part.cosine, peak=0.0, bins=())
                sites[i] = replace(numbers, verdict="pass", note=REORDERED if agrees else whole.note)
        self._move_beside(sites)

    def _move_beside(self, sites: list[SiteDiff]) -> None:
        """What a module is given for each row, as a table of positions, moves with rows in another order."""
        rows = {(call_of(d.key), n) for d in sites if d.note == REORDERED and d.key.is_input for n in d.shapes[0][1:2]}
        for i in self.meeting.inputs if rows else ():
            d = sites[i]
            moves = all(d.dtypes) and any((call_of(d.key), n) in rows for n in d.shapes[0][:2])
            if moves and d.verdict == "pass" and "mask" not in d.key.port and beyond(d) and self._same_values(i, 1.0):
                note = "the reference's values in another order, as the rows are that they are for"
                sites[i] = replace(d, verdict="not compared", note=note)

    def _apart(self, i: int) -> float:
        """How far two records are apart, in the reference's units."""
        return float(self.numbers[i, 0]) * self._norm(i)

    def _norm(self, i: int) -> float:
        at = self.moments[0][i]
        return NAN if at < 0 else float(self.ours.numbers[at, 3])

    def _floor(self, i: int) -> float:
        at = self.meeting.floors[i]
        return NAN if at < 0 else float(self.floors.numbers[at, 0])

    def excuse_masks(self, sites: list[SiteDiff]) -> None:
        """A mask is not compared where the rows that it lets through are the reference's, elsewhere or in another
        order. Where another number of rows is let through, the rows are not compared, but the mask is.

        Text without its padding needs no mask: see `_excuse_cut`.
        """
        for i in self.meeting.others:
            d, (a, b) = sites[i], (at[i] for at in self.meeting.at)
            if a < 0 or b < 0 or not any(map(is_mask, masks := (self.ours[a], self.theirs[b]))):
                continue
            beside = [j for j, e in enumerate(sites) if call_of(e.key) == call_of(d.key) and i != j]
            whole = [sites[j] for j in beside if not sites[j].key.is_apart]
            read = [e for e in whole if (e.rows and self.meeting.own[i]) or e.note == REORDERED]
            as_many = bool(keys_through(masks[0]) & keys_through(masks[1])) and "mask" in d.key.port
            if as_many and beyond(d) and read and not any(map(beyond, read)):
                note = "it lets as many keys through, and the rows that it reads are the reference's"
                sites[i] = replace(d, verdict="not compared", note=note)
            elif not as_many and d.key.module != "" and d.verdict == "pass" and beyond(d):
                for j in beside:
                    e = sites[j]
                    of_mask = e.shapes[0][1:2] == d.shapes[0][-1:] and "mask" not in e.key.port
                    if e.key.is_input and of_mask and beyond(e):
                        note = "which of its rows are read, a mask says that differs"
                        sites[j] = replace(e, verdict="not compared", note=note)
            if self.meeting.own[i]:
                self._excuse_cut(sites, i, beside, masks)

    def _excuse_cut(self, sites: list[SiteDiff], i: int, beside: Sequence[int], masks: Sequence[Record]) -> None:
        """All that there is of a text is read where a side leaves its padding out; it needs no mask then, or one of all
        ones."""
        d, missing = sites[i], any(mask.kind == "none" for mask in masks)
        for j in beside if missing or d.verdict == "not compared" else ():
            e = sites[j]
            agrees, unlike = e.note in (UNREAD, REORDERED), e.verdict == "not compared" and e.key.is_input
            if (agrees or unlike) and _is_cut(e.shapes, masks) and (agrees or self._may_be_cut(j)):
                sites[j] = e if agrees else replace(e, note=CUT)
                if missing:
                    sites[i] = replace(d, verdict="not compared", note=f"a mask against None, beside rows {CUT}")

    def _may_be_cut(self, j: int) -> bool:
        """Whether the rows that are read of one side may be the other side's rows, by their norms."""
        (a, b), at = (moments[j] for moments in self.moments), self.meeting.floors[j]
        if a < 0 or b < 0:
            return True
        key = replace(self.meeting.places[j].key.read, step=self.ours.step)
        norms = [self.ours.numbers[a, 3], self.theirs.numbers[b, 3]]
        read = [next((r.moments for r in side if r.key == key), None) for side in (self.ours, self.theirs)]
        if not any(read):
            return True
        norms = [norm if of is None else of.l2 for norm, of in zip(norms, read, strict=True)]
        floor = 0.0 if at < 0 else L2_LIMIT * float(self.floors.numbers[at, 0])
        return bool(abs(norms[0] - norms[1]) <= max(floor, ALIKE * norms[0]))

    def excuse_other_orders(self, sites: list[SiteDiff]) -> None:
        """Inside a port the reference's values in another order are not compared: where the parameters lie so too, then
        also times their factor, or where what reads the values agrees."""
        far = [i for i, d in enumerate(sites) if d.verdict == "pass" and self.meeting.own[i] and beyond(d)]
        for i in far:
            same = [factor for factor in self.meeting.laid_out.get(i, ()) if self._same_values(i, factor)]
            if same:
                how = "in another order" if same[0] == 1.0 else f"times {same[0]:.4g}"
                note = f"the reference's values {how}, as its parameters are"
                sites[i] = replace(sites[i], verdict="not compared", note=note)
        far = [i for i in far if sites[i].verdict == "pass"]
        turned = {sites[i].key: i for i in far if self._same_values(i, 1.0)}
        turned |= {sites[i].key: i for i in far if asked_by(sites[i].key) in turned}
        if not turned:
            return
        around, seen = Around(tuple(sites), self._hands_on, bool(self.meeting.laid_out)), {d.key for d in sites}
        for key, i in turned.items():
            sharp = sites[i].distance.floor <= SHARP * sites[i].distance.rel_l2  # what reads it shows the order undone
            if (sharp or turned_together(key, turned, seen)) and around.undone(i):
                note = "the reference's values in another order, and what reads them agrees"
                sites[i] = replace(sites[i], verdict="not compared", note=note)

    def _hands_on(self, branch: str, module: str) -> bool:
        """Whether an output of the reference's module is one of its inputs."""
        own = [r for r in self.ours if (r.key.branch, r.key.module) == (branch, module) and r.shape]
        given = {r.sketch.tobytes() for r in own if r.key.is_input and r.sketch is not None}
        return any(r.sketch.tobytes() in given for r in own if not r.key.is_input and r.sketch is not None)

    def _same_values(self, i: int, factor: float, least: float | None = None) -> bool:
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


def _is_cut(shapes: tuple[tuple[int, ...], tuple[int, ...]], masks: Sequence[Record]) -> bool:
    """Whether a tensor has as many rows on one side as the mask of the other side lets through of all."""
    sides = ((masks[0], shapes[0], shapes[1]), (masks[1], shapes[1], shapes[0]))
    return any(
        own != other and (own,) == mask.shape[-1:] and other in keys_through(mask)
        for mask, ours, theirs in sides
        for own, other in zip(ours, theirs, strict=False)
    )


def _gathered(column: np.ndarray, starts: np.ndarray, size: int) -> np.ndarray:
    """float32 [sites, size] from where each begins; a view where they lie one behind the other."""
    if starts.size and (np.diff(starts) == size).all():
        return column[starts[0] : starts[0] + starts.size * size].reshape(-1, size)
    return column[starts[:, None] + np.arange(size)]


SUMS = 5.0
"""How far apart the four sums over rows may be, in floors of the rows: sqrt(6) where each row is rounded by itself, and
twice that because rounded weights move all rows alike."""

WIDEST = 0.1 / L2_LIMIT
"""Relative floor of a module that is given the same on both sides, to the bit: a dtype moves no more by itself."""


def _narrow(sites: list[SiteDiff]) -> None:
    """A floor holds what rounding of a module's inputs makes of it, of a phase of 1000 in a time embedding; where these
    are the same on both sides, nothing of that is in its output."""
    wide = [i for i, d in enumerate(sites) if _is_wide(d)]
    if not wide:
        return
    given: dict[object, bool] = {}
    for d in sites:
        if d.key.is_input and not d.key.is_apart:
            same = d.distance.rel_l2 == 0.0 and d.verdict == "pass"
            given[call_of(d.key)] = given.get(call_of(d.key), True) and same
    for i in wide:
        d = sites[i]
        if given.get(call_of(d.key), False):
            far = Distance(d.distance.rel_l2, WIDEST, d.distance.rel_l2 / WIDEST)
            sites[i] = replace(d, distance=far)


def _is_wide(d: SiteDiff) -> bool:
    """Whether a module's output, not the model's, is further away than a dtype moves it, within its floor."""
    inside = d.key.stage == LOOP_STAGE and not d.key.is_input and d.key.module not in ("", LOOP)
    wide = WIDEST < d.distance.floor < math.inf and d.distance.rel_l2 > L2_LIMIT * WIDEST
    return inside and wide and d.verdict == "pass"


def _tell_apart(sites: list[SiteDiff]) -> None:
    """A pair under two names can only agree: what differs may be two things, and so may an output of which the model's
    own output shows nothing."""
    predicted = {d.key.branch: d for d in sites if d.key.site == PREDICTED}
    for i, d in enumerate(sites):
        if d.called and d.verdict != "ignored" and beyond(d):
            output = None if d.key.is_input else predicted.get(d.key.branch)
            if output is None or not beyond(output):
                note = f"{d.called} in the candidate, which may be another thing"
                sites[i] = replace(d, verdict="not compared", note=note)


# --- the reference's values in another order inside a port

ORDER = 0.1
"""Relative L2 distance above which two tensors may hold the same values in another order: below it noise of that size
moves neither extremes nor norm by more than rounding may."""

SHARP = 1e-3
"""Share of a difference that a floor may be for what reads it to have decided; in 16 bits it is far wider."""
EXTREME = 3.0
"""How much more than the elements on average an extreme one may be moved by rounding."""
_TOGETHER = {"in.query": {"in.key"}, "in.key": {"in.query", "in.value"}, "in.value": {"in.key"}}


def asked_by(key: Key) -> Key | None:
    """Of what an attention call gives, the queries, whose rows it has, however near to each other these are."""
    own = key.module.rpartition(".")[2] == ATTENTION and key.port == "out"
    return replace(key, site=f"{key.module}:in.query") if own else None


def turned_together(key: Key, turned: Container[Key], seen: Container[Key]) -> bool:
    """Whether what an attention call is given is in another order with another of its inputs: keys as queries are, in
    heads that lie otherwise, or as values are, in rows that do. A wrong rotation of one keeps its norm too.

    Args:
        turned: what may be in another order. seen: all that was compared.
    """
    others = _TOGETHER.get(key.port, ()) if key.module.rpartition(".")[2] == ATTENTION else ()
    beside = [replace(key, site=f"{key.module}:{port}") for port in others]
    return any(other in turned for other in beside) or not any(other in seen for other in beside)


@dataclass
class Around:
    """The sites of a step by the modules around them.

    Attributes:
        sites: in execution order. hands_on: whether the reference's module gives what it is given, by branch and path.
        laid_out: whether parameters of the port lie otherwise.
    """

    sites: Sequence[SiteDiff]
    hands_on: Callable[[str, str], bool]
    laid_out: bool
    _agrees: dict[tuple[str, str], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for d in self.sites:
            if not (d.key.is_input or d.key.is_apart or d.key.module == LOOP):
                place = d.key.branch, d.key.module
                self._agrees[place] = self._agrees.get(place, True) and _agrees(d)

    def undone(self, i: int) -> bool:
        """Whether what reads a site's values agrees."""
        key = self.sites[i].key
        around = self._nearest(key)
        if around is None:
            return False
        if self._agrees[key.branch, around] and (around or self.laid_out) and not self.hands_on(key.branch, around):
            return True
        later = (
            d
            for d in self.sites[i + 1 :]
            if d.key.is_input and (d.key.step, d.key.branch) == (key.step, key.branch)
            and d.key.module != key.module and self._nearest(d.key) == around and all(d.dtypes)
        )  # fmt: skip
        after = next(later, None)
        return around != "" and after is not None and _agrees(after)

    def _nearest(self, key: Key) -> str | None:
        """The nearest module around one whose output was seen."""
        return next((m for m in above(key.module) if (key.branch, m) in self._agrees), None)


def _agrees(d: SiteDiff) -> bool:
    return d.verdict == "pass" and all(d.dtypes) and not beyond(d)
