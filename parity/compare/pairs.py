"""Which record of one side stands against which of the other, and where their sketches lie.

Records are aligned by their keys. Of layouts this is done once for as long as neither side's changes: `meet` finds it,
and `parity.compare.judge` judges by it.

Names of ports. Flax calls what a Dense takes `inputs`, torch calls what a Linear takes `input`; a block that Flax scans
hands on `(x, None)`, torch's `x`. By name they never meet, so that where an output differs nothing is known of what
went in. Of one call of a module, the inputs whose name the other side does not have are looked at. Where each side has
one tensor of them and the two line up, they are paired, under the reference's name. Outputs are where each side has one
tensor in all, or the candidate one of several. Several on a side are not paired, nor are masks, which have forms of
their own, nor what the model itself is given and returns: a port's call may convert both. What is paired so may still
be two things: one implementation applies an activation before a projection, the other in it. `parity.compare.judge`
says when such a pair differs. A block of two streams may give them back in another order (text first in diffusers'
Flux). Where outputs of one name do not line up, and each of one side does with exactly one of the other, they are
paired so.

Generations. A TPU's script generates once to compile, with few steps or another seed, and what ran out of memory is
tried again: the candidate's recording then holds generations that the reference has nothing of. The recorder holds the
schedule where one begins. Those are compared that have as many steps as the reference's; of several such, those that
begin from the nearest noise, and of one noise those whose model is given most nearly the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.metrics import axes_between, comparable_shapes, compare_values, far_apart
from parity.compare.preflight import Factors, factors_at
from parity.compare.result import UNKNOWN, SiteDiff
from parity.compare.values import GIVEN, LATENTS_AS, START
from parity.golden import Golden
from parity.golden.disk.part import Layout, chosen
from parity.records import ATTENTION, FRAMES, LOOP, READ, SCHEDULE, SET, Floor, Key, Record, StepRecords
from parity.sketch import Geometry, value_record
from parity.transforms import last_frames, unpacked


@dataclass(frozen=True, slots=True)
class Pair:
    """Records of one place; None on the side that has none.

    Attributes:
        key: the reference's, where it has a record. reference, candidate: the records.
    """

    key: Key
    reference: Record | None
    candidate: Record | None


def align(reference: Sequence[Record], candidate: Sequence[Record], lone: Callable[[str], bool]) -> tuple[Pair, ...]:
    """Pairs in the reference's execution order; what only the candidate has follows the record before it.

    A record of None and no record at all are the same: implementations differ in whether they pass what is absent.

    Args:
        lone: of which modules inputs and outputs are paired too that each side names by itself.
    """
    names = lone_ports(reference, candidate, lone)
    ours, theirs = {r.key: r for r in reference}, {names.get(r.key, r.key): r for r in candidate}
    theirs |= _in_items(theirs, ours)
    absent = _in_items(ours, theirs)
    behind: defaultdict[Key | None, list[Pair]] = defaultdict(list)
    at = None
    for key, record in theirs.items():
        if key in ours:
            at = key
        else:
            behind[at].append(Pair(key, absent.get(key), record))
    merged = behind[None]
    for r in reference:
        merged += [Pair(r.key, r, theirs.get(r.key)), *behind[r.key]]
    return tuple(p for p in merged if not _absent(p))


def _in_items(records: Mapping[Key, Record], others: Iterable[Key]) -> dict[Key, Record]:
    """Of a side's None, the same for each item that the other side gives in its place: None for two rotary tables."""
    alone = (key for key in others if key not in records)
    wholes = ((key, records.get(replace(key, site=key.site.rpartition(".")[0]))) for key in alone)
    return {key: whole for key, whole in wholes if whole is not None and whole.kind == "none"}


def _absent(pair: Pair) -> bool:
    """Whether one side has nothing and the other None, or a scalar argument the other's code does not take, or what is
    returned is only asked for in another form."""
    if pair.key.port == "in.return_dict":
        return True
    held = [r for r in (pair.reference, pair.candidate) if r is not None]
    return len(held) == 1 and held[0].kind in ("none", "scalar")


# --- ports that the two sides name differently

_Parts = Mapping[str, Record]
"""A port's records by the part of its rows that they hold; the whole's is empty."""


