"""What the values show where the two part, and elsewhere: made otherwise, another's, in another order, None.

Small tensors are their own sketches, and the loop's values are held whole: every transform is tried on them
(`parity.transforms`). Of other tensors the moments show another order, and the sketch a gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from parity.causes.evidence import Evidence
from parity.causes.gauges import apart, reordering
from parity.compare.metrics import one_shape
from parity.compare.reason import Note
from parity.compare.result import Cause, measured
from parity.compare.unlike import keys_through
from parity.records import PORT, Key, Record
from parity.sketch import TOTAL, Geometry
from parity.transforms import EXACT, LEFT, WITHIN, Done, done

MOST = 1 << 24
"""Elements of a value that transforms are tried on."""


def values(evidence: Evidence) -> Iterator[Cause]:
    """What the two records at the origin show, at most one thing."""
    key = evidence.origin.key
    if not any(cause.at == key.site for cause in evidence.found.causes):
        yield from shown_by(key, evidence.ours.records, evidence.theirs.records, counts_keys=evidence.counts_keys)


def shown_by(
    key: Key, reference: Sequence[Record], candidate: Sequence[Record], *, counts_keys: bool = False
) -> Iterator[Cause]:
    """What two sides' records of one site show, at most one thing.

    Args:
        key: of the site. reference, candidate: all of a step. counts_keys: whether phantom keys were counted there.
    """
    ours, theirs = (next((r for r in side if r.key == key), None) for side in (reference, candidate))
    if ours is None or theirs is None or (ours.kind != theirs.kind):
        one = "the candidate" if ours is None or (theirs is not None and ours.kind == "none") else "the reference"
        yield measured(f"only {one} has a value at {key.site}", detail="one side has None or nothing there")
    elif ours.kind == "scalar":
        text = f"{_named(key)} is {theirs.value!r} on the candidate, {ours.value!r} on the reference"
        yield measured(text, detail="recorded as it is")
    elif ours.kind == "tensor" and "mask" in key.port:
        a, b = _whole(ours), _whole(theirs)
        made = None if a is None or b is None else done(a, b, fitted=False)
        yield from _keys(ours, theirs) if made is None or a is None or b is None else (_told(key, made, a, b),)
    elif ours.kind == "tensor":
        yield from _tensors(ours, theirs, reference, counts_keys)


def _tensors(ours: Record, theirs: Record, others: Sequence[Record], counts_keys: bool) -> Iterator[Cause]:
    key, a, b = ours.key, _whole(ours), _whole(theirs)
    if a is not None and b is not None and (made := done(a, b, fitted=False)):
        yield _told(key, made, a, b)
    elif key.is_input and (elsewhere := _elsewhere(theirs, others)):
        text = f"{_named(key)}: the candidate's is what the reference has at {elsewhere}"
        yield measured(text, detail="their values or sketches agree to rounding")
    elif counts_keys:  # which shrink what the attention gives, all alike: their count says it
        return
    elif a is not None and b is not None and (made := done(a, b)):
        yield _told(key, made, a, b)
    elif order := reordering(ours, theirs):
        text = f"{key.site} holds the same values in another order"
        yield measured(text, detail=order, fix="undo the layout, reshape or token order")
    elif a is not None and b is not None and a.size == b.size == 1:
        numbers = f"{b.item():.8g} on the candidate, {a.item():.8g} on the reference"
        yield measured(f"{_named(key)} is {numbers}", value=b.item(), detail="one number")
    else:
        yield from _gain(ours, theirs)


def _told(key: Key, made: Done, a: np.ndarray, b: np.ndarray) -> Cause:
    at = int(np.argmax(a.ravel() != b.ravel()))
    size = f"{a.size} value{'s' if a.size > 1 else ''}, the first other one {b.flat[at]:.8g} for {a.flat[at]:.8g}"
    said = f"{_named(key)}: {made}" if key.is_input or made.inverse else f"{key.site} is the reference's {made.words}"
    return measured(said, detail=size)


def _named(key: Key) -> str:
    what = key.port.removeprefix("in.")
    return f"the argument {what} of {key.module or 'the model'}" if key.is_input else key.site


def _whole(record: Record) -> np.ndarray | None:
    """The values of a tensor that is small or held, float64."""
    if isinstance(record.value, np.ndarray):
        return record.value.astype(np.float64) if 0 < record.value.size <= MOST else None
    if record.sketch is None or not Geometry(*record.frame).exact or not record.sketch.size:
        return None
    x = record.sketch.astype(np.float64)
    whole = record.rows == "" and x.size == int(np.prod(record.shape))
    return x.reshape(record.shape) if whole else x


def _keys(ours: Record, theirs: Record) -> Iterator[Cause]:
    """How many keys two masks let through in each row."""
    added = any(r.moments is not None and r.moments.min < 0 for r in (ours, theirs))
    # All zeros lets all through where masks are added, and nothing where they are ones and zeros.
    x, y = ((max if added else min)(keys_through(r), default=None) for r in (ours, theirs))
    if x is None or y is None:
        return
    numbers = f"{y} a row on the candidate, {x} on the reference"
    what = (
        f"another number of keys through: {numbers}"
        if x != y
        else f"{x} keys a row through, as the reference's, others"
    )
    yield measured(f"the mask {ours.key.site} lets {what}", value=float(y), detail=numbers)


def _gain(ours: Record, theirs: Record) -> Iterator[Cause]:
    if ours.sketch is None or theirs.sketch is None or ours.frame != theirs.frame:
        return
    counters = ours.sketch.size if Geometry(*ours.frame).exact else TOTAL
    x, y = (s[:counters].astype(np.float64) for s in (ours.sketch, theirs.sketch))
    square, apart = float(x @ x), y - x
    if x.size < 2 or square == 0.0 or not np.isfinite(y).all() or not apart.any():
        return
    gain = float(x @ y) / square
    left = float(np.linalg.norm(y - gain * x) / np.linalg.norm(apart))
    if left <= LEFT:
        detail = f"gain {gain:.6f} leaves {left:.1%} of the difference"
        how = "it is set to zero" if not y.any() else "a scale, gate or count is off"
        how = "it is negated" if abs(gain + 1) <= EXACT else how
        yield measured(f"{ours.key.site} is the reference's times {gain:.5g}: {how}", value=gain, detail=detail)


def _elsewhere(record: Record, others: Sequence[Record]) -> str | None:
    """The first other site of the same branch whose value is this one; None for none, and for what is all alike."""
    x, m = record.sketch, record.moments
    if x is None or m is None or (m.min == m.max and (m.count > 1 or m.min in (0.0, 1.0))):
        return None
    for other in others:
        y = other.sketch
        if other.key == record.key or y is None or other.frame != record.frame or other.key.branch != record.key.branch:
            continue
        if float(np.linalg.norm(np.subtract(x, y, dtype=np.float64))) <= WITHIN * float(np.linalg.norm(y)):
            return other.key.site
    return None


def arguments_alone(evidence: Evidence) -> Iterator[Note]:
    """Scalars that one side's call of the model alone is given; a default stands for them on the other.

    Not those of a port's call: the reference is given sizes where its call is not seen. `return_dict` computes nothing.
    """
    sides = {"reference": evidence.ours.records, "candidate": evidence.theirs.records}
    keys = {name: {r.key for r in records} for name, records in sides.items()}
    for name, records in sides.items():
        if name == "candidate" and evidence.declared.backend == PORT:
            continue
        other = next(keys[n] for n in keys if n != name)
        alone = [r for r in records if r.kind == "scalar" and r.key.port.startswith("in.") and not r.key.module]
        alone = [r for r in alone if r.key.port != "in.return_dict"]
        shown = {f"{r.key.port.removeprefix('in.')}={r.value!r}": None for r in alone if r.key not in other}
        if shown:
            yield Note(f"only the {name}'s call of the model is given {', '.join(shown)}")


def values_reordered(evidence: Evidence) -> Iterator[Cause]:
    """The first site that holds the reference's values in another order."""
    theirs = {r.key: r for r in evidence.theirs.records}
    pairs = [(r, theirs[r.key]) for r in evidence.ours.records if r.key in theirs and not r.key.is_apart]
    tensors = [(a, b) for a, b in pairs if a.kind == b.kind == "tensor"]
    if evidence.declared.backend == PORT:  # heads before tokens inside an attention of its own is no fault
        tensors = [(a, b) for a, b in tensors if one_shape(a.shape, b.shape)]
    found = list(_reordered(tensors))
    # What begins as another order is known already; what follows from it adds nothing.
    if not found or found[0] == evidence.origin.key:
        return
    first = found[0]
    branches = ", ".join(dict.fromkeys(key.branch for key in found if key.branch)) or "no branch of its own"
    sites = len({key.site for key in found})
    sentence = f"{first.site} holds the same values in another order, although the divergence is not introduced there"
    detail = f"at {sites} sites, branches {branches}, step {first.step}: minimum, maximum, mean and norm agree"
    yield measured(sentence, value=float(sites), detail=detail, fix="undo the layout or token order before it")


def _reordered(pairs: Sequence[tuple[Record, Record]]) -> Iterator[Key]:
    """The sites that hold the same values in another order, and are farther apart than anything before them.

    What a norm has made of rows that differ has their moments too: query and key of a wrong prompt, of which the other
    rows decide minimum and maximum. That is no farther apart than what came in; rows in another place are.
    """
    before: dict[str, float] = {}
    for ours, theirs in pairs:
        far = apart(ours, theirs) or 0.0
        came = max(before.get(ours.key.branch, 0.0), before.get("", 0.0))
        if reordering(ours, theirs) is not None and far > came:
            yield ours.key
        before[ours.key.branch] = max(before.get(ours.key.branch, 0.0), far)
