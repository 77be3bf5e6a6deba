"""Merging goldens: shards of one tensor add up, disjoint steps stand side by side, and everything else is refused.

Problem. A run on many hosts leaves one golden a process, each with sketches of its own shards; a long run may be
recorded in pieces. The diff wants one golden.

How. `plan_merge` decides from provenances alone which parts make up each step; `parity.golden.shards` adds one step's
records up; `merge` does both, first for every step without writing anything, so that a conflict leaves nothing behind.

Cost. Two reads of the parts, memory of one step of all shards.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parity.errors import UsageError
from parity.golden.read import Golden
from parity.golden.records import Provenance, StepRecords
from parity.golden.shards import merge_step
from parity.golden.write import GoldenWriter, first_difference

_MAY_DIFFER = ("command", "devices", "shard")


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
    """Merge goldens into a new one at `out`; paths or URLs.

    Raises:
        UsageError: a conflict, with the names of what conflicts; a damaged part; a golden at `out` already.
    """
    goldens = [Golden.open(part) for part in parts]
    plan = plan_merge([Source(g.name, g.provenance, g.steps, g.complete) for g in goldens])

    def merged(step: int) -> StepRecords:
        held = [goldens[index] for index in plan.steps[step]]
        return merge_step([golden.read_step(step) for golden in held], [golden.name for golden in held])

    for step in plan.steps:
        merged(step)
    with GoldenWriter(out, plan.provenance) as writer:
        for step in plan.steps:
            writer.write_step(merged(step))
