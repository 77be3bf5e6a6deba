"""Merging goldens: shards of one tensor add up, disjoint steps stand side by side, and everything else is refused.

Problem. A run on many hosts leaves one golden a process, each with sketches of its own shards; a long run may be
recorded in pieces. The diff wants one golden.

How. `plan_merge` decides from provenances alone which parts make up each step; `merge_step` adds one step's records up;
`merge` does both, first for every step without writing anything, so that a conflict leaves nothing behind.

Where a tensor is sharded over hosts, each process records the sketch and moments of its own block, under the same key;
where it is replicated, each records all of it. A sketch is linear, so the shards' sketches add; moments combine. Which
of the two a record is, and that shards neither overlap nor leave gaps, is read off the element counts: the counts of
shards must come to the number of elements of the whole frame, and a tensor that every process held whole must be the
same bits in each, and is kept once.

Cost. Two reads of the parts, memory of one step of all shards; an addition of 2,048 numbers a shard and record.
"""

from __future__ import annotations

import graphlib
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.errors import UsageError
from parity.golden.disk.format import Manifest
from parity.golden.disk.inputs import FILE, MOST, put_inputs, read_inputs
from parity.golden.disk.read import Golden, read_manifest
from parity.golden.disk.store import open_store
from parity.golden.disk.write import GoldenWriter, first_difference, step_digest
from parity.golden.records import Floor, Key, Moments, Provenance, Record, StepRecords

_MAY_DIFFER = ("command", "devices", "shard")
_NO_SHARE = (
    "both hold the whole of it, and what they hold differs (a share that nothing says is one: choose sites without it, "
    "or keep it a DTensor, use_local_output=False)"
)


