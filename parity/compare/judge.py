"""Judging one step: every site against its floor, and what of it is a difference of its own.

Problem. Most of what differs does so because something before it does, and much that differs is no fault: padded rows,
rows in another order, a port's own layout.

How. A step is measured (`parity.compare.sites`). Of what is beyond its floor some is not to be compared
(`parity.compare.left_out`); what is left is asked where its divergence begins (`parity.compare.births`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from parity.compare import left_out
from parity.compare.births import UNITS, Argument, Arguments, Births, call_of, is_input, is_prediction
from parity.compare.branches import Branches
from parity.compare.pairs import Meeting, meet
from parity.compare.preflight import Factors
from parity.compare.result import Distance, SiteDiff
from parity.compare.sites import Measured, Sites, beyond, picked
from parity.compare.values import LATENTS_AS
from parity.floors import L2_LIMIT
from parity.golden.disk.part import tabled
from parity.records import LOOP, LOOP_STAGE, Key, StepRecords
from parity.settings import BITS
from parity.transforms import WITHIN


@dataclass
class Common:
    """What two streams of records have in common.

    Attributes:
        modules, compared: the reference's modules with a tensor, and those of them with one that was compared.
        alone: tensors that only the reference has, and only the candidate. missing: see `Meeting`. floors: those of
            the reference. shown: see `Result`. failing: modules with an output that fails.
    """

    modules: set[str] = field(default_factory=set)
    compared: set[str] = field(default_factory=set)
    alone: tuple[int, int] = (0, 0)
    missing: dict[object, tuple[str, ...]] = field(default_factory=dict)
    floors: int = 0
    shown: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)

    def add(self, meeting: Meeting, sites: Sites, floors: int) -> None:
        """Count one judged step."""
        self.modules |= meeting.modules
        if not self.compared >= meeting.modules:
            decided = sites.where("pass", "fail", "harmless", "inconclusive", which=_holds)
            self.compared |= meeting.modules & {meeting.places[i].key.module for i in decided}
        self.alone = self.alone[0] + meeting.alone[0], self.alone[1] + meeting.alone[1]
        self.missing |= meeting.missing
        self.floors += floors


@dataclass
class Judge:
    """Judges a run step by step.

    Attributes:
        births: which know the sites that a declared differing setting changes by design.
        port: whether the candidate's modules are a user's own. mapped: modules of the reference that other names of the
            candidate are mapped onto; None without a mapping. Inside both, what does not line up is not compared.
        laid_out: the modules whose parameters a port holds in another order or times a factor, with the factors.
        unlike: sites that an earlier check of the same run did not compare, and why: floors of 16 bits are too wide to
            show anew which values of a port are other things, and which are off. None without an earlier check.
        branches: the candidate's, which may be in another order. seen: what both sides had in common so far.
    """

    births: Births = field(default_factory=Births)
    port: bool = False
    mapped: Collection[str] | None = None
    laid_out: Factors = field(default_factory=dict)
    unlike: Mapping[Key, str] | None = None
    branches: Branches = field(default_factory=lambda: Branches({}))
    seen: Common = field(default_factory=Common)
    _meeting: Meeting | None = None
    _given: dict[Argument, bytes] = field(default_factory=dict)
    _moved: set[Argument] = field(default_factory=set)
    _undone: set[left_out.Undone] = field(default_factory=set)

    def step(self, reference: StepRecords, candidate: StepRecords) -> Sites:
        """The sites of one step, in execution order, with births."""
        (ours, floors), (theirs, _) = tabled(reference), tabled(candidate)
        meeting = self._meeting
        if meeting is None or meeting.layouts != (ours.layout, theirs.layout):
            meeting = self._meeting = meet(
                ours.layout, theirs.layout, port=self.port, mapped=self.mapped, laid_out=self.laid_out
            )
        step = Measured(meeting, ours, theirs, floors)
        sites = step.sites()
        left_out.read_alone(step, sites)
        left_out.set_in_order(step, sites)
        _narrow(sites)
        _tell_apart(sites)
        if self.branches.crossed:
            left_out.excuse_batches(step, sites)
        left_out.excuse_units(step, sites)
        left_out.excuse_masks(step, sites)
        left_out.decide_forms(sites)
        if self.unlike is None:
            left_out.excuse_other_orders(step, sites, self._undone)
        else:
            left_out.excuse_again(step, sites, self.unlike)
        self.births.judge(sites, self._arguments(step, sites))
        _name_same(step, sites)
        self.seen.add(meeting, sites, len(floors))
        self.seen.failing |= {sites[i].key.module for i in sites.where("fail", which=_is_output)}
        self.seen.shown = (self.seen.shown | _showing(step, sites, self.seen.shown)) - self.seen.failing
        return sites

    def _arguments(self, step: Measured, sites: Sites) -> Arguments:
        """What the reference's model is given, beside what it was given in the steps before."""
        given = _given(step)
        before, self._given = self._given, given | self._given
        moving = {at for at, value in given.items() if self._given[at] != value or _is_latents(at)}
        self._moved |= moving
        whole = {sites[i].key for at in left_out.folded(step, sites) for i in at}
        handed = _handed_on(step, sites, given) | _timed_otherwise(step, sites)
        return Arguments(moving, before.keys() - self._moved, handed, _made_alone(step, sites, given), whole)