def lone_ports(
    reference: Sequence[Record], candidate: Sequence[Record], of: Callable[[str], bool] = lambda module: True
) -> dict[Key, Key]:
    """The candidate's key -> the reference's, of inputs and outputs that each side names by itself.

    Args:
        of: of which modules.
    """
    ours, theirs = (_ports(r for r in side if of(r.key.module)) for side in (reference, candidate))
    calls = _exchanged(ours, theirs)
    theirs = {replace(key, call=calls.get(replace(key, site=key.module), key.call)): x for key, x in theirs.items()}
    placed = ((r.key, replace(r.key, call=at.call)) for at, parts in theirs.items() for r in parts.values())
    moved = {key: own for key, own in placed if key != own}
    pairs = _of_calls(ours, theirs)
    return moved | {theirs[b][part].key: record.key for a, b in pairs for part, record in ours[a].items()}


def met(reference: StepRecords, candidate: StepRecords) -> StepRecords:
    """The candidate's step under the keys that it was compared by."""
    names = lone_ports(reference.records, candidate.records)
    return candidate.renamed(lambda key: names.get(key, key)) if names else candidate


def _ports(records: Iterable[Record]) -> dict[Key, dict[str, Record]]:
    """The inputs and outputs of modules inside the model, by their key without a part."""
    found: defaultdict[Key, dict[str, Record]] = defaultdict(dict)
    for record in records:
        if record.key.module not in ("", LOOP):
            bare, _, part = record.key.site.partition("@")
            found[replace(record.key, site=bare)][part] = record
    return found


def _of_calls(ours: Mapping[Key, _Parts], theirs: Mapping[Key, _Parts]) -> Iterator[tuple[Key, Key]]:
    """Ports, ours and theirs, of one call that are the same thing under another name, or in another order."""
    others = _by_call(theirs)
    for side, mine in _by_call(ours).items():
        other = others.get(side, [])
        if side[1]:  # an input; of outputs all count
            mine, other = [p for p in mine if p not in theirs], [p for p in other if p not in ours]
        fits = [(a, b) for a in mine for b in other if _line_up(ours[a], theirs[b])]
        new = len(other) == 1 and other[0] not in ours  # a name that is the candidate's alone
        if len(mine) == len(other) == 1:
            if new and mine[0] not in theirs and not any("mask" in ports[0].port for ports in (mine, other)):
                yield from fits
        elif side[1]:
            continue
        elif new:  # the only one that lines up, or else the first
            if fits and (len(fits) == 1 or fits[0][0] == mine[0]):
                yield fits[0]
        elif len(fits) == len(mine) and {*mine} == {*other} == {a for a, _ in fits} == {b for _, b in fits}:
            yield from ((a, b) for a, b in fits if a != b)


def _exchanged(ours: Mapping[Key, _Parts], theirs: Mapping[Key, _Parts]) -> dict[Key, int]:
    """The candidate's attention calls, by the module's key -> the number of the reference's that alone has the same
    shapes: what is attended to one after the other may be added up in any order."""
    found: dict[Key, int] = {}
    mine, others = _attentions(ours), _attentions(theirs)
    for module, calls in others.items():
        same = {n: [m for m, own in mine.get(module, {}).items() if own == shapes] for n, shapes in calls.items()}
        if len(calls) > 1 and all(len(m) == 1 for m in same.values()) and len(mine[module]) == len(calls):
            found |= {replace(module, call=n): m for n, (m,) in same.items()}
    return found


def _attentions(ports: Mapping[Key, _Parts]) -> Mapping[Key, Mapping[int, set[object]]]:
    """The calls of each attention, by its first one's key: their shapes."""
    found: defaultdict[Key, defaultdict[int, set[object]]] = defaultdict(lambda: defaultdict(set))
    for key, parts in ports.items():
        if key.module.endswith(f".{ATTENTION}"):
            shapes = {(key.port, part, r.shape, r.frame) for part, r in parts.items()}
            found[replace(key, site=key.module, call=0)][key.call] |= shapes
    return found


def _by_call(ports: Mapping[Key, _Parts]) -> dict[tuple[Key, bool], list[Key]]:
    """By a call of a module, and whether they are its inputs, the tensors that it is given or gives back."""
    found: defaultdict[tuple[Key, bool], list[Key]] = defaultdict(list)
    for port, parts in ports.items():
        if any(r.kind == "tensor" for r in parts.values()):
            found[replace(port, site=port.module), port.is_input].append(port)
    return found


def _line_up(a: _Parts, b: _Parts) -> bool:
    return a.keys() == b.keys() and all(
        x.kind == b[part].kind == "tensor" and comparable_shapes(x, b[part]) for part, x in a.items()
    )


