"""Reading a golden, local or remote, step by step; the explicit inputs that it carries; all that is wrong with it.

`golden.json` is read and checked when the golden is opened. A step's part is checked against its listed size and
checksum each time it is read, from the same map that is then handed out as arrays: what was checked is what is used.
Memory is that of one part's names; sketches and values are paged in as they are used.

Text encoders round otherwise on every machine, and one ulp of an embedding makes two goldens incomparable. So prompt
embeddings, masks and initial noise lie beside the parts, one tensor an input, for another machine to start from the
very same. What each of them must be stands in golden.json, which has a checksum of itself: the fingerprints of
`provenance.inputs`. A tensor that is missing, too many or of other bits is damage, so nothing is started from a wrong
input. Cost: some megabytes (40 MB for HunyuanVideo-1.5's embeddings), in memory while they are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from parity.errors import MalformedError, UsageError
from parity.golden.disk.format import MANIFEST, MAX_MANIFEST, Manifest, Part, damaged, decode_manifest
from parity.golden.disk.part import read_part, recorded_modules
from parity.golden.disk.shards import folder_of, merge_step, whole_manifest
from parity.golden.disk.store import MissingError, Store, open_store
from parity.golden.disk.tensors import read_tensors
from parity.golden.fingerprint import fingerprint
from parity.records import LOOP_STAGE, SCHEDULE, Array, Provenance, StepRecords

_CODE = re.compile(r"\.py(:\w+)?$")
"""A script, or a port."""

INPUTS = "inputs.safetensors"
MOST = 1 << 32
"""Bytes of inputs that are read at most."""
NOISE = "noise"


def read_manifest(store: Store) -> Manifest | None:
    """The manifest in a store; None where there is no `golden.json`."""
    content = store.read(MANIFEST, MAX_MANIFEST)
    return None if content is None else decode_manifest(content, f"{store.name}/{MANIFEST}")


@contextlib.contextmanager
def mapped_part(store: Store, part: Part) -> Iterator[tuple[Path, memoryview]]:
    """A part and a path to it (`Store.mapped`), with size and checksum as listed."""
    with store.mapped(part.file, part.bytes, part.bytes) as (path, buffer):
        if hashlib.sha256(buffer).hexdigest() != part.sha256:
            raise damaged(f"{store.name}/{part.file}", "its content does not match the checksum in golden.json")
        yield path, buffer


@dataclass(frozen=True, slots=True)
class Golden:
    """Records on disk, with their floors and provenance.

        golden = Golden.open("gs://bucket/run-7")
        for step in golden.steps:
            compare(golden.read_step(step))

    Attributes:
        name: the path or URL as it was given, for messages.
        manifest: what `golden.json` says.
        store: where it lies; of shards where the first lies.
        shards: what several processes recorded (`WHERE/shard-0`, ...), each its share: together they are this golden.
        first, count: where some of several generations begin, and how many steps they have, of which alone this is then
            the golden; its steps count from 0. scheduled: steps of the schedule that the first of them has.
    """

    name: str
    manifest: Manifest
    store: Store
    shards: tuple[Golden, ...] = ()
    first: int = 0
    count: int | None = None
    scheduled: int = 0

    @classmethod
    def open(cls, where: str | os.PathLike[str]) -> Golden:
        """The golden at a path or URL, or the one that shards there make up; reads `golden.json` alone.

        Raises:
            UsageError: there is none, or it is damaged, foreign or from a newer parity; a shard that is missing.
        """
        store = open_store(where)
        manifest = read_manifest(store)
        if manifest is None:
            first = open_store(folder_of(os.fspath(where), 0))
            if (found := read_manifest(first)) is not None:
                shards = [cls.open(folder_of(os.fspath(where), i)) for i in range(found.provenance.shard[1])]
                whole = whole_manifest([shard.manifest for shard in shards], [shard.name for shard in shards])
                return cls(store.name, whole, first, tuple(shards))
            if store.name.endswith(f"/{MANIFEST}"):
                raise UsageError(f"{store.name}: a golden is a folder; name the one that this file lies in")
            if _CODE.search(store.name):
                raise UsageError(
                    f"{store.name}: this is code and no golden; `parity diff GOLDEN FILE.py:FUNCTION` records a port "
                    "and compares it"
                )
            raise UsageError(
                f"{store.name}: there is no golden here (no {MANIFEST}); check the path, or record one: parity record"
            )
        return cls(store.name, manifest, store)

    @property
    def provenance(self) -> Provenance:
        own = self.manifest.provenance
        return own if self.count is None or not own.steps else replace(own, steps=self.scheduled)

    @property
    def complete(self) -> bool:
        """Whether the recording ended by itself; a killed one holds its whole steps only."""
        return self.manifest.complete

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps held, rising; -1 first where something was recorded before the loop."""
        held = tuple(part.step for part in self.manifest.parts)
        if self.count is None:
            return held
        around = tuple(step for step in held if step < 0 and self.complete)  # else it is of those before
        return around + tuple(range(self.count))

    @property
    def loop(self) -> tuple[int, ...]:
        """The steps of the loop."""
        return tuple(step for step in self.steps if step >= 0)

    @property
    def generations(self) -> list[int]:
        """How many steps each has, of which the first holds the schedule; none where the first step of all does not.
        All parts are read."""
        held = {step: recorded_modules(self.read_step(step).records, LOOP_STAGE) for step in self.loop}
        begins = [step for step, modules in held.items() if SCHEDULE in modules]
        ends = itertools.pairwise([*begins, len(held)]) if begins[:1] == [0] else ()
        return [end - begin for begin, end in ends]

    @property
    def bytes(self) -> int:
        """Size of all parts together."""
        return sum(part.bytes for part in self.manifest.parts)

    def read_step(self, step: int) -> StepRecords:
        """The records and floors of one step, each made when it is asked for.

        Sketches and values are read-only views of the mapped part. A bfloat16 value comes as a float32 copy, exact,
        with `dtype` `bfloat16` on its record.

        Raises:
            UsageError: the step is not held, or its part is missing, damaged or another's.
        """
        if self.first and step >= 0:
            return replace(self, first=0, count=None).read_step(self.first + step).at(step)
        part = self._part(step)
        if self.shards:
            return merge_step([shard.read_step(step) for shard in self.shards], [shard.name for shard in self.shards])
        where = f"{self.name}/{part.file}"
        try:
            with mapped_part(self.store, part) as (path, buffer):
                records = read_part(path, buffer, step)
        except MalformedError as error:
            raise damaged(where, error) from None
        if len(records.records) != part.records:
            raise damaged(where, f"it holds {len(records.records)} records where golden.json lists {part.records}")
        return records

    def _part(self, step: int) -> Part:
        for part in self.manifest.parts:
            if part.step == step:
                return part
        held = ", ".join(map(str, self.steps)) or "none"
        raise UsageError(f"{self.name}: there is no step {step} in this golden; it holds: {held}")


