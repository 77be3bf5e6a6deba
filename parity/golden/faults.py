"""What known faults would do to what was recorded, kept beside a golden: a golden of its own in its folder.

A reference that was recorded in a script cannot be run again where two recordings are compared. So the recording runs
its first step, and its decoder, under each known fault, and keeps what that gave: records as of the step itself, with
the fault's name behind their stage (`transformer attention.mask=none`). Several faults at once have a `+` between them.
The checksums of the parts that they belong to stand among its inputs, so that those of a golden that was replaced since
are not taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace

from parity.golden.disk.read import Golden, read_manifest
from parity.golden.disk.store import open_store
from parity.golden.disk.write import GoldenWriter
from parity.records import Record, StepRecords

FOLDER = "faults"
"""Within the golden's own."""
_AND = "+"
NOT_DIVIDED = "vae.scaling=none"
"""Kept beside each fault of a decoder: a port that forgets the division often has another fault too."""

Faults = frozenset[str]
"""`setting=value` of those that a run had."""


def place(where: str | os.PathLike[str]) -> str:
    """Where the faults of a golden lie."""
    return f"{os.fspath(where).rstrip('/')}/{FOLDER}"


def write_faults(where: str | os.PathLike[str], steps: Mapping[int, Mapping[Faults, Iterable[Record]]]) -> None:
    """Keep what was recorded under known faults.

    Args:
        where: of the golden that they belong to, which is there. steps: step -> faults -> their records.
    """
    own = Golden.open(where)
    origin = replace(own.provenance, inputs={str(step): _checksum(own, step) for step in steps})
    with GoldenWriter(place(where), origin, overwrite=True) as writer:
        for step in sorted(steps):
            found = (
                replace(r, key=replace(r.key, stage=f"{r.key.stage} {_AND.join(sorted(faults))}"))
                for faults, records in steps[step].items()
                for r in records
            )
            writer.write_step(StepRecords(step, tuple(found)))


def kept_faults(where: str | os.PathLike[str], step: int, stage: str) -> dict[Faults, StepRecords]:
    """What a stage of a step gave under each known fault; empty where nothing was kept of it.

    Raises:
        UsageError: what is there is damaged.
    """
    if read_manifest(open_store(place(where))) is None:
        return {}
    golden = Golden.open(place(where))
    if step not in golden.steps or golden.provenance.inputs.get(str(step)) != _checksum(Golden.open(where), step):
        return {}
    found: dict[Faults, list[Record]] = {}
    for record in golden.read_step(step).records:
        own, _, names = record.key.stage.partition(" ")
        if own == stage and names:
            at = frozenset(names.split(_AND))
            found.setdefault(at, []).append(replace(record, key=replace(record.key, stage=own)))
    return {faults: StepRecords(step, tuple(records)) for faults, records in found.items()}


def _checksum(golden: Golden, step: int) -> str:
    """Of a step's part; empty where there is none."""
    return next((part.sha256 for part in golden.manifest.parts if part.step == step), "")
