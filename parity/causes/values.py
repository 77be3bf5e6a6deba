"""What the records show by themselves where two sides part, whatever the code behind them. numpy only.

Values: made otherwise, another's, in another order, None. Small tensors are their own sketches, and the loop's values
are held whole: every transform is tried on them (`parity.transforms`). Of other tensors the moments show another order,
and the sketch a gain.

The dtype map in one word: most of the candidate's modules have another working dtype.

The schedule: timesteps, sigmas and their differences dt are recorded whole. Where they differ: at which steps, by how
much, and what was done to them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from parity.causes.evidence import Evidence, Numbers
from parity.compare.births import UNITS
from parity.compare.independent import differences
from parity.compare.metrics import is_zero, keys_through, sketch_distance, whole
from parity.compare.places import code_of
from parity.compare.reason import Note
from parity.compare.result import Cause, measured
from parity.golden.disk.part import chosen
from parity.records import LOOP, PORT, Key, Record, StepRecords
from parity.settings import BITS
from parity.sketch import Geometry, of_the_whole
from parity.transforms import EXACT, LEFT, WITHIN, Done, as_factor, done, norm


def values(evidence: Evidence) -> Iterator[Cause]:
    """What the two records at the origin show, at most one thing; phantom keys, whose count says it, shrink what an
    attention gives, all alike."""
    key, known = evidence.origin.key, evidence.found.causes
    counted = any("phantom keys" in cause.cause for cause in (*known, *evidence.causes))
    if not (counted or any(cause.at == key.site for cause in known)):
        yield from _shown(evidence, key)


def values_elsewhere(evidence: Evidence) -> Iterator[Cause]:
    """What the records show where other differences begin, each by itself, at most one thing."""
    causes = (*evidence.found.causes, *evidence.causes)
    known = {code_of(site) for site in (evidence.origin.key.site, *(cause.at for cause in causes if cause.at))}
    for key in (difference.key for difference in differences(evidence.found)):
        if key is not None and key.step >= 0 and code_of(key.site) not in known:
            yield from (replace(cause, at=key.site) for cause in _shown(evidence, key))


def _shown(evidence: Evidence, key: Key) -> Iterator[Cause]:
    """See `shown_by`; of one number, as a timestep is, all steps are asked: of a single one nobody knows how it came to
    be another."""
    ours, theirs = evidence.read(key.step)
    if not all(key in given for given in evidence.numbers(key.step)):
        yield from shown_by(key, ours.records, theirs.records)
        return
    steps = ((replace(key, step=s.step), *evidence.numbers(s.step)) for s in evidence.found.steps)
    pairs = [(a[at], b[at]) for at, a, b in steps if at in a and at in b]
    x, y = np.array(pairs, np.float64).reshape(-1, 2).T
    own = np.array([s.timestep for s in evidence.found.steps], np.float64).reshape(-1, 2).T
    for unit in UNITS:  # of another schedule the argument is to be another
        if own.shape == (2, x.size) and np.allclose(x, unit * own[0], rtol=WITHIN, atol=0.0):
            x = unit * own[1]
    if x.size > 1 and (made := done(x, y)):
        yield _told(key, made, x, y)
    else:
        yield from shown_by(key, ours.records, theirs.records)


def numbers_given(step: StepRecords) -> Numbers:
    """What the model is given that is one number, as its timestep is."""
    held = ((r.key, whole(r)) for r in chosen(step.records, _is_argument) if math.prod(r.shape) == 1)
    return {key: float(x.item()) for key, x in held if x is not None}


def _is_argument(r: Record) -> bool:
    return r.kind == "tensor" and r.key.is_argument


def shown_by(key: Key, reference: Sequence[Record], candidate: Sequence[Record]) -> Iterator[Cause]:
    """What two sides' records of one site show, at most one thing.

    Args:
        key: of the site. reference, candidate: all of a step.
    """
    ours, theirs = (next((r for r in side if r.key == key), None) for side in (reference, candidate))
    if ours is None or theirs is None:  # the run saw it, under another name perhaps, and kept blocks alone
        return
    if ours.kind != theirs.kind:
        one = "the candidate" if ours.kind == "none" else "the reference"
        yield measured(f"only {one} has a value at {key.site}", detail="one side has None or nothing there")
    elif ours.kind == "scalar":
        text = f"{_named(key)} is {theirs.value!r} on the candidate, {ours.value!r} on the reference"
        yield measured(text, detail="recorded as it is")
    elif ours.kind == "tensor":
        yield from _tensors(ours, theirs, reference)


def _tensors(ours: Record, theirs: Record, others: Sequence[Record]) -> Iterator[Cause]:
    key, a, b = ours.key, whole(ours), whole(theirs)
    if a is not None and b is not None and (made := done(a, b, fitted=False)):
        yield _told(key, made, a, b)
    elif "mask" in key.port:
        yield from _keys(ours, theirs)
    elif key.is_input and not sketch_distance(ours, theirs) <= SAME and (elsewhere := _elsewhere(theirs, others)):
        text = f"{_named(key)}: the candidate's is what the reference has at {elsewhere}"
        yield measured(text, detail="their values or sketches agree to rounding")
    elif a is not None and b is not None and (made := done(a, b, fitted=True)):
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


def _keys(ours: Record, theirs: Record) -> Iterator[Cause]:
    """How many keys two masks let through in each row."""
    added = any(r.moments is not None and r.moments.min < 0 for r in (ours, theirs))
    # All zeros lets all through where masks are added, and nothing where they are ones and zeros.
    x, y = (0 if is_zero(r) and not added else max(keys_through(r), default=None) for r in (ours, theirs))
    if x is None or y is None:
        return
    numbers = f"{y} a row on the candidate, {x} on the reference"
    what = f"{x} keys a row through, as the reference's, others"
    if x != y:
        what = f"another number of keys through: {numbers}"
    yield measured(f"the mask {ours.key.site} lets {what}", value=float(y), detail=numbers)


def _gain(ours: Record, theirs: Record) -> Iterator[Cause]:
    if ours.sketch is None or theirs.sketch is None or ours.frame != theirs.frame:
        return
    x, y = (of_the_whole(s, Geometry(*ours.frame)) for s in (ours.sketch, theirs.sketch))
    if x.size < 2 or not x.any() or not (np.isfinite(x) & np.isfinite(y)).all() or np.array_equal(x, y):
        return
    square, apart = float(x @ x), y - x
    gain = float(x @ y) / square
    left = norm(y - gain * x) / norm(apart)
    if left <= LEFT:
        detail = f"gain {gain:.6f} leaves {left:.1%} of the difference"
        how = "it is set to zero" if not y.any() else "a scale, gate or count is off"
        how = "it is negated" if abs(gain + 1) <= EXACT else how
        yield measured(f"{ours.key.site} is the reference's times {as_factor(gain)}: {how}", value=gain, detail=detail)


def _elsewhere(record: Record, others: Sequence[Record]) -> str | None:
    """The first other site of the same branch whose value is this one; None for none, and for what is all alike."""
    m = record.moments
    if m is None or (m.min == m.max and (m.count > 1 or m.min in (0.0, 1.0))):
        return None
    for other in others:
        another = other.key != record.key and other.key.branch == record.key.branch
        if another and sketch_distance(other, record) <= WITHIN:
            return other.key.site
    return None


def arguments_alone(evidence: Evidence) -> Iterator[Note]:
    """Scalars that one side's call of the model alone is given; a default stands for them on the other.

    Not those of a port's call: the reference is given sizes where its call is not seen. `return_dict` computes nothing.
    """
    ours, theirs = evidence.ours.records, evidence.theirs.records
    for name, records, others in (("reference", ours, theirs), ("candidate", theirs, ours)):
        if name == "candidate" and evidence.declared.backend == PORT:
            continue
        known = {r.key for r in others}
        given = (r for r in records if r.kind == "scalar" and r.key.is_argument)
        alone = (r for r in given if r.key not in known and r.key.port != "in.return_dict")
        if shown := dict.fromkeys(f"{r.key.port.removeprefix('in.')}={r.value!r}" for r in alone):
            yield Note(f"only the {name}'s call of the model is given {', '.join(shown)}")


# --- the dtype map

FIX = "run both in one dtype, or expect its rounding"


def dtype(evidence: Evidence) -> Iterator[Cause]:
    """One cause where the records say another dtype."""
    found = working_dtype(evidence.ours.records, evidence.theirs.records)
    if found is None:
        return
    ours, theirs = found
    text = f"most modules compute in {theirs}, the reference's in {ours}"
    detail = f"dtype of the module outputs: {ours} against {theirs}"
    yield measured(text, "dtype", ours, theirs, float(BITS[theirs]), detail=detail, fix=FIX)


# --- the schedule: the loop's own numbers at every step

ANOTHER, ROUNDED = "is another", "is rounded to bfloat16"
SET = frozenset({"shift", "schedule_dtype", "timesteps", "scheduler.step_index"})
"""Of causes that a script's own schedule shows; see `parity.compare.values`."""


