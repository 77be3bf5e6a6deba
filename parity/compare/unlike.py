"""Records of one site that do not line up: what each is, whether that can matter, and why they do not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from parity.compare.metrics import one_shape, other_pictures
from parity.compare.result import SiteDiff
from parity.records import READ, Key, Record
from parity.sketch import Geometry

UNREAD = "differs in padded rows alone, which no query reads"
"""The note of a joint sequence whose figures are those of the rows that are read."""
UNSEEN = "differs beyond -1 to 1 alone, which no picture shows"
"""The note of frames whose figures are those of what is shown."""
_PICTURES = "vae"
"""The stage whose outputs are pictures."""


def unread(key: Key) -> str:
    """The note of a site whose figures are those of what is read of it."""
    return UNSEEN if key.stage == _PICTURES else UNREAD


def what(record: Record) -> str:
    """A record in a word or two."""
    return "None" if record.kind == "none" else "a tensor" if record.kind == "tensor" else f"{record.value!r}"


def nothing(record: Record) -> bool:
    """Whether a record is of None, or of rows that a mask lets none of through: what is behind it is nobody's."""
    if record.kind != "tensor":
        return record.kind == "none"
    return record.rows != "" and _is_zero(record)


def _is_zero(record: Record) -> bool:
    """Whether every element is zero; moments are those of finite elements alone."""
    m = record.moments
    return m is not None and m.l2 == 0.0 and not m.nan and not m.inf


UNPAIRED = "rows that no mask pairs"
"""What the note of a port's site ends in that has another number of rows: nothing is known of it."""
LAID_OUT = "laid out otherwise"
"""What the note of a port's site ends in that has as many elements in another shape: its norm alone is compared."""
REPEATED = "one value for all rows against one a row, all alike"
"""What the note ends in of a tensor that one side holds once and the other repeats along its rows."""
NOT_ONE = "which is not the same thing"
"""What the note ends in of an input that the sides name differently, and that is not what the other takes."""
ABSENT = "zeros against None: what follows from them decides"
MASKS = "masks of other forms that let as many keys through: what follows from them decides"
PICTURES = "pictures of 8 bits against floats: what was decoded decides"
GIVEN_ONCE = "given on one side alone: what follows from it decides"
COUNTS = "numbers of tokens or frames perhaps: what follows from them decides"


def is_unpaired(note: str) -> bool:
    """Whether the note of a site says that its elements were not compared, as they do not line up on both sides."""
    return note.endswith((UNPAIRED, LAID_OUT, REPEATED, NOT_ONE)) or note in (
        ABSENT,
        GIVEN_ONCE,
        COUNTS,
        MASKS,
        PICTURES,
    )


def absent(a: Record, b: Record) -> bool:
    """Whether the model is given zeros on one side and nothing on the other, as for a condition that a prompt lacks.

    Behind a mask the two are one. Where no mask says so, what reads them differs if they are not.
    """
    if a.key.module or not a.key.is_input or {a.kind, b.kind} != {"none", "tensor"}:
        return False
    given = a if a.kind == "tensor" else b
    return _is_zero(given)


def given_once(a: Record, b: Record) -> bool:
    """Whether a module inside the model is given something on one side and None on the other, but for a mask.

    Implementations differ in what they call a module with: self-attention has the same tokens twice in one, and None in
    another; a flag is passed or not. What the module makes of it decides. A mask that one side lacks, known by its name
    or by its dtype, is a difference.
    """
    if not a.key.module or not a.key.is_input or "mask" in a.key.port:
        return False
    given = b if a.kind == "none" else a
    return {a.kind, b.kind} == {"none", given.kind} and (given.kind == "scalar" or "float" in given.dtype)


def counts(a: Record, b: Record) -> bool:
    """Whether a module inside the model is given two whole numbers, as of tokens where one side cuts padding off."""
    inside = bool(a.key.module) and a.key.is_input and a.kind == b.kind == "scalar"
    return inside and a.dtype == b.dtype == "int" and a.value != b.value


def left_to_reader(a: Record, b: Record) -> str:
    """Why records are no difference by themselves, one of which is None, or both numbers; empty where they are one."""
    return ABSENT if absent(a, b) else GIVEN_ONCE if given_once(a, b) else COUNTS if counts(a, b) else ""


ALIKE = 1e-5
"""Relative difference of the moments of one value and of the same value repeated: that of float32."""


def repeated(a: Record, b: Record) -> bool:
    """Whether one tensor holds the other's values several times: a timestep by token, and what follows from it."""
    x, y = a.moments, b.moments
    if x is None or y is None or x.nan or x.inf or y.nan or y.inf or not x.count or not y.count:
        return False
    most, least = max(x.count, y.count), min(x.count, y.count)
    size = max(abs(x.min), abs(x.max))
    close = (abs(p - q) <= ALIKE * size for p, q in ((x.min, y.min), (x.max, y.max), (x.mean, y.mean)))
    power = abs(x.l2**2 / x.count - y.l2**2 / y.count) <= ALIKE * x.l2**2 / x.count
    return most > least and most % least == 0 and power and all(close)


