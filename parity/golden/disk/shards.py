"""Shards of a golden: several processes record one run, each its own share, and together they are one golden.

Where a tensor is split over processes, each records the sketch and moments of its own block under the same key; where
it is replicated, each records all of it. A sketch is linear, so the shards' sketches add; moments combine. Element
counts say which of the two a record is: the counts of shards must come to the number of elements of the whole frame,
and a tensor that every process held whole must be the same bits in each, and is kept once.
"""

from __future__ import annotations

import graphlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from parity.errors import UsageError
from parity.golden.disk.format import Manifest, Part, first_difference
from parity.records import Floor, Key, Moments, Record, StepRecords

_MAY_DIFFER = ("command", "devices", "shard")
_NO_SHARE = (
    "both hold the whole of it, and what they hold differs (a share that nothing says is one: choose sites without it, "
    "or keep it a DTensor, use_local_output=False)"
)


def folder_of(where: str, shard: int) -> str:
    """Where a process records its share of the golden at `where`."""
    return f"{where.rstrip('/')}/shard-{shard}"


def whole_manifest(shards: Sequence[Manifest], names: Sequence[str]) -> Manifest:
    """The manifest of the golden that shards make up: the steps that each of them holds.

    Args:
        shards: in their order, at least one. names: of each, for messages.

    Raises:
        UsageError: they are of different runs, or one lies in the place of another.
    """
    first = shards[0].provenance
    for index, (shard, name) in enumerate(zip(shards, names, strict=True)):
        made = shard.provenance
        if made.shard != (index, len(shards)):
            raise UsageError(f"{name}: it is shard {made.shard[0]} of {made.shard[1]}; restore each to its own place")
        if difference := first_difference(first, made, _MAY_DIFFER):
            raise UsageError(
                f"{names[0]} and {name} are of different runs, with {difference}; keep the shards of one run together"
            )
    held = [{part.step: part for part in shard.parts} for shard in shards]
    common = [step for step in held[0] if all(step in parts for parts in held)]
    devices = tuple(dict.fromkeys(itertools.chain(*(shard.provenance.devices for shard in shards))))
    return Manifest(
        provenance=replace(first, devices=devices, shard=(0, 1)),
        parts=tuple(_whole_part([parts[step] for parts in held]) for step in common),
        complete=all(shard.complete for shard in shards) and all(len(parts) == len(common) for parts in held),
    )


def _whole_part(parts: Sequence[Part]) -> Part:
    """What shards list of one step, as one line."""
    return msgspec.structs.replace(
        parts[0],
        bytes=sum(part.bytes for part in parts),
        records=max(part.records for part in parts),
        sha256="".join(part.sha256 for part in parts),
    )


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
    for field in ("kind", "dtype", "shape", "rows", "frame"):
        one, *others = dict.fromkeys(getattr(record, field) for record in records)
        if others:
            raise _unlike(first.key, names, f"the {field} is {one!r} in one and {others[0]!r} in the other")
    if not any(map(_partial, records)):
        if len({_bits(record.moments, record.sketch, record.value) for record in records}) > 1:
            raise _unlike(first.key, names, _NO_SHARE)
        return first
    sketches = [record.sketch for record in records if record.sketch is not None]
    parts = [record.moments for record in records if record.moments is not None]
    if len(parts) < len(records) or len(sketches) not in (0, len(records)) or any(r.value is not None for r in records):
        raise _unlike(first.key, names, "shares add up by moments and sketches; record without --values, or unsharded")
    moments = add_moments(parts)
    if moments.count != (whole := _elements(first)):
        what = "overlap: is it recorded twice?" if moments.count > whole else "leave a gap: is a shard missing?"
        raise _unlike(first.key, names, f"the shards' {moments.count} of {whole} elements {what}")
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and Inf propagate
        sketch = np.add.reduce(sketches, axis=0, dtype=np.float64).astype(np.float32) if sketches else None
    return replace(first, moments=moments, sketch=sketch)


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
    if len({None if floor.bins is None else floor.bins.shape for floor in floors}) > 1:
        raise _unlike(key, names, "their floors have different row bins")
    if not added:
        if len({_bits(floor.l2, floor.linf, floor.bins) for floor in floors}) > 1:
            raise _unlike(key, names, "both hold the whole of it, and their floors differ")
        return floors[0]
    # Rounding errors of different elements: their squares add, as those of any L2 norm do.
    squares = [np.square(floor.bins.astype(np.float64)) for floor in floors if floor.bins is not None]
    return Floor(
        math.hypot(*(floor.l2 for floor in floors)),
        np.sqrt(np.sum(squares, axis=0)).astype(np.float32) if squares else None,
    )


def _bits(*values: object) -> tuple[object, ...]:
    """What values hold, to be compared: NaNs of equal bits are equal."""
    return tuple((x.dtype, x.shape, x.tobytes()) if isinstance(x, np.ndarray) else (type(x), repr(x)) for x in values)


def _unlike(key: Key, names: Sequence[str], what: str) -> UsageError:
    names = tuple(dict.fromkeys(names))
    return UsageError(f"{' and '.join(names)} do not add up at {key}: {what}")