# --- layouts


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Meeting:
    """How two layouts meet.

    Attributes:
        layouts: of reference and candidate. places: what of each pair's site does not depend on the step.
        at: int64 [pairs] of each side, positions of the records; -1 where there is none. floors: int64 [pairs], of the
            reference's floor; -1 without. groups: how sketches lie -> int64, positions of the pairs that have them.
        others: of pairs that are more than two sketches, or less; their row bins are kept whatever they say.
        inputs: positions of what modules are given. parts, sets: position of a whole -> that of what is read of it, and
            of the sums over that.
        own: whether the module is a port's own, or one that is mapped. modules: of the reference, with a tensor.
        laid_out: position of a site -> factors of the parameters of its module, or of its neighbours.
        alone: tensors that only the reference has, and only the candidate. missing: (branch, module, call) -> what the
            reference's module is given there and the candidate does not hand out.
    """

    layouts: tuple[Layout, Layout]
    places: tuple[SiteDiff, ...]
    at: tuple[np.ndarray, np.ndarray]
    floors: np.ndarray
    groups: Mapping[Geometry, np.ndarray]
    others: tuple[int, ...]
    inputs: tuple[int, ...]
    parts: Mapping[int, int]
    sets: Mapping[int, int]
    own: tuple[bool, ...]
    laid_out: Mapping[int, frozenset[float]]
    modules: frozenset[str]
    alone: tuple[int, int]
    missing: Mapping[object, tuple[str, ...]]


def meet(ours: Layout, theirs: Layout, *, port: bool, mapped: Collection[str] | None, laid_out: Factors) -> Meeting:
    """How two layouts meet.

    Args:
        port, mapped, laid_out: as of `parity.compare.judge.Judge`.
    """
    modules = [{r.key.module for r in layout.records} for layout in (ours, theirs)]

    def own(module: str) -> bool:
        """Whether the candidate's module is built otherwise: a port's own, or one that is mapped."""
        return module != LOOP and (port or (mapped is not None and module in mapped))

    def may_lack(module: str) -> bool:
        """Whether what only one side has is no difference: of a port, and of a module that no name maps."""
        return port or own(module) or (mapped is not None and not all(module in known for known in modules))

    every = align(ours.records, theirs.records, own)
    pairs = [p for p in every if (p.reference is not None and p.candidate is not None) or not may_lack(p.key.module)]
    places = tuple(map(_place, pairs))
    first, second = (_positions(ours, [p.reference for p in pairs]), _positions(theirs, [p.candidate for p in pairs]))
    groups: defaultdict[Geometry, list[int]] = defaultdict(list)
    plain = np.zeros(len(pairs), bool)
    for i, (place, a, b) in enumerate(zip(places, first.tolist(), second.tolist(), strict=True)):
        drawn = all(place.dtypes) and ours.sketches[a] >= 0 and theirs.sketches[b] >= 0 and math.prod(place.frame) > 0
        if drawn and comparable_shapes(ours.records[a], theirs.records[b]):
            groups[Geometry(*place.frame)].append(i)
            plain[i] = "mask" not in place.key.port and not (ours.values[a] and theirs.values[b])  # of another form
    return Meeting(
        layouts=(ours, theirs),
        places=places,
        at=(first, second),
        floors=np.array([ours.floors.get(p.key, -1) for p in pairs], np.int64),
        groups={view: np.array(at, np.int64) for view, at in groups.items()},
        others=tuple(np.flatnonzero(~plain).tolist()),
        inputs=tuple(i for i, place in enumerate(places) if place.key.is_input),
        parts=dict(_parts_of(places, READ)),
        sets=dict(_parts_of(places, SET)),
        own=tuple(own(p.key.module) for p in pairs),
        laid_out={i: found for i, p in enumerate(places) if (found := factors_at(p.key.module, laid_out))},
        modules=frozenset(r.key.module for r in ours.records if _counts(r) and r.key.module not in ("", LOOP)),
        alone=(
            sum(_counts(p.reference) for p in every if p.candidate is None),
            sum(_counts(p.candidate) for p in every if p.reference is None),
        ),
        missing=_missing(p.key for p in every if p.candidate is None and _counts(p.reference)),
    )


def _missing(keys: Iterable[Key]) -> Mapping[object, tuple[str, ...]]:
    found: defaultdict[object, tuple[str, ...]] = defaultdict(tuple)
    for key in keys:
        if key.is_input:
            found[key.branch, key.module, key.call] += (key.port.removeprefix("in."),)
    return found