def repeated_sites(sites: Iterable[SiteDiff]) -> Iterator[str]:
    """A sentence on the sites that hold one value for all rows on one side."""
    found = [d for d in sites if d.note.endswith(REPEATED)]
    if found:
        first = f"{found[0].key.site} ({found[0].note.removesuffix(f', {REPEATED}')})"
        yield (
            f"{len(found)} sites hold one value for all rows on one side and row by row, all alike, on the other: "
            f"first {first}; what follows from them decides"
        )


def unpaired_sentences(noted: Iterable[SiteDiff]) -> Iterator[str]:
    """What was not compared, or by its norm alone, of these sites with notes."""
    sites = tuple(noted)
    yield from repeated_sites(sites)
    many = sum(d.note.endswith(UNPAIRED) for d in sites)
    if many:
        yield f"{many} sites have other numbers of rows on both sides, {UNPAIRED}: they were not compared"
    other = sum(d.note.endswith(LAID_OUT) for d in sites)
    if other:
        yield f"{other} sites are {LAID_OUT} on both sides: their norms match, and nothing else was compared"
    yield from (f"{d.key.site}: {PICTURES}" for d in sites if d.note == PICTURES)


def other_rows(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes differ in their rows alone; those of a table [rows, channels] are its first axis."""
    if len(a) == len(b) == 2 and a[1] == b[1]:
        return True
    return len(a) == len(b) >= 2 and a[:1] + a[2:] == b[:1] + b[2:]


def other_layout(a: Record, b: Record) -> bool:
    """Whether two tensors of other shapes can hold the same elements: axes in another order, or joined.

    One of them has the axes of a picture or a video; a matrix that is transposed is a fault.
    """
    whole = a.rows == b.rows == "" and max(len(a.shape), len(b.shape)) >= 4
    return whole and a.shape != b.shape and math.prod(a.shape) == math.prod(b.shape) > 0


def same_mask(a: Record, b: Record) -> tuple[bool, bool]:
    """Whether two masks let the same keys through: ones and zeros, or numbers that are added to the scores.

    Returns:
        Whether they do, where the sketches hold which keys; whether they let as many through, where nothing else of
        masks of other shapes or dtypes can be compared.
    """
    if "mask" not in a.key.port:
        return False, False
    lines_up = one_shape(a.shape, b.shape) and not a.rows and not b.rows
    if lines_up and Geometry(*a.frame).exact and a.sketch is not None and b.sketch is not None:
        return any(np.array_equal(x, y) for x in _keys(a) for y in _keys(b)), False
    return False, not (lines_up and a.dtype == b.dtype) and bool(keys_through(a) & keys_through(b))


def _forms(record: Record) -> tuple[bool, bool]:
    """Whether a mask can be one of ones and zeros, and one that is added: 0, or a number far below or -inf."""
    m = record.moments
    if m is None or m.nan or not m.count:
        return False, False
    added = "float" in record.dtype and m.max == 0.0 and (m.min <= FAR or bool(m.inf) or m.min == 0.0)
    within = not m.inf and m.min >= 0.0 and m.max <= 1.0
    # Of numbers from 0 to 1 squares add up to what they do themselves where all are 0 or 1; a soft mask is none.
    whole = within and abs(m.l2**2 - m.mean * m.count) <= ALIKE * max(m.l2**2, 1.0)
    return whole and not added, added


FAR = -1e3
"""What a mask that is added holds at most where a key is left out; -10000 in many implementations."""


def keys_through(record: Record) -> frozenset[int]:
    """How many keys a mask lets through in each row, in each form that it can be of; empty where it is no mask."""
    m = record.moments
    if m is None or not record.shape or not record.shape[-1]:
        return frozenset()
    ones, added = _forms(record)
    rows = m.count / record.shape[-1]
    far = m.l2 / m.min if m.min else 0.0
    out = m.inf if m.inf else far * far
    found = [m.mean * m.count] if ones else []
    found += [m.count - out] if added else []
    return frozenset(round(n / rows) for n in found if math.isfinite(n))


def _keys(record: Record) -> list[np.ndarray]:
    """Where a mask lets a key through, in each form that it can be of."""
    if record.sketch is None:
        return []
    ones, added = _forms(record)
    return ([record.sketch > 0.0] if ones else []) + ([record.sketch == 0.0] if added else [])


def read_key(key: Key) -> Key:
    """The key of the rows that are read of a joint sequence."""
    return replace(key, site=f"{key.site}@{READ}")


def unlike(a: Record, b: Record) -> str:
    """Why tensors of one shape do not line up."""
    if other_pictures(a, b):
        return PICTURES
    if bool(a.rows) != bool(b.rows):
        known, other = ("reference", "candidate") if a.rows else ("candidate", "reference")
        return f"the {known}'s padded rows are known from a mask, the {other}'s are not"
    return f"rows of '{a.rows}', {a.frame} of them, against rows of '{b.rows}', {b.frame}"
