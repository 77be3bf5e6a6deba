"""What differs and is not compared: rows that nobody reads, rows that stand elsewhere, values in another order.

Rows that are read. Text has padding, and stands where an implementation puts it. Beside a sequence a recording holds
what is read of it, row by row, and sums over those rows, which are the same in any order and with any padding. What is
read decides where all of it was compared; the sums where a mask says that the rows moved. A mask that lets the same
rows through is not compared then, nor is a table of positions that moves with them.

Another order. A right port may have the image before the text in its attention, or the columns of a rotary table laid
out otherwise. That is no fault if the next values that are compared match again: the output of the nearest module
around it, or, of what an attention call is given and gives, the input of the module called next. The output of a module
that only hands on its input (a gate of zero) shows nothing, and the whole model's output is so far away that it counts
only where the port's parameters lie otherwise too, or for what the model makes once and what its blocks hand on where
all between agrees, or is in another order as well: a rotary table that is laid out otherwise, tokens that stand
otherwise in all blocks. What the model itself is given counts if a module is given it as it is, and an attention call
that sums over such keys and values agrees. Nothing is fitted: what reads a value decides. A batch may have its branches
in another order, and what holds several at once too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from parity.compare.births import CUT, MOVED, SAME_KEYS, call_of, is_number, is_prediction
from parity.compare.metrics import (
    ALIKE,
    FORMS,
    REORDERED,
    UNLIKE,
    UNREAD,
    distance,
    is_mask,
    keys_of,
    keys_through,
    unread,
)
from parity.compare.result import SiteDiff
from parity.compare.sites import Measured, Sites, beyond
from parity.floors import L2_LIMIT, LINF_LIMIT, in_another_unit, is_timestep
from parity.records import LOOP, MODELS, Key, Record, above, is_attention
from parity.sketch import Geometry
from parity.transforms import as_factor

SUMS = 5.0
"""How far apart the four sums over rows may be, in floors of the rows: sqrt(6) where each row is rounded by itself, and
twice that because rounded weights move all rows alike."""


def read_alone(step: Measured, sites: Sites) -> None:
    """What is read alone decides: not rows that no query reads, nor frames beyond what a picture shows. In a norm
    over both, many that nobody reads hide the few that are read."""
    with np.errstate(invalid="ignore"):  # what is not finite is no part
        apart = step.relative * step.norms
    for i, j in step.meeting.parts.items():
        whole, part = sites[i], sites[j]
        unknown = np.isnan(part.distance.ratio) and part.distance.rel_l2 != 0.0
        if unknown or apart[j] > 2.0 * apart[i]:  # no part can be that far: each side's mask picks other rows
            continue
        numbers = {name: getattr(part, name) for name in ("distance", "cosine", "max_abs", "linf_ratio", "peak")}
        if not beyond(part):  # else the whole's bins say where it differs
            note = unread(whole.key) if beyond(whole) else whole.note
            whole = replace(whole, bins=part.bins, note=note)
        sites[i] = replace(whole, **numbers)


def set_in_order(step: Measured, sites: Sites) -> None:
    """Of rows that are read nothing depends on the order, or on where they stand, but by a position that a module
    gives them: what it makes of that shows it. Where nobody knows the rows, a mask that moves with them says so."""
    masks = [step.meeting.places[i].key for i in sites.where(beyond=True, which=_is_named_mask)]
    moved = {key.branch for key in masks} | {(key.branch, "") for key in masks if key.module == ""}
    for i, j in step.meeting.sets.items():
        whole, part = sites[i], sites[j]
        may_move = whole.rows or (whole.key.branch, "") in moved or (whole.key.module and whole.key.branch in moved)
        if not may_move or not (beyond(whole) or whole.verdict == "not compared"):
            continue
        least = np.fmax(step.limits[j], SUMS * step.limits[step.meeting.parts.get(i, i)])
        far = distance(part.distance.rel_l2 * float(step.norms[j]), float(step.norms[j]), float(least))
        agrees, unlike = far.ratio <= L2_LIMIT, whole.verdict == "not compared" and not math.isnan(far.ratio)
        if agrees or unlike:
            numbers = replace(whole, distance=far, cosine=part.cosine, peak=0.0, bins=())
            sites[i] = replace(numbers, verdict="pass", note=REORDERED if agrees else whole.note)
    _move_beside(step, sites)


def excuse_units(step: Measured, sites: Sites) -> None:
    """Timesteps are not compared that are the reference's in another unit: a schedule's, as what the model is given
    decides, and the model's where something agrees that is made of them alone, or what is predicted."""
    for i in sites.where("pass", beyond=True, which=_is_time):
        both = step.values(i)
        if both is None or not both[0].any() or not in_another_unit(*both):
            continue
        if is_number(sites[i].key) or _is_undone(step, sites, i):
            for j in (i, *_handed(step, sites, i)):
                sites.leave_out(j, OTHER_UNIT)