def schedule(evidence: Evidence) -> Iterator[Cause]:
    """One cause where the loop's numbers differ at any step, none else."""
    steps, names = evidence.found.steps, ("timestep", "sigma", "dt")
    numbers = np.array([[s.timestep, s.sigma, s.dt] for s in steps], np.float64).reshape(-1, len(names), 2)
    size = np.maximum(np.nan_to_num(np.abs(numbers)).max(axis=(0, 2), initial=0.0), 1e-12)
    # 0 where either was not recorded.
    far = np.nan_to_num(np.abs(numbers[..., 1] - numbers[..., 0]) / size, nan=0.0, posinf=0.0)
    hit = far > WITHIN
    at = np.flatnonzero(hit.any(axis=1))
    if not at.size:
        return
    differ = {name: numbers[:, i] for i, name in enumerate(names) if hit[:, i].any()}
    kind = _kind(differ)
    if kind == ANOTHER and any(cause.setting in SET for cause in evidence.found.causes):
        return  # what was set before the first step says which
    fix, sides = "set the scheduler up as the reference does", ("", "", "")
    if kind == ROUNDED:
        fix, sides = "keep the schedule in float32", ("schedule_dtype", "model", "bfloat16")
    first = zip(names, numbers[at[0]].tolist(), hit[at[0]], strict=True)
    shown = ", ".join(f"{name} {pair[0]:.6g} against {pair[1]:.6g}" for name, pair, differs in first if differs)
    where = ", ".join(str(steps[i].step) for i in at[:8])
    detail = f"{' and '.join(differ)} at steps {where}; at step {steps[at[0]].step}: {shown}"
    yield measured(f"the schedule {kind}", *sides, float(far.max()), detail=detail, fix=fix)