def _holds(d: SiteDiff) -> bool:
    """Whether both sides have a tensor there."""
    return all(d.dtypes)


def _is_renamed(d: SiteDiff) -> bool:
    return bool(d.called)


def _name_same(step: Measured, sites: Sites) -> None:
    """Of the sites that differ, say which have the values of an earlier one: what a module gives is handed on."""
    first: dict[tuple[str, bytes, bytes], str] = {}
    for i in sites.where("fail"):
        d, both = sites[i], step.held_bytes(i)
        if both[0] and (same := first.setdefault((d.key.branch, *both), d.key.site)) != d.key.site:
            sites[i] = replace(d, same=same)


def _given(step: Measured) -> dict[Argument, bytes]:
    """What the reference's model is given, by branch and site."""
    inputs = ((i, step.meeting.places[i].key) for i in step.meeting.inputs)
    return {(key.branch, key.site): step.held_bytes(i)[0] for i, key in inputs if key.is_argument}


def _is_latents(at: Argument) -> bool:
    """Whether an argument's name says that it is the latents, which a step may leave as they are."""
    return at[1].partition(":in.")[2] in LATENTS_AS


def _handed_on(step: Measured, sites: Sites, given: Mapping[Argument, bytes]) -> Set[Key]:
    """The inputs inside the model that differ and are an argument of it, bit for bit, which agrees."""
    inputs = sites.where(beyond=True, which=is_input)
    others = {(sites[i].key.branch, sites[i].key.site) for i in inputs}
    agree = {(at[0], value) for at, value in given.items() if at not in others and any(value)}
    return {sites[i].key for i in inputs if agree and (sites[i].key.branch, step.held_bytes(i)[0]) in agree}


def _timed_otherwise(step: Measured, sites: Sites) -> Set[Key]:
    """The timesteps that the model is given and that are not the loop's own on the candidate, as on the reference they
    are, or a thousandth of them: another schedule explains no more than its own numbers."""
    at = next((i for i, place in enumerate(step.meeting.places) if place.key.site == f"{LOOP}:timestep"), None)
    if at is None or (own := step.numbers(at)) is None or own[0] == own[1]:
        return set()
    inputs = (i for i in sites.where(beyond=True, which=is_input) if sites[i].key.is_argument)
    given = ((sites[i].key, both) for i in inputs if (both := step.numbers(i)) is not None)
    units = ((key, y, [u for u in UNITS if _is(x, u * own[0])]) for key, (x, y) in given)  # of 0 they are both
    return {key for key, y, fit in units if fit and not any(_is(y, u * own[1]) for u in fit)}


def _is(x: float, other: float) -> bool:
    """Whether two numbers are one in float32."""
    return math.isclose(x, other, rel_tol=WITHIN)


def _made_alone(step: Measured, sites: Sites, given: Mapping[Argument, bytes]) -> Set[object]:
    """The reference's calls that are given nothing but arguments of the model that agree, as they are, and what is made
    of these alone: another argument that differs is not in them, whatever a port hands out."""
    far = sites.where(beyond=True)
    if not far:
        return set()
    agree = {(d.key.branch, d.key.site) for d in picked(sites, "pass", which=is_input) if not beyond(d)}
    known = {(at[0], value) for at, value in given.items() if at in agree and any(value)}
    differ = {(sites[i].key.branch, step.held_bytes(i)[0]) for i in far}
    return left_out.made_of(step, known, differ)