OTHER_UNIT = "the reference's timesteps in another unit; values made of them decide"
"""The note of a timestep in [0, 1]."""


def _is_time(d: SiteDiff) -> bool:
    return (is_number(d.key) or d.key.is_argument) and is_timestep(d.key.port.removeprefix("in."))


def _handed(step: Measured, sites: Sites, i: int) -> Iterator[int]:
    """The inputs inside the model that are an argument of it as it is, on both sides."""
    key, both = sites[i].key, step.held_bytes(i)
    inputs = (j for j in step.meeting.inputs if j != i and step.meeting.places[j].key.branch == key.branch)
    yield from (j for j in inputs if key.is_argument and step.held_bytes(j) == both)


def _is_undone(step: Measured, sites: Sites, i: int) -> bool:
    """Whether a site agrees that is made of an argument alone, or the prediction, unless it holds zeros."""
    branch, known = sites[i].key.branch, {(sites[i].key.branch, step.held_bytes(i)[0])}
    made_of(step, known)
    agree = [j for j in sites.where("pass") if j != i and sites[j].key.branch == branch and _agrees(sites[j])]
    shown = (j for j in agree if any(step.held_bytes(j)[0]))
    return any(is_prediction(sites[j]) or (branch, step.held_bytes(j)[0]) in known for j in shown)


Value = tuple[str, bytes]
"""A branch, and what the reference has there, bit for bit."""


def made_of(step: Measured, known: set[Value], differ: Container[Value] = ()) -> set[object]:
    """The reference's calls that are given nothing but these values, as they are, and values made of them alone. Those
    are added to `known`, unless they are among the ones that differ."""
    alone: dict[object, bool] = {}
    for r in step.ours:
        if r.sketch is None or r.key.is_apart or r.key.module in (*MODELS, LOOP):
            continue
        call, value = call_of(r.key), (r.key.branch, r.sketch.tobytes())
        if r.key.is_input:
            alone[call] = alone.get(call, True) and value in known
        elif alone.get(call, False) and value not in differ:
            known.add(value)
    return {call for call, made in alone.items() if made}


def _is_named_mask(d: SiteDiff) -> bool:
    return "mask" in d.key.port


def _move_beside(step: Measured, sites: Sites) -> None:
    """What a module is given for each row, as a table of positions, moves with rows in another order."""
    moved = (sites[i] for i in step.meeting.sets)
    rows = {(call_of(d.key), n) for d in moved if d.note == REORDERED and d.key.is_input for n in d.shapes[0][1:2]}
    for i in step.meeting.inputs if rows else ():
        d = sites[i]
        moves = any((call_of(d.key), n) in rows for n in d.shapes[0][:2])
        if moves and d.verdict == "pass" and "mask" not in d.key.port and beyond(d) and step.same_values([i], 1.0):
            sites.leave_out(i, MOVED)


def excuse_masks(step: Measured, sites: Sites) -> None:
    """A mask is not compared where the rows that it lets through are the reference's, elsewhere or in another
    order. Where another number of rows is let through, the rows are not compared, but the mask is.

    What the model itself is given has to differ in rows alone that the reference does not read. Text without its
    padding needs no mask: see `_excuse_cut`.
    """
    for i in step.meeting.others:
        a, b = (at[i] for at in step.meeting.at)
        if a < 0 or b < 0 or not any(map(is_mask, masks := (step.ours[a], step.theirs[b]))):
            continue
        d, call = sites[i], call_of(step.meeting.places[i].key)
        beside = [j for j, place in enumerate(step.meeting.places) if call_of(place.key) == call and i != j]
        whole = [sites[j] for j in beside if not sites[j].key.is_apart]
        read = [e for e in whole if (e.rows and step.meeting.own[i]) or e.note == REORDERED]
        as_many = bool(keys_through(masks[0]) & keys_through(masks[1])) and "mask" in d.key.port
        if as_many and beyond(d) and read and not any(map(beyond, read)):
            sites.leave_out(i, SAME_KEYS)
        elif d.verdict == "pass" and beyond(d) and not (as_many and d.key.module):
            for j in beside:
                e = sites[j]
                of_mask = e.shapes[0][1:2] == d.shapes[0][-1:] and "mask" not in e.key.port
                if e.key.is_input and of_mask and beyond(e) and (d.key.module or _is_unread(e, masks[0])):
                    sites.leave_out(j, "which of its rows are read, a mask says that differs")
        if step.meeting.own[i]:
            _excuse_cut(step, sites, i, beside, masks)