def _positions(layout: Layout, records: Sequence[Record | None]) -> np.ndarray:
    at = {r.key: i for i, r in enumerate(layout.records)}
    return np.array([-1 if r is None else at[r.key] for r in records], np.int64)


def _parts_of(places: Sequence[SiteDiff], part: str) -> Iterator[tuple[int, int]]:
    """Each whole of which a part is compared, with that part."""
    at = {place.key: i for i, place in enumerate(places)}
    for i, place in enumerate(places):
        site, _, own = place.key.site.rpartition("@")
        whole = at.get(replace(place.key, site=site)) if own == part else None
        if all(place.dtypes) and whole is not None:
            yield whole, i


def _place(pair: Pair) -> SiteDiff:
    """What of a site does not depend on the step."""
    a, b = pair.reference, pair.candidate
    place = SiteDiff(pair.key, UNKNOWN, verdict="ignored" if pair.key.is_apart else "pass")
    if a is None or b is None or a.kind != "tensor" or b.kind != "tensor":
        return place
    shapes, dtypes, called = (a.shape, b.shape), (a.dtype, b.dtype), b.key.port if b.key.site != pair.key.site else ""
    return replace(place, shapes=shapes, dtypes=dtypes, frame=a.frame, rows=a.rows, called=called)


def _counts(r: Record | None) -> bool:
    return r is not None and r.kind == "tensor" and not r.key.is_apart


# --- a loop that keeps its latents in a layout of its own


def laid_alike(reference: StepRecords, candidate: StepRecords) -> tuple[StepRecords, StepRecords]:
    """Both sides' step, the loop's own values laid out alike: a loop may keep its latents with the channels last, or
    behind the frames, and may leave out an image's frames in all of a step, if its model is given as many on both
    sides. Where they are in another shape yet, as tokens are, all are left out: they are compared as the model is given
    them."""
    ours = {r.key: r for r in chosen(reference.records, _is_of_a_loop)}
    theirs = [r for r in chosen(candidate.records, _is_of_a_loop) if r.key in ours]
    other = [r for r in theirs if r.kind == "tensor" and not comparable_shapes(ours[r.key], r)]
    resized = any(math.prod(r.shape) != math.prod(ours[r.key].shape) for r in other)
    begins = any(r.key.site == START for r in other)  # else a step has lost frames
    if not other or (resized and not (begins and _given_as_much(reference, candidate))):
        return reference, candidate
    laid = {r.key: pair for r in other if (pair := _as_one(ours[r.key], r))}
    if len(laid) < len(other):
        left = candidate.where(lambda key: key.module != LOOP or key not in ours or not ours[key].shape)
        return reference, candidate if resized else left
    moved = {key: pair[0] for key, pair in laid.items() if pair[0].shape != ours[key].shape}
    shares = {key: math.prod(r.shape) / math.prod(ours[key].shape) for key, r in moved.items()}
    known = ((key, floor) for key, floor in reference.floors.items() if key in shares)
    floors = {key: Floor(floor.l2 * math.sqrt(shares[key]), linf=floor.linf) for key, floor in known}
    if moved:
        records = [moved.get(r.key, r) for r in reference.records]
        reference = replace(reference, records=records, floors={**reference.floors, **floors})
    return reference, replace(candidate, records=[laid.get(r.key, (r, r))[1] for r in candidate.records])


def _is_of_a_loop(r: Record) -> bool:
    return r.key.module == LOOP or r.key.site == GIVEN


def _is_given(r: Record) -> bool:
    return r.key.is_argument and r.key.port.removeprefix("in.") in LATENTS_AS


def _given_as_much(reference: StepRecords, candidate: StepRecords) -> bool:
    """Whether the model, which is called first, is given latents of one shape."""
    ours, theirs = (next(chosen(side.records, _is_given), None) for side in (reference, candidate))
    return ours is not None and theirs is not None and ours.shape == theirs.shape


def _as_one(ours: Record, theirs: Record) -> tuple[Record, Record] | None:
    """Both sides' value in one shape, the reference's if it can be: of several ways the nearest one; None for
    no way."""
    x, y = ours.value, theirs.value
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return None
    ways = [(x, way) for way in _ways(y, x)] or [(way, y) for way in _ways(x, y)]
    near = min(ways, key=lambda pair: compare_values(*pair)[0], default=None)
    if near is None:
        return None
    first, second = map(np.ascontiguousarray, near)
    return value_record(ours.key, first, ours.dtype), value_record(theirs.key, second, theirs.dtype)