def _kind(numbers: Mapping[str, np.ndarray]) -> str:
    """What the candidate's numbers are that differ, as a sentence's end."""
    values = [x for name, x in numbers.items() if name != "dt"] or list(numbers.values())
    first, *others = {done(x[:, 0], x[:, 1]) for x in values}
    if first is None or first.inverse or others:
        return ANOTHER
    if first.words.startswith("a step"):
        return f"is {first.words}: it was not reset, or warm-up calls moved it"
    return ROUNDED if first.words == "rounded to bfloat16" else f"is the reference's {first.words}"


# --- what these share

SAME = 1e-4
"""Relative difference of the moments of a permuted tensor at most; and `AGAINST` times that of the sketches."""
AGAINST = 1e-3
"""Noise of relative size d moves a tensor's extremes by about d / 4 of their size: by less than this share of d once in
a hundred times, both extremes and the norm together never."""


def working_dtype(reference: Sequence[Record], candidate: Sequence[Record]) -> tuple[str, str] | None:
    """The dtype of most module outputs on each side, where the two differ: the dtype map in one word."""
    theirs = {r.key: r.dtype for r in candidate}
    outputs = (r for r in reference if r.kind == "tensor" and r.key.module != LOOP and not r.key.is_input)
    pairs = ((r.dtype, theirs.get(r.key, "")) for r in outputs)
    floats = [(a, b) for a, b in pairs if a in BITS and b in BITS]
    if not floats:
        return None
    ours, other = (Counter(side).most_common(1)[0][0] for side in zip(*floats, strict=True))
    return None if ours == other else (ours, other)


def reordering(ours: Record, theirs: Record) -> str | None:
    """By what two tensors are seen to hold the same values in another order; None where they do not."""
    a, b = ours.moments, theirs.moments
    far = sketch_distance(ours, theirs)
    if a is None or b is None or not far >= 1e-3:
        return None
    # Moments agree far better than tensors do that are this far apart by anything but their order.
    size, within = max(abs(a.min), abs(a.max)), max(WITHIN, min(SAME, AGAINST * far))
    close = all(abs(x - y) <= within * size for x, y in ((a.min, b.min), (a.max, b.max), (a.mean, b.mean)))
    if not close or a.count != b.count or abs(a.l2 - b.l2) > within * a.l2:
        return None
    return f"minimum, maximum, mean and norm agree ({a.min:.4g}, {a.max:.4g}, {a.mean:.3g}, {a.l2:.4g})"
