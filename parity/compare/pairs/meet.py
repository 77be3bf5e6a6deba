"""How two layouts meet: which records stand against each other, and where their sketches lie.

Found once for as long as neither side's layout changes; `parity.compare.judge` judges by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.births import SCHEDULE
from parity.compare.metrics import comparable_shapes
from parity.compare.pairs.align import Pair, align
from parity.compare.result import UNKNOWN, SiteDiff
from parity.compare.unlike import read_key
from parity.golden.disk.part import Layout, Table
from parity.records import LOOP, Key, Record, StepRecords
from parity.sketch import Geometry


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Group:
    """Sites whose sketches lie alike.

    Attributes:
        view: of their tensors. at: int64, positions among the sites. starts: where the sketches of (reference,
            candidate) begin. floors: int64, position of the reference's floor, -1 without. bins: where the floor's bins
            begin, -1 without bins or where there are others than the sketch has.
    """

    view: Geometry
    at: np.ndarray
    starts: tuple[np.ndarray, np.ndarray]
    floors: np.ndarray
    bins: np.ndarray


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Meeting:
    """How two layouts meet.

    Attributes:
        layouts: of reference and candidate. pairs: positions on both sides, -1 where there is none. places: one a pair.
        groups: of pairs that meet as sketches. others: of those that do not. moments: int64 [pairs, 2], -1 without.
        padding: bool [pairs]. read: int64 [sequences, 2], a joint sequence and the rows of it that are read.
        lone: positions of what the sides name differently: of an output with that of the prediction that tells whether
            it is one, else with -1.
        own: whether the module is a port's own, or one that is mapped. modules: of the reference, with a tensor.
        alone: tensors that only the reference has, and only the candidate.
    """

    layouts: tuple[Layout, Layout]
    pairs: tuple[tuple[int, int], ...]
    places: tuple[SiteDiff, ...]
    groups: tuple[Group, ...]
    others: tuple[int, ...]
    moments: np.ndarray
    padding: np.ndarray
    read: np.ndarray
    lone: tuple[tuple[int, int], ...]
    own: tuple[bool, ...]
    modules: frozenset[str]
    alone: tuple[int, int]


def meet(ours: Layout, theirs: Layout, *, port: bool = False, mapped: Collection[str] | None = None) -> Meeting:
    """How two layouts meet.

    Args:
        port, mapped: as of `parity.compare.judge.Judge`.
    """
    at = [{r.key: i for i, r in enumerate(layout.records)} for layout in (ours, theirs)]
    modules = [{r.key.module for r in layout.records} for layout in (ours, theirs)]

    def own(module: str) -> bool:
        """Whether the candidate's module is built otherwise: a port's own, or one that is mapped."""
        return module != LOOP and (port or (mapped is not None and module in mapped))

    def may_lack(module: str) -> bool:
        """Whether what only one side has is no difference: of a port, and of a module that no name maps."""
        return port or own(module) or (mapped is not None and not all(module in known for known in modules))

    every = align(ours.records, theirs.records, lone=own if port or mapped is not None else None)
    pairs = [p for p in every if (p.reference is not None and p.candidate is not None) or not may_lack(p.key.module)]
    found = tuple((_at(at[0], p.reference), _at(at[1], p.candidate)) for p in pairs)
    places = tuple(map(_place, pairs))
    groups: dict[tuple[int, int], list[int]] = {}
    others = []
    for i, (pair, (a, b)) in enumerate(zip(pairs, found, strict=True)):
        alike = pair.reference is not None and pair.candidate is not None and _sketched(pair, ours, theirs, a, b)
        if alike:
            groups.setdefault(places[i].frame, []).append(i)
        else:
            others.append(i)
    none = [[-1 if i < 0 else int(x.moments[i]) for x, i in zip((ours, theirs), sides, strict=True)] for sides in found]
    return Meeting(
        layouts=(ours, theirs),
        pairs=found,
        places=places,
        groups=tuple(_group(Geometry(*frame), here, found, ours, theirs) for frame, here in groups.items()),
        others=tuple(others),
        moments=np.array(none, np.int64).reshape(-1, 2),
        padding=np.array([p.key.is_apart for p in places], bool),
        read=np.array(_read(places), np.int64).reshape(-1, 2),
        lone=tuple(_lone(places)),
        own=tuple(own(p.key.module) for p in places),
        modules=frozenset(r.key.module for r in ours.records if _counts(r) and r.key.module not in ("", LOOP)),
        alone=(
            sum(_counts(p.reference) for p in every if p.candidate is None),
            sum(_counts(p.candidate) for p in every if p.reference is None),
        ),
    )


def _at(held: Mapping[Key, int], record: Record | None) -> int:
    return -1 if record is None else held[record.key]


def _read(places: Sequence[SiteDiff]) -> list[tuple[int, int]]:
    at = {p.key: i for i, p in enumerate(places) if p.key.is_read and all(p.dtypes)}
    whole = ((i, at.get(read_key(p.key))) for i, p in enumerate(places)) if at else ()
    return [(i, j) for i, j in whole if j is not None]


def _lone(places: Sequence[SiteDiff]) -> Iterator[tuple[int, int]]:
    predicted = {p.key.branch: i for i, p in enumerate(places) if p.key.site == f"{LOOP}:noise_pred"}
    for i, p in enumerate(places):
        if p.called:
            yield i, -1 if p.key.is_input else predicted.get(p.key.branch, -1)


def _place(pair: Pair) -> SiteDiff:
    """What of a site does not depend on the step."""
    a, b = pair.reference, pair.candidate
    if a is None or b is None or a.kind != "tensor" or b.kind != "tensor":
        return SiteDiff(pair.key, UNKNOWN)
    shapes, dtypes = (a.shape, b.shape), (a.dtype, b.dtype)
    return SiteDiff(pair.key, UNKNOWN, shapes=shapes, dtypes=dtypes, frame=a.frame, rows=a.rows, called=pair.called)


def _sketched(pair: Pair, ours: Layout, theirs: Layout, a: int, b: int) -> bool:
    """Whether two records are compared by their sketches."""
    x, y = pair.reference, pair.candidate
    if x is None or y is None or not x.kind == y.kind == "tensor" or not comparable_shapes(x, y):
        return False
    if "mask" in x.key.port:  # perhaps of another form
        return False
    held = ours.values[a] and theirs.values[b]
    drawn = ours.sketches[a] >= 0 and theirs.sketches[b] >= 0
    return bool(drawn) and not held and x.frame[0] * x.frame[1] > 0


def _group(
    view: Geometry, here: Sequence[int], found: Sequence[tuple[int, int]], ours: Layout, theirs: Layout
) -> Group:
    at = np.array([found[i] for i in here], np.int64).reshape(-1, 2)
    floors = np.array([ours.floors.get(ours.records[i].key, -1) for i in at[:, 0]], np.int64)
    has = floors >= 0
    fits = has.copy()
    fits[has] = ours.bin_counts[floors[has]] == view.bins
    bins = np.full(len(here), -1)
    bins[fits] = ours.bins[floors[fits]]
    starts = (ours.sketches[at[:, 0]], theirs.sketches[at[:, 1]])
    return Group(view=view, at=np.array(here, np.int64), starts=starts, floors=floors, bins=bins)


def _counts(r: Record | None) -> bool:
    return r is not None and r.kind == "tensor" and not r.key.is_apart


def lean(step: StepRecords) -> StepRecords:
    """The step with those records alone that causes and the loop's figures are read from: values, and 8-bit frames."""
    records = step.records
    return replace(step, records=tuple(records.where(_wanted))) if isinstance(records, Table) else step


def _wanted(r: Record) -> bool:
    return r.dtype == "uint8" or r.key.module in (LOOP, SCHEDULE, "decode")