def read_inputs(golden: Golden) -> dict[str, Array] | None:
    """The inputs that a golden carries; None where it has no such file.

    Raises:
        UsageError: the file is damaged, or is not what golden.json says.
    """
    where = f"{golden.name}/{INPUTS}"
    try:
        with golden.store.mapped(INPUTS, None, MOST) as (path, buffer):
            metadata, arrays = read_tensors(path, buffer)
        dtypes = msgspec.json.decode(metadata.get("dtypes", "{}"), type=dict[str, str])
        found = {name: Array(held.values, dtypes[name]) for name, held in arrays.items()}
    except MissingError:
        return None
    except (MalformedError, KeyError, msgspec.MsgspecError) as error:
        raise damaged(where, str(error)) from None
    expected = golden.provenance.inputs
    for name in sorted(found.keys() | expected.keys()):
        if name not in found or name not in expected:
            raise damaged(where, f"'{name}' is in {'it' if name in found else 'golden.json'} alone")
        if fingerprint(found[name].values) != expected[name]:
            raise damaged(where, f"'{name}' does not match its fingerprint in golden.json")
    return found


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a golden.

    Attributes:
        file: the file it was found in.
        message: what is wrong and what to do, a sentence for people.
    """

    file: str
    message: str


def verify(where: str | os.PathLike[str]) -> list[Problem]:
    """All that is wrong with the golden at a path or URL; empty where it can be trusted.

    Bad data is reported, not raised.
    """
    try:
        golden = Golden.open(where)
    except UsageError as error:
        return [Problem(MANIFEST, str(error))]
    where, found = f"{golden.name}/{MANIFEST}", []
    if not golden.complete:
        held = ", ".join(map(str, golden.steps)) or "none"
        message = f"{where}: the recording was not finished (steps held: {held}); go on with --resume"
        found.append(Problem(MANIFEST, message))
    elif not golden.steps:
        found.append(Problem(MANIFEST, f"{where}: it holds no steps at all; record it again"))
    for part in golden.manifest.parts:
        try:
            golden.read_step(part.step)
        except UsageError as error:
            found.append(Problem(part.file, str(error)))
    try:
        read_inputs(golden)
    except UsageError as error:
        found.append(Problem(INPUTS, str(error)))
    return found
