"""What a module or the model is given, where that is where the two part: an argument, or a small tensor.

A small tensor is its own sketch, so that every rounding can be tried on its values: to integers, to 16 bits, by a
factor of a thousand. One side's value has to be made of the other's exactly. And what the candidate hands on may be
what the reference has elsewhere: wires that were crossed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from parity.causes.evidence import Evidence
from parity.causes.gauges import measured
from parity.causes.witness import witness
from parity.compare.detect.held import bfloat16
from parity.compare.reason import Note
from parity.compare.result import Cause
from parity.records import PORT, Key, Record
from parity.sketch import Geometry

WITHIN = 1e-6
"""Relative difference up to which a value is the one that it was made to be: that of float32."""

Made = Callable[[np.ndarray], np.ndarray]
MADE: dict[str, Made] = {
    "rounded down to integers": np.floor,
    "rounded to integers": np.round,
    "rounded to bfloat16": bfloat16,
    "rounded to float16": lambda x: x.astype(np.float16).astype(np.float64),
    "times 1000": lambda x: 1000.0 * x,
    "divided by 1000": lambda x: x / 1000.0,
    "subtracted from 1": lambda x: 1.0 - x,
    "subtracted from 1000": lambda x: 1000.0 - x,
}
"""What ports do to the numbers that they hand on."""


@witness("input_values")
def input_values(evidence: Evidence) -> Iterator[Cause]:
    """One cause where the input at the origin is the other side's, made otherwise."""
    key = evidence.origin.key
    if not key.is_input or key.module == "loop":
        return
    ours, theirs = (next((r for r in side.records if r.key == key), None) for side in (evidence.ours, evidence.theirs))
    if ours is None or theirs is None:
        return
    if ours.kind == theirs.kind == "scalar":
        text = f"{_named(key)} is {theirs.value!r} on the candidate, {ours.value!r} on the reference"
        yield measured(text, 1.0, "an argument of the call, recorded as it is")
        return
    a, b = _values(ours), _values(theirs)
    made = tuple(_made(key, a, b)) if a is not None and b is not None and a.shape == b.shape else ()
    yield from made
    elsewhere = None if made else _elsewhere(theirs, evidence.ours.records)
    if elsewhere is not None:
        text = f"{_named(key)}: the candidate's is what the reference has at {elsewhere}"
        yield measured(text, 1.0, "their values or sketches agree to rounding")


@witness("arguments_alone")
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


def _named(key: Key) -> str:
    what = key.port.removeprefix("in.")
    return f"the argument {what} of {key.module or 'the model'}"


def _values(record: Record) -> np.ndarray | None:
    """A small tensor's values; None of another's, of NaN and of infinity."""
    if record.kind != "tensor" or record.sketch is None or not Geometry(*record.frame).exact:
        return None
    x = np.asarray(record.sketch, np.float64).ravel()
    return x if x.size and np.isfinite(x).all() else None


def _made(key: Key, a: np.ndarray, b: np.ndarray) -> Iterator[Cause]:
    for one, other, x, y in (("candidate's", "reference's", a, b), ("reference's", "candidate's", b, a)):
        # A number that rounds to nothing says nothing of how it was rounded.
        made = (how for how, make in MADE.items() if y.any() and not _alike(x, y) and _alike(make(x), y))
        how = next(made, None)
        if how is not None:
            at = int(np.argmax(x != y))
            size = f"{x.size} value{'s' if x.size > 1 else ''}, the first other one {y[at]:.8g} for {x[at]:.8g}"
            yield measured(f"{_named(key)}: the {one} is the {other} {how}", 1.0, size)
            return


def _alike(x: np.ndarray, y: np.ndarray) -> bool:
    return bool((np.abs(x - y) <= WITHIN * np.abs(y)).all())
