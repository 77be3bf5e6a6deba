"""Rows that are read: text has padding, and stands where an implementation puts it.

Beside a sequence a recording holds what is read of it, row by row, and sums over those rows, which are the same in any
order and with any padding. What is read decides where all of it was compared; the sums where a mask says that the rows
moved. A mask that lets the same rows through is not compared then, nor is a table of positions that moves with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parity.compare.births import CUT, MOVED, SAME_KEYS, call_of
from parity.compare.measured import Measured
from parity.compare.metrics import (
    ALIKE,
    FORMS,
    LINF_LIMIT,
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
from parity.compare.sites import Sites, beyond
from parity.floors import L2_LIMIT
from parity.records import Record
from parity.sketch import Geometry

SUMS = 5.0
"""How far apart the four sums over rows may be, in floors of the rows: sqrt(6) where each row is rounded by itself, and
twice that because rounded weights move all rows alike."""


def read_alone(step: Measured, sites: Sites) -> None:
    """What is read alone decides: not rows that no query reads, nor frames beyond what a picture shows. In a norm
    over both, many that nobody reads hide the few that are read."""
    apart = step.relative * step.norms
    for i, j in step.meeting.parts.items():
        whole, part = sites[i], sites[j]
        if np.isnan(part.distance.ratio) and part.distance.rel_l2 != 0.0:
            continue
        if apart[j] > 2.0 * apart[i]:  # no part can be: each side's mask picks other rows
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


def _is_named_mask(d: SiteDiff) -> bool:
    return "mask" in d.key.port


def _move_beside(step: Measured, sites: Sites) -> None:
    """What a module is given for each row, as a table of positions, moves with rows in another order."""
    moved = (sites[i] for i in step.meeting.sets)
    rows = {(call_of(d.key), n) for d in moved if d.note == REORDERED and d.key.is_input for n in d.shapes[0][1:2]}
    for i in step.meeting.inputs if rows else ():
        d = sites[i]
        moves = all(d.dtypes) and any((call_of(d.key), n) in rows for n in d.shapes[0][:2])
        if moves and d.verdict == "pass" and "mask" not in d.key.port and beyond(d) and step.same_values(i, 1.0):
            sites[i] = replace(d, verdict="not compared", note=MOVED)


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
            sites[i] = replace(d, verdict="not compared", note=SAME_KEYS)
        elif d.verdict == "pass" and beyond(d) and not (as_many and d.key.module):
            for j in beside:
                e = sites[j]
                of_mask = e.shapes[0][1:2] == d.shapes[0][-1:] and "mask" not in e.key.port
                if e.key.is_input and of_mask and beyond(e) and (d.key.module or _is_unread(e, masks[0])):
                    note = "which of its rows are read, a mask says that differs"
                    sites[j] = replace(e, verdict="not compared", note=note)
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
    if len(keys) != 1 or keys[0].size != view.rows or not len(d.bins):
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
            sites[j] = e if agrees else replace(e, verdict="not compared", note=CUT)
            if missing:
                sites[i] = replace(d, verdict="not compared", note=f"a mask against None, beside rows {CUT}")


def _may_be_cut(step: Measured, j: int) -> bool:
    """Whether the rows that are read of one side may be the other side's rows, by their norms."""
    a, b = (moments[j] for moments in step.moments)
    if a < 0 or b < 0:
        return True
    key = replace(step.meeting.places[j].key.read, step=step.ours.step)
    norms = [step.ours.numbers[a, 3], step.theirs.numbers[b, 3]]
    read = [next((r.moments for r in side if r.key == key), None) for side in (step.ours, step.theirs)]
    if not any(read):
        return True
    sides = zip(norms, read, step.meeting.places[j].shapes, strict=True)
    rows = [shape[1] for shape in step.meeting.places[j].shapes]
    norms = [norm if of is None or shape[1] < max(rows) else of.l2 for norm, of, shape in sides]  # a cut one whole
    return bool(abs(norms[0] - norms[1]) <= np.fmax(L2_LIMIT * step.limits[j], ALIKE * norms[0]))


def _is_cut(shapes: tuple[tuple[int, ...], tuple[int, ...]], masks: Sequence[Record]) -> bool:
    """Whether a tensor has as many rows on one side as the mask of the other side lets through of all."""
    sides = ((masks[0], shapes[0], shapes[1]), (masks[1], shapes[1], shapes[0]))
    return any(
        own != other and (own,) == mask.shape[-1:] and other in keys_through(mask)
        for mask, ours, theirs in sides
        for own, other in zip(ours, theirs, strict=False)
    )