def decide_forms(sites: Sites) -> None:
    """Of a mask that the model is given, whose zeros may be added or let nothing through, another mask decides: one
    that differs inside the model is made of it."""
    given = [i for i in sites.where("not compared") if sites[i].note == FORMS and sites[i].key.module == ""]
    masks = [sites[i].key for i in sites.where("pass", beyond=True, which=_is_named_mask)] if given else []
    inside = {key.branch for key in masks if key.module}
    for i in given:
        if sites[i].key.branch in inside:
            sites[i] = replace(sites[i], verdict="pass", distance=UNLIKE)


def _is_unread(d: SiteDiff, mask: Record) -> bool:
    """Whether text differs in row bins alone in which a mask of one batch, a number a key, leaves some out."""
    keys, view = keys_of(mask), Geometry(*d.frame)
    if len(keys) != 1 or keys[0].size != view.rows:
        return False
    far = np.flatnonzero(np.asarray(d.bins) > LINF_LIMIT)
    bins = [keys[0][at * view.rows_per_bin : (at + 1) * view.rows_per_bin] for at in far.tolist()]
    return bool(bins) and not any(rows.all() for rows in bins)


def _excuse_cut(step: Measured, sites: Sites, i: int, beside: Sequence[int], masks: Sequence[Record]) -> None:
    """All that there is of a text is read where a side leaves its padding out; it needs no mask then, or one of all
    ones."""
    d, missing = sites[i], any(mask.kind == "none" for mask in masks)
    for j in beside if missing or d.verdict == "not compared" or beyond(d) else ():
        e = sites[j]
        agrees, lines_up = e.note in (UNREAD, REORDERED), e.verdict == "pass" and e.shapes[0] == e.shapes[1]
        unlike = e.key.is_input and not lines_up and e.verdict in ("pass", "not compared") and not e.key.is_apart
        if (agrees or unlike) and _is_cut(e.shapes, masks) and (agrees or _may_be_cut(step, j)):
            if not agrees:
                sites.leave_out(j, CUT)
            if missing:
                sites.leave_out(i, f"a mask against None, beside rows {CUT}")


def _may_be_cut(step: Measured, j: int) -> bool:
    """Whether the rows that are read of one side may be the other side's rows, by their norms."""
    (a, b), place = (moments[j] for moments in step.moments), step.meeting.places[j]
    key = replace(place.key.read, step=step.ours.step)
    read = [next((r.moments for r in side if r.key == key), None) for side in (step.ours, step.theirs)]
    if a < 0 or b < 0 or not any(read):
        return True
    sides = zip((step.ours.numbers[a, 3], step.theirs.numbers[b, 3]), read, place.shapes, strict=True)
    most = max(shape[1] for shape in place.shapes)
    norms = [norm if of is None or shape[1] < most else of.l2 for norm, of, shape in sides]  # a cut one whole
    return bool(abs(norms[0] - norms[1]) <= np.fmax(L2_LIMIT * step.limits[j], ALIKE * norms[0]))


def _is_cut(shapes: tuple[tuple[int, ...], tuple[int, ...]], masks: Sequence[Record]) -> bool:
    """Whether a tensor has as many rows on one side as the mask of the other side lets through of all."""
    sides = ((masks[0], shapes[0], shapes[1]), (masks[1], shapes[1], shapes[0]))
    return any(
        own != other and (own,) == mask.shape[-1:] and other in keys_through(mask)
        for mask, ours, theirs in sides
        for own, other in zip(ours, theirs, strict=False)
    )


# --- the reference's values in another order

