"""Judging one step: every site's distance from columns of sketches, objects for what does not pass.

Problem. A site that passes needs four numbers; made and judged as an object it costs a hundred times what reading its
sketch does, and nearly every site of nearly every comparison passes.

How. Which records stand against each other, and how their sketches lie, is found once for as long as both sides'
layouts stay. Distances come from blocks of sketches. What is not two sketches (values that are held, moments alone,
scalars, None) is compared pair by pair (`parity.compare.single`), and what is beyond its floor becomes an object, of
which it is asked where the divergence begins (`parity.compare.births`).

Cost. One read of both sketches; 3 MB of memory for a block.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from parity.compare.births import (
    L2_LIMIT,
    LATENTS,
    LINF_LIMIT,
    Births,
    Excuse,
    beyond,
    call_of,
    input_severities,
    peak,
)
from parity.compare.metrics import between, ratios
from parity.compare.pairs import Group, Meeting, Pair, meet
from parity.compare.preflight import Factors
from parity.compare.result import NAN, SiteDiff
from parity.compare.single import compared, keys_through, unread
from parity.compare.sites import BIRTHS, VERDICTS, Columns
from parity.golden.disk.part import FloorTable, Table, tabled
from parity.records import LOOP, StepRecords

BLOCK = 1 << 17
"""Elements of the sketches that are compared at a time."""


@dataclass
class Common:
    """What two streams of records have in common.

    Attributes:
        modules, compared: the reference's modules with a tensor, and those of them with one that was compared.
        alone: tensors that only the reference has, and only the candidate. floors: those of the reference.
    """

    modules: set[str] = field(default_factory=set)
    compared: set[str] = field(default_factory=set)
    alone: tuple[int, int] = (0, 0)
    floors: int = 0

    def add(self, meeting: Meeting, made: Columns, floors: int) -> None:
        """Count one judged step."""
        self.modules |= meeting.modules
        if not self.compared >= meeting.modules:
            decided = ~np.isin(made.verdicts, [VERDICTS.index(v) for v in ("ignored", "not compared")])
            tensors = (made.places[i] for i in np.flatnonzero(decided).tolist())
            self.compared |= meeting.modules & {p.key.module for p in tensors if all(p.dtypes)}
        self.alone = self.alone[0] + meeting.alone[0], self.alone[1] + meeting.alone[1]
        self.floors += floors


@dataclass
class Judge:
    """Judges a run step by step.

    Attributes:
        excuses: the sites that a declared differing setting changes by design.
        port: whether the candidate's modules are a user's own. mapped: modules of the reference that other names of the
            candidate are mapped onto; None without a mapping. Inside both, what does not line up is not compared.
        laid_out: the modules whose parameters a port holds in another order or times a factor, with the factors.
        seen: what both sides had in common so far.
    """

    excuses: tuple[Excuse, ...] = ()
    port: bool = False
    mapped: Collection[str] | None = None
    laid_out: Factors = field(default_factory=dict)
    births: Births = field(init=False)
    seen: Common = field(default_factory=Common)
    _meeting: Meeting | None = None

    def __post_init__(self) -> None:
        self.births = Births(self.excuses)

    def step(self, reference: StepRecords, candidate: StepRecords) -> Columns:
        """The sites of one step, in execution order, with births."""
        (ours, floors), (theirs, _) = tabled(reference), tabled(candidate)
        meeting = self._meeting
        if meeting is None or meeting.layouts != (ours.layout, theirs.layout):
            meeting = self._meeting = meet(
                ours.layout, theirs.layout, port=self.port, mapped=self.mapped, laid_out=self.laid_out
            )
        made = _Step(self, meeting, ours, theirs, floors).judged()
        self.seen.add(meeting, made, len(floors))
        return made


class _Step:
    """One step being judged."""

    def __init__(self, judge: Judge, meeting: Meeting, ours: Table, theirs: Table, floors: FloorTable) -> None:
        self.judge, self.meeting, self.ours, self.theirs, self.floors = judge, meeting, ours, theirs, floors
        self.made = Columns.empty(ours.step, meeting.places)
        self.peaks = np.zeros(len(meeting.places))
        for s, side in enumerate((ours, theirs)):
            bad = np.append(side.counts[:, 1] + side.counts[:, 2], 0)
            self.made.nonfinite[:, s] = bad[meeting.moments[:, s]]

    def judged(self) -> Columns:
        for group in self.meeting.groups:
            self._sketches(group)
        for i in self.meeting.others:
            self._one(i)
        loop = self.made.loop
        self._bear(loop)
        if any(d.key.site in LATENTS and beyond(d) for d in loop):
            self.judge.births.dirty = True
        return self.made

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
                self._block(group, part, x, y, limits)

    def _block(self, group: Group, part: slice, x: np.ndarray, y: np.ndarray, limits: np.ndarray) -> None:
        at = group.at[part]
        moments = self.meeting.moments[at]
        counts = [np.append(side.counts[:, 1:], [[-1, -1]], axis=0) for side in (self.ours, self.theirs)]
        alike = (moments >= 0).all(axis=1) & (counts[0][moments[:, 0]] == counts[1][moments[:, 1]]).all(axis=1)
        l2, own, cosine, apart = between(x, y, group.view, alike)
        scale = np.where(moments[:, 0] >= 0, np.append(self.ours.numbers[:, 3], NAN)[moments[:, 0]], own)
        size = np.where(scale > 0, scale, 1.0)
        floor = np.append(self.floors.numbers[:, 0], NAN)[group.floors[part]]
        self.made.numbers[at, :4] = np.stack([l2 / size, floor / size, ratios(l2, floor), cosine], axis=1)
        bins = ratios(apart, limits)
        self.peaks[at] = np.fmax.reduce(bins, axis=1, initial=0.0)
        for i in np.flatnonzero(group.bins[part] >= 0).tolist():
            self.made.bins[at[i]] = bins[i]

    def _one(self, i: int) -> None:
        """A site that is not two sketches."""
        a, b = self.meeting.pairs[i]
        key = replace(self.meeting.places[i].key, step=self.ours.step)
        pair = Pair(key, None if a < 0 else self.ours[a], None if b < 0 else self.theirs[b])
        floor = None if a < 0 else self.floors.get(self.ours[a].key)
        d = compared(pair, floor, own=self.meeting.own[i])
        self.made.put(i, d)
        self.peaks[i] = peak(d)

    def _bear(self, loop: Sequence[SiteDiff]) -> None:
        """Verdicts and births of what is beyond its floor."""
        self._read()
        self._tell_apart()
        self._lie_otherwise()
        self._move_masks()
        rel, ratios = self.made.numbers[:, 0], self.made.numbers[:, 2]
        unknown, far = np.isnan(ratios), self._far()
        far &= ~self.meeting.padding & (self.made.verdicts != VERDICTS.index("not compared"))
        self.made.verdicts[self.meeting.padding] = VERDICTS.index("ignored")
        at = np.flatnonzero(far).tolist()
        if not at:
            return
        severities = np.where(unknown, np.where(rel != 0.0, math.inf, 0.0), ratios)
        severities = np.maximum(severities, self.peaks * L2_LIMIT / LINF_LIMIT)
        unpaired = np.flatnonzero(self.made.verdicts == VERDICTS.index("not compared"))
        severities[unpaired] = 0.0
        uncompared = {call_of(p.key) for p in (self.meeting.places[i] for i in unpaired.tolist()) if p.key.is_input}
        inputs = input_severities(loop)
        for place, worst in zip(self.meeting.places, severities.tolist(), strict=True):
            if place.key.is_input and place.key.module != LOOP and not place.key.is_apart:
                call = call_of(place.key)
                inputs[call] = max(inputs.get(call, 0.0), worst)
        found = self.judge.births.of([self.made[i] for i in at], inputs, uncompared)
        for i, (verdict, birth) in zip(at, found, strict=True):
            self.made.verdicts[i], self.made.births[i] = VERDICTS.index(verdict), BIRTHS.index(birth)

    def _far(self) -> np.ndarray:
        rel, ratios = self.made.numbers[:, 0], self.made.numbers[:, 2]
        return np.where(np.isnan(ratios), rel != 0.0, (ratios > L2_LIMIT) | (self.peaks > LINF_LIMIT))

    def _read(self) -> None:
        """What is read alone decides: not rows that no query reads, nor frames beyond what a picture shows. In a norm
        over both, many that nobody reads hide the few that are read."""
        rel, ratios = self.made.numbers[:, 0], self.made.numbers[:, 2]
        far, known = self._far(), ~np.isnan(ratios) | (rel == 0.0)
        for i, j in self.meeting.read[known[self.meeting.read[:, 1]]].tolist():
            if far[i] and not far[j]:
                self.made.notes[i] = unread(self.meeting.places[i].key)
            self.made.numbers[i], self.peaks[i] = self.made.numbers[j], self.peaks[j]
            if not far[j]:  # else they say where in the whole it differs
                self.made.bins[i] = self.made.bins[j]

    def _tell_apart(self) -> None:
        """A pair under two names can only agree: what differs may be two things, and so may an output of which the
        model's own output shows nothing."""
        far = self._far()
        for i, output in self.meeting.lone:
            if far[i] and (output < 0 or not far[output]):
                called = self.meeting.places[i].called
                self.made.verdicts[i] = VERDICTS.index("not compared")
                self.made.notes[i] = f"{called} in the candidate, which may be another thing"

    def _lie_otherwise(self) -> None:
        """What is made of parameters that lie otherwise is not compared where it lies so too: it holds the reference's
        values in another order, or times the parameters' factor, and what is made of it shows whether that is right."""
        far = self._far()
        for i, factors in self.meeting.laid_out.items():
            a, b = self.meeting.moments[i].tolist()
            floor = self.floors.get(replace(self.meeting.places[i].key, step=self.ours.step)) if far[i] else None
            if a < 0 or b < 0 or floor is None or self.ours.counts[a, 0] != self.theirs.counts[b, 0]:
                continue
            numbers, near = (self.ours.numbers[a], self.theirs.numbers[b]), L2_LIMIT * floor.l2
            same = [factor for factor in factors if _same_values(*numbers, factor, near, int(self.ours.counts[a, 0]))]
            if same:
                how = "in another order" if same[0] == 1.0 else f"times {same[0]:.4g}"
                self.made.verdicts[i] = VERDICTS.index("not compared")
                self.made.notes[i] = f"the reference's values {how}, as its parameters are"

    def _move_masks(self) -> None:
        """A port's mask may let as many keys through in other places: its text lies there, where the rows that the mask
        says are read are the reference's."""
        far, places = self._far(), self.meeting.places
        for i in self.meeting.others:
            if not far[i] or not self.meeting.own[i] or "mask" not in places[i].key.port:
                continue
            call, (a, b) = call_of(places[i].key), self.meeting.pairs[i]
            read = [j for j, p in enumerate(places) if p.rows and call_of(p.key) == call and not p.key.is_apart]
            as_many = a >= 0 and b >= 0 and keys_through(self.ours[a]) & keys_through(self.theirs[b])
            if as_many and read and not far[read].any():
                self.made.verdicts[i] = VERDICTS.index("not compared")
                self.made.notes[i] = "it lets as many keys through, and the rows that it reads are the reference's"