SHARP = 1e-3
"""Relative float32 floor up to which a module's output shows other weights; nine in ten are below 4e-5, and those of a
dtype of 16 bits hide a weight that is small beside others."""


def is_sharp(floor: float, dtypes: Iterable[str]) -> bool:
    """Whether other weights show above a floor of these dtypes; none of zero moves with what it is made of."""
    return 0.0 < floor <= SHARP and all(BITS.get(dtype, 24) == BITS["float32"] for dtype in dtypes)


def _showing(step: Measured, sites: Sites, known: Set[str]) -> set[str]:
    """The modules, beside those known, that agree in a call that shows other weights: within a sharp floor, given other
    values than zeros, and giving none of what it was given, as a block does whose gates are zero."""
    places, within = step.meeting.places, sites.severities <= L2_LIMIT
    agree = (i for i in sites.where("pass", which=_is_output) if within[i] and places[i].key.module not in known)
    found = {places[i].key.module: places[i].key.branch for i in agree if is_sharp(sites.floors[i], places[i].dtypes)}
    given, made = defaultdict[str, dict[bytes, float]](dict), defaultdict[str, set[bytes]](set)
    for r in step.ours if found else ():
        if r.key.branch == found.get(r.key.module) and r.moments is not None and r.sketch is not None:
            if r.key.is_input:
                given[r.key.module][r.sketch.tobytes()] = r.moments.l2
            else:
                made[r.key.module].add(r.sketch.tobytes())
    moved = (m for m in found if m not in given or any(given[m].values()))
    return {m for m in moved if given[m].keys().isdisjoint(made[m])}


WIDEST = 0.1 / L2_LIMIT
"""Relative floor of a module that is given the same on both sides, to the bit: a dtype moves no more by itself."""


def _narrow(sites: Sites) -> None:
    """A floor holds what rounding of a module's inputs makes of it, of a phase of 1000 in a time embedding; where they
    are the same on both sides, nothing of that is in its output. What a module rounds inside it does whatever it is
    given: where no run that floors are measured by has other inputs, its floor stands."""
    wide = [i for i in sites.where("pass", which=_is_output) if sites.floors[i] > WIDEST and _is_wide(sites[i])]
    if not wide:
        return
    inputs = [d for d in picked(sites, which=is_input) if not d.key.is_apart]
    other = {call_of(d.key) for d in inputs if d.distance.rel_l2 != 0.0 or d.verdict != "pass"}
    same = {call_of(d.key) for d in inputs if d.distance.floor > WITHIN} - other
    for i in wide:
        d = sites[i]
        if call_of(d.key) in same:
            far = Distance(d.distance.rel_l2, WIDEST, d.distance.rel_l2 / WIDEST)
            sites[i] = replace(d, distance=far)


def _is_output(d: SiteDiff) -> bool:
    """Whether it is what a module of the loop's model gives, not the model itself."""
    return d.key.stage == LOOP_STAGE and not d.key.is_input and d.key.module not in ("", LOOP)


def _is_wide(d: SiteDiff) -> bool:
    """Whether it is further away than a dtype moves it, though within its floor."""
    return d.distance.floor < math.inf and d.distance.rel_l2 > L2_LIMIT * WIDEST


SHOWN = 0.1
"""How far a module's output is at least, of how far its input is, where that is one thing on both sides."""


def _tell_apart(sites: Sites) -> None:
    """A pair under two names may be two things, and then can only agree: an output, where the model's own output shows
    nothing of it, and an input, where its module's shows far less: one side applies an activation before a projection,
    the other in it."""
    predicted = {d.key.branch: d for d in picked(sites, which=is_prediction)}
    far = (sites[i] for i in sites.where(beyond=True))
    made = {call_of(d.key): d.distance.rel_l2 for d in far if not d.key.is_input}
    for i in sites.where(beyond=True, which=_is_renamed):
        d = sites[i]
        if d.verdict != "ignored":
            output = predicted.get(d.key.branch)
            shown = output is not None and beyond(output)
            if d.key.is_input:
                shown = made.get(call_of(d.key), 0.0) >= SHOWN * d.distance.rel_l2
            if not shown:
                sites.leave_out(i, f"{d.called} in the candidate, which may be another thing")