SHARP = 1e-3
"""Share of a difference that a floor may be for what reads it to have decided; in 16 bits it is far wider."""

OTHER = 0.05
"""Relative distance from which what an attention call is given or gives may be another thing: queries that are scaled
before; what is nearer is the same with an error."""

_TOGETHER = {"in.query": {"in.key"}, "in.key": {"in.query", "in.value"}, "in.value": {"in.key"}}


def excuse_batches(step: Measured, sites: Sites) -> None:
    """Of a candidate whose batch has another order, what was not taken apart by branch is not compared where it may
    be the reference's in another order."""
    note = "not taken apart by guidance branch, whose order is another in the candidate's batch"
    for at in folded(step, sites):
        if step.same_values([at[0]], 1.0, least=0.0):
            for i in at:
                sites.leave_out(i, note)


def folded(step: Measured, sites: Sites) -> Iterator[list[int]]:
    """The calls that differ and hold several branches at once, as frames that are folded into the batch: the same
    stands for each of them."""
    calls: dict[tuple[str, int], list[int]] = {}
    for i in sites.where("pass", beyond=True):
        key = step.meeting.places[i].key
        if key.branch:
            calls.setdefault((key.site, key.call), []).append(i)
    for at in calls.values():
        rows, many = (sites[at[0]].shapes[0] or (0,))[0], len(at)
        if rows > many > 1 and rows % many == 0 and len({step.held_bytes(i) for i in at}) == 1:
            yield at


Undone = tuple[bool, bytes, bytes]
"""Whether it is an argument of the model, and what both sides have there, bit for bit."""


def excuse_other_orders(step: Measured, sites: Sites, known: set[Undone]) -> None:
    """Inside a port the reference's values in another order are not compared: where the parameters lie so too, then
    also times their factor, or where what reads the values agrees; for what an attention call is given and gives that
    is enough.

    Args:
        known: values whose order was undone so far; gets those of this step.
    """
    far = [i for i in sites.where("pass", beyond=True) if step.meeting.own[i]]
    for i in far:
        same = [factor for factor in step.meeting.laid_out.get(i, ()) if step.same_values([i], factor)]
        if same:
            how = "in another order" if same[0] == 1.0 else f"times {as_factor(same[0])}"
            sites.leave_out(i, f"the reference's values {how}, as its parameters are")
    far = [i for i in far if sites[i].verdict == "pass"]
    parts = defaultdict[tuple[str, str, int], list[int]](list)  # streams of a joint sequence may change places
    for i in far:
        key = sites[i].key
        parts[key.branch, key.site.partition("@")[0], key.call].append(i)
    same_as = {i for at in parts.values() for i in at if step.same_values([i], 1.0) or step.same_values(at, 1.0)}
    alike = {sites[i].key: i for i in far if i in same_as}
    inside = {sites[i].key: i for i in far if is_attention(sites[i].key.module) and sites[i].distance.rel_l2 > OTHER}
    turned, other = inside | alike, inside.keys() - alike.keys()
    if not turned:
        return
    undone_at, seen = _reads(step, tuple(sites), alike, other, known), {d.key for d in sites}
    for key, i in sorted(turned.items(), key=lambda at: at[0].is_argument):  # arguments behind what reads them
        sharp = sites[i].distance.floor <= SHARP * sites[i].distance.rel_l2  # what reads it shows the order undone
        both = (key.is_argument, *step.held_bytes(i))
        if key in other:
            if (sharp or _is_scaled(sites[i])) and undone_at(i):
                sites.leave_out(i, "another thing in an attention, and what reads it agrees")
        elif both in known or ((sharp or turned_together(key, turned, seen)) and undone_at(i)):
            known |= {both} if both[1] else set()
            sites.leave_out(i, "the reference's values in another order, and what reads them agrees")
        elif key.is_argument and sharp:
            sites[i] = replace(sites[i], note="the reference's values in another order")


def _is_scaled(d: SiteDiff) -> bool:
    """Whether it is the reference's times a factor, but for rounding: in 16 bits no floor is sharp enough."""
    return d.cosine > 0 and math.sqrt(max(0.0, 1.0 - d.cosine**2)) <= L2_LIMIT * d.distance.floor