@dataclass(frozen=True, slots=True)
class Source:
    """What planning needs to know of a part.

    Attributes:
        name: for messages.
        steps: the steps it holds.
        complete: whether its recording ended by itself.
    """

    name: str
    provenance: Provenance
    steps: tuple[int, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Which sources make up which step.

    Attributes:
        provenance: of the merged golden.
        steps: step -> indices of the sources that hold its shards, in the order of the shards.
    """

    provenance: Provenance
    steps: Mapping[int, tuple[int, ...]]


def plan_merge(sources: Sequence[Source]) -> MergePlan:
    """Decide what a merge does.

    Raises:
        UsageError: nothing to merge; an unfinished part; parts of different runs; a shard of a step that is missing
            or given twice.
    """
    if not sources:
        raise UsageError("nothing to merge: give the goldens to merge after the name of the new one")
    first = sources[0]
    count = first.provenance.shard[1]
    for source in sources:
        if not source.complete:
            raise UsageError(f"{source.name}: was not finished; finish its recording with --resume, then merge")
        if source.provenance.shard[1] != count:
            raise _conflict(first, source, f"one is of {count} shards, the other of {source.provenance.shard[1]}")
        if difference := first_difference(first.provenance, source.provenance, _MAY_DIFFER):
            raise _conflict(first, source, f"they are of different runs, with {difference}")
    holders: dict[int, dict[int, int]] = {}
    for index, source in enumerate(sources):
        for step in source.steps:
            shards = holders.setdefault(step, {})
            shard = source.provenance.shard[0]
            if shard in shards:
                what = f"both hold step {step}" + (f" of shard {shard}" if count > 1 else "")
                raise _conflict(sources[shards[shard]], source, what)
            shards[shard] = index
    for step, shards in sorted(holders.items()):
        if missing := sorted(set(range(count)) - shards.keys()):
            raise UsageError(f"step {step} lacks shard {missing[0]} of {count} (numbered from 0); give its golden too")
    devices = tuple(dict.fromkeys(itertools.chain(*(source.provenance.devices for source in sources))))
    provenance = replace(first.provenance, devices=devices, shard=(0, 1))
    return MergePlan(
        provenance, {step: tuple(shards[i] for i in range(count)) for step, shards in sorted(holders.items())}
    )


def _conflict(a: Source, b: Source, what: str) -> UsageError:
    return UsageError(f"{a.name} and {b.name} cannot be merged: {what}")


def merge(out: str | os.PathLike[str], parts: Sequence[str | os.PathLike[str]]) -> None:
    """Merge goldens into a new one at `out`; paths or URLs. What a killed merge of the same parts left there is kept.

    Raises:
        UsageError: a conflict, with the names of what conflicts; a damaged part; another golden at `out` already.
    """
    goldens = [Golden.open(part) for part in parts]
    plan = plan_merge([Source(g.name, g.provenance, g.steps, g.complete) for g in goldens])

    def merged(step: int) -> StepRecords:
        held = [goldens[index] for index in plan.steps[step]]
        return merge_step([golden.read_step(step) for golden in held], [golden.name for golden in held])

    for step in plan.steps:
        merged(step)
    begun = read_manifest(open_store(out))
    if begun is not None and not _is_begun(begun, plan, merged):
        raise UsageError(f"{os.fspath(out)}: there is a golden here already; choose another place for the merged one")
    with GoldenWriter(out, plan.provenance, resume=True) as writer:
        for step in plan.steps:
            if step not in writer.steps_done:
                writer.write_step(merged(step))
        if goldens[0].store.read(FILE, MOST) is not None:
            put_inputs(open_store(out), plan.provenance, read_inputs(goldens[0]))


def _is_begun(found: Manifest, plan: MergePlan, merged: Callable[[int], StepRecords]) -> bool:
    """Whether an unfinished golden holds nothing but steps of this merge, bit for bit."""
    if found.complete or found.provenance != plan.provenance:
        return False
    return all(part.step in plan.steps and part.sha256 == step_digest(merged(part.step)) for part in found.parts)


def merge_step(shards: Sequence[StepRecords], names: Sequence[str]) -> StepRecords:
    """One step's records of all shards, added up.

    Args:
        shards: the same step of every shard, at least one.
        names: of the goldens they come from, for messages.

    Raises:
        UsageError: records of one key that contradict each other, overlap, or do not make up the whole.
    """
    if len(shards) == 1:
        return shards[0]
    held = [{record.key: record for record in shard.records} for shard in shards]
    records = []
    for key in merged_order([list(part) for part in held]):
        holders = [(part[key], name) for part, name in zip(held, names, strict=True) if key in part]
        records.append(merge_records([record for record, _ in holders], [name for _, name in holders]))
    floors: dict[Key, Floor] = {}
    for key in dict.fromkeys(itertools.chain(*(shard.floors for shard in shards))):
        found = [shard.floors[key] for shard in shards if key in shard.floors]
        added = any(key in part and _partial(part[key]) for part in held)
        floors[key] = _merge_floors(key, found, added, names)
    return StepRecords(shards[0].step, tuple(records), floors)


def merged_order(lists: Sequence[Sequence[Key]]) -> list[Key]:
    """One order for the keys of several executions that keeps the order of each; that of first sight if none does."""
    before: dict[Key, list[Key]] = {key: [] for key in itertools.chain(*lists)}
    for keys in lists:
        for earlier, later in itertools.pairwise(keys):
            before[later].append(earlier)
    try:
        return list(graphlib.TopologicalSorter(before).static_order())
    except graphlib.CycleError:
        return list(before)


def _elements(record: Record) -> int:
    """Elements that all shards of a record together observe."""
    return math.prod(record.frame if record.frame != (0, 0) else record.shape)


def _partial(record: Record) -> bool:
    return record.moments is not None and record.moments.count != _elements(record)


def merge_records(records: Sequence[Record], names: Sequence[str]) -> Record:
    """One record of what the shards hold under one key; at least one, each with the name of its golden.

    Raises:
        UsageError: as `merge_step`.
    """
    first = records[0]
    for other, name in zip(records[1:], names[1:], strict=True):
        for field in ("kind", "dtype", "shape", "rows", "frame"):
            ours, theirs = getattr(first, field), getattr(other, field)
            if ours != theirs:
                raise _unlike(
                    first.key, (names[0], name), f"the {field} is {ours!r} in one and {theirs!r} in the other"
                )
    if not any(_partial(record) for record in records):
        for other, name in zip(records[1:], names[1:], strict=True):
            if not same_bits(first, other):
                raise _unlike(first.key, (names[0], name), _NO_SHARE)
        return first
    return _added(records, names)


def _added(records: Sequence[Record], names: Sequence[str]) -> Record:
    first = records[0]
    if any(record.moments is None for record in records):
        raise _unlike(first.key, names, "a shard has no moments, so that its share is not known")
    if any(record.value is not None for record in records):
        raise _unlike(first.key, names, "values of shards do not add up; record them without --values, or unsharded")
    if len({record.sketch is None for record in records}) == 2:
        raise _unlike(first.key, names, "some shards have a sketch and some have none")
    moments = add_moments([record.moments for record in records if record.moments is not None])
    if moments.count != (whole := _elements(first)):
        what = "overlap: is it recorded twice?" if moments.count > whole else "leave a gap: is a shard missing?"
        raise _unlike(first.key, names, f"the shards' {moments.count} of {whole} elements {what}")
    sketches = [record.sketch for record in records if record.sketch is not None]
    return replace(first, moments=moments, sketch=add_sketches(sketches) if sketches else None)


def add_sketches(sketches: Sequence[np.ndarray]) -> np.ndarray:
    """The sketch of the whole from those of its shards: float32, added in float64. NaN and Inf propagate."""
    total = np.zeros(sketches[0].shape, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        for sketch in sketches:
            total += sketch
        return total.astype(np.float32)


def add_moments(parts: Sequence[Moments]) -> Moments:
    """The moments of the whole from those of its shards."""
    finite = [(part.count - part.nan - part.inf, part) for part in parts]
    seen = [(n, part) for n, part in finite if n]  # a shard of NaNs alone has no min, max or mean
    elements = sum(n for n, _ in seen)
    return Moments(
        count=sum(part.count for part in parts),
        nan=sum(part.nan for part in parts),
        inf=sum(part.inf for part in parts),
        min=min((part.min for _, part in seen), default=0.0),
        max=max((part.max for _, part in seen), default=0.0),
        mean=sum(part.mean * (n / elements) for n, part in seen) if seen else 0.0,
        l2=math.hypot(*(part.l2 for _, part in seen)),
    )


def _merge_floors(key: Key, floors: Sequence[Floor], added: bool, names: Sequence[str]) -> Floor:
    first = floors[0]
    shapes = {None if floor.bins is None else floor.bins.shape for floor in floors}
    if len(shapes) > 1:
        raise _unlike(key, names, "their floors have different row bins")
    if not added:
        if any(_floor_bits(floor) != _floor_bits(first) for floor in floors):
            raise _unlike(key, names, "both hold the whole of it, and their floors differ")
        return first
    # Rounding errors of different elements: their squares add, as those of any L2 norm do.
    squares = [np.square(floor.bins.astype(np.float64)) for floor in floors if floor.bins is not None]
    return Floor(
        math.hypot(*(floor.l2 for floor in floors)),
        np.sqrt(np.sum(squares, axis=0)).astype(np.float32) if squares else None,
        # hypot says inf where one is inf and another NaN; a floor that was not measured everywhere is not known.
        math.nan if any(math.isnan(floor.local_l2) for floor in floors) else math.hypot(*(f.local_l2 for f in floors)),
    )


def _floor_bits(floor: Floor) -> tuple[object, ...]:
    return repr(floor.l2), repr(floor.local_l2), repr(floor.linf), None if floor.bins is None else floor.bins.tobytes()


def same_bits(a: Record, b: Record) -> bool:
    """Whether two records hold the same, NaNs included."""
    return repr(a.moments) == repr(b.moments) and all(
        _equal_values(ours, theirs) for ours, theirs in ((a.sketch, b.sketch), (a.value, b.value))
    )


def _equal_values(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        kind = f"u{a.itemsize}"  # NaNs of equal bits are equal
        return a.dtype == b.dtype and np.array_equal(a.view(kind), b.view(kind))
    return type(a) is type(b) and repr(a) == repr(b)


def _unlike(key: Key, names: Sequence[str], what: str) -> UsageError:
    names = tuple(dict.fromkeys(names))
    return UsageError(f"{' and '.join(names)} cannot be merged at {key}: {what}")