def _ways(x: np.ndarray, like: np.ndarray) -> list[np.ndarray]:
    """A value as it may lie in another's shape; with as many frames, where it has more."""
    ways = [x.transpose(axes) for axes in axes_between(x.shape, like.shape)]
    ways += [] if x.size == like.size else [last_frames(way, like) for way in (x, *unpacked(x, like.shape))]
    return [way for way in ways if way.shape == like.shape]


# --- calls of the decoder that only one side makes


def decodes(reference: StepRecords, candidate: StepRecords) -> StepRecords:
    """The candidate's step after the loop, its calls of the decoder under the numbers of the reference's that were
    given the same: a side may warm the decoder up, or show the video while it is made. Frames by what they show."""
    given, made = (_numbers(reference, candidate, site) for site in (GIVEN, FRAMES))

    def name(key: Key) -> Key:
        own = made if key.site.startswith(FRAMES) else given
        return replace(key, call=own.get(key.call, key.call)) if key.module == GIVEN.partition(":")[0] else key

    return candidate.renamed(name) if given or made else candidate


def _numbers(reference: StepRecords, candidate: StepRecords, site: str) -> dict[int, int]:
    """The candidate's calls of a site -> the reference's that are the same. Of as many each keeps its own; one that is
    like nothing has its place from the end."""
    ours, theirs = ([r for r in side.records if r.key.site == site] for side in (reference, candidate))
    if not ours or not theirs or len(ours) == len(theirs):
        return {}
    numbers: dict[int, int] = {}
    free, unlike = [*theirs], []
    for record in reversed(ours):
        near = min(reversed(free), key=lambda r: far_apart(record, r), default=None)
        if near is not None and far_apart(record, near) <= SAME_LATENTS:
            free.remove(near)
            numbers[near.key.call] = record.key.call
        else:
            unlike.append(record)
    numbers |= {free.pop().key.call: record.key.call for record in unlike[: len(free)]}
    return numbers | {r.key.call: number for number, r in enumerate(free, len(ours))}


SAME_LATENTS = 0.1
"""Relative distance of what two calls of a decoder are given from which they are one, rounded in 16 bits at most."""


# --- generations that only the candidate made


def matching(reference: Golden, candidate: Golden) -> Golden:
    """The candidate as far as it has a counterpart, where it holds more generations than the reference.

    Raises:
        UsageError: a part is damaged.
    """
    if not reference.complete or (candidate.complete and len(reference.loop) >= len(candidate.loop)):
        return candidate
    wanted, lengths = reference.generations, candidate.generations
    if not wanted or len(wanted) >= len(lengths):
        return candidate
    every = range(len(lengths) - len(wanted) + 1)
    fits = [i for i in every if lengths[i : i + len(wanted)] == wanted]
    if not fits or (not candidate.complete and lengths[-1] < wanted[-1]):
        fits.append(every[-1])
    begins = reference.read_step(0)
    nearest = min(fits, key=lambda i: _far(begins, candidate.read_step(sum(lengths[:i])).at(0)))
    first, count = sum(lengths[:nearest]), sum(lengths[nearest : nearest + len(wanted)])
    schedule = next(chosen(candidate.read_step(first).records, _is_schedule), None)
    scheduled = 0 if schedule is None or schedule.moments is None else schedule.moments.count
    return replace(candidate, first=first, count=count, scheduled=scheduled)


def _far(reference: StepRecords, candidate: StepRecords) -> tuple[float, float]:
    """How far the noise is from which two generations begin, 0 for one; how far all is together that the model is given
    first."""
    ours, theirs = ({r.key: r for r in chosen(side.records, _begins)} for side in (reference, candidate))
    far = {key: far_apart(r, theirs[key]) for key, r in ours.items() if key in theirs and r.kind == "tensor"}
    noise = max((x for key, x in far.items() if key.site == START), default=math.inf)
    return noise if noise > SAME_LATENTS else 0.0, sum(x for x in far.values() if math.isfinite(x))


def _begins(r: Record) -> bool:
    return r.key.site == START or (r.key.is_argument and not r.key.is_apart)


def _is_schedule(r: Record) -> bool:
    return r.key.site == f"{SCHEDULE}:timesteps"