def excuse_again(step: Measured, sites: Sites, unlike: Mapping[Key, str]) -> None:
    """Inside a port, what sharper floors have shown to be another thing is none of the reference's here either.

    Args:
        unlike: sites that were not compared with those floors, and why.
    """
    for i in sites.where("pass", beyond=True):
        if step.meeting.own[i] and sites[i].key in unlike:
            sites.leave_out(i, unlike[sites[i].key])


def turned_together(key: Key, turned: Container[Key], seen: Container[Key]) -> bool:
    """Whether what an attention call is given is in another order with another of its inputs: keys as queries are, in
    heads that lie otherwise, or as values are, in rows that do. A wrong rotation of one keeps its norm too.

    Args:
        turned: what may be in another order. seen: all that was compared.
    """
    others = _TOGETHER.get(key.port, ()) if is_attention(key.module) else ()
    beside = [replace(key, site=f"{key.module}:{port}") for port in others]
    return any(other in turned for other in beside) or not any(other in seen for other in beside)


def _reads(
    step: Measured, sites: Sequence[SiteDiff], alike: Mapping[Key, int], other: Set[Key], known: Container[Undone]
) -> Callable[[int], bool]:
    """Of a site, by its position, whether what reads its values agrees.

    Args:
        sites: in execution order. alike: what may be in another order. other: what may be another thing in an
            attention. known: see `excuse_other_orders`.
    """
    turned = alike.keys() | other
    agrees: dict[tuple[str, str], bool] = {}  # by branch and module whose output was seen
    for d in sites:
        if not (d.key.is_input or d.key.is_apart or d.key.module == LOOP or d.key in alike):
            place = d.key.branch, d.key.module
            agrees[place] = agrees.get(place, True) and _agrees(d)
    values = [key for key in alike if is_attention(key.module) and key.port == "in.value"]
    summed = {replace(key, site=f"{key.module}:out") for key in values}  # over keys, in any order
    summed = {d.key for d in sites if d.key in summed and _agrees(d)}

    def nearest(key: Key) -> str | None:
        """The nearest module around one whose output was seen."""
        return next((m for m in above(key.module) if (key.branch, m) in agrees), None)

    def undone(i: int) -> bool:
        key = sites[i].key
        if key.is_argument:  # a gate of zero hides an order too: an attention call has to undo it
            ours, theirs = step.held_bytes(i)
            inputs = (j for j in step.meeting.inputs if j != i and sites[j].key.branch == key.branch)
            given = [j for j in inputs if step.held_bytes(j)[0] == ours]
            readers = {call_of(sites[j].key) for j in given}
            outputs = (d for d in sites if not (d.key.is_input or d.key.is_apart) and call_of(d.key) in readers)
            made = (d for d in outputs if all(d.dtypes))
            as_it_is = all(step.held_bytes(j)[1] == theirs for j in given)
            undo = as_it_is and all(d.key in turned or _agrees(d) for d in made)
            return undo and (False, ours, theirs) in known and any(d.branch == key.branch for d in summed)
        if key.is_input and is_attention(key.module) and agrees.get((key.branch, key.module), False):
            return True
        around = nearest(key)
        if around is None:
            return False
        agree = agrees[key.branch, around]
        if agree and (around or step.meeting.laid_out) and not step.hands_on(key.branch, around):
            return True
        parts = key.module.split(".")
        of_a_block = len(parts) == 2 and parts[1].isdecimal() and not step.hands_on(key.branch, around)
        behind = [d for d in sites[i + 1 :] if d.key.branch in (key.branch, "") and all(d.dtypes)]
        end = len(behind) if (len(parts) == 1 or of_a_block) and agree else 0
        if summed and not is_attention(key.module):  # what differs behind it does by something else
            end = next((n + 1 for n, d in enumerate(behind) if d.key in summed), end)
        if end and all(d.verdict != "pass" or _agrees(d) or d.key in turned for d in behind[:end]):
            return True
        if not is_attention(key.module):
            return False  # what is called next need not read it, as keys are none of what queries are made of
        later = (d for d in sites[i + 1 :] if d.key.is_input and d.key.branch == key.branch and all(d.dtypes))
        after = next((d for d in later if d.key.module != key.module and nearest(d.key) == around), None)
        return around != "" and after is not None and _agrees(after)

    return undone


def _agrees(d: SiteDiff) -> bool:
    return d.verdict == "pass" and all(d.dtypes) and not beyond(d)