def _same_values(x: np.ndarray, y: np.ndarray, factor: float, near: float, count: int) -> bool:
    """Whether one tensor may hold the other's values times a factor, in any order.

    Args:
        x, y: min, max, mean and l2 of each. near: how far they may be apart in L2; no extremum is moved by more, and
            the mean by that over the root of the count. count: of their elements.
    """
    ends = np.sort(factor * x[:2])
    apart = np.abs(np.array([*(y[:2] - ends), (y[2] - factor * x[2]) * math.sqrt(count), y[3] - abs(factor) * x[3]]))
    return bool((apart <= max(abs(factor), 1.0) * near).all())


def _gathered(column: np.ndarray, starts: np.ndarray, size: int) -> np.ndarray:
    """float32 [sites, size] from where each begins; what lies one behind the other is copied at once, or not at all."""
    edges = np.flatnonzero(np.diff(starts) != size) + 1
    if starts.size and not edges.size:
        return column[starts[0] : starts[0] + starts.size * size].reshape(-1, size)
    found = np.empty((starts.size, size), np.float32)
    for first, last in zip([0, *edges.tolist()], [*edges.tolist(), starts.size], strict=True):
        found[first:last] = column[starts[first] : starts[first] + (last - first) * size].reshape(-1, size)
    return found
