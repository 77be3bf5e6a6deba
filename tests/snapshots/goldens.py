"""The committed golden, read and written again: the same bytes, and the same records once they are decoded.

    python -m tests.snapshots goldens [record]

The digests are of what a reader returns, so that a decoder that changes what it reads is noticed even where the
writer changes it back.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import astuple
from pathlib import Path

import numpy as np

from parity.golden import Golden, GoldenWriter, Record, StepRecords

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "golden" / "tiny-hunyuan-video-1.5"
DIGESTS = Path(__file__).with_name("golden_digests.json")


def rewritten(where: Path, golden: Path = GOLDEN) -> None:
    """Read a golden and write it again."""
    opened = Golden.open(golden)
    with GoldenWriter(where, opened.provenance) as writer:
        for step in opened.steps:
            writer.write_step(opened.read_step(step))


def unequal_files(golden: Path = GOLDEN) -> list[str]:
    """Files of a golden that are other bytes once they were read and written again."""
    with tempfile.TemporaryDirectory() as folder:
        rewritten(Path(folder) / "again", golden)
        again = {file.name: file.read_bytes() for file in (Path(folder) / "again").iterdir()}
    files = {file.name: file.read_bytes() for file in golden.iterdir()}
    return sorted(name for name in {**files, **again} if files.get(name) != again.get(name))


def digests(golden: Path = GOLDEN) -> dict[str, str]:
    """A digest of each record by its key."""
    opened = Golden.open(golden)
    found = {}
    for number in opened.steps:
        step = opened.read_step(number)
        for record in step.records:
            key = record.key
            name = f"{key.stage} {key.step} {key.branch or '-'} {key.site}" + (f"#{key.call}" if key.call else "")
            found[name] = _digest(step, record)
    return found


def _digest(step: StepRecords, record: Record) -> str:
    floor = step.floors.get(record.key)
    plain = [record.kind, record.shape, record.dtype, record.rows, record.frame]
    plain += [None if record.moments is None else astuple(record.moments)]
    plain += [None if floor is None else (floor.l2, floor.local_l2)]
    content = hashlib.sha256(repr(plain).encode())
    for array in (record.sketch, record.value):
        if isinstance(array, np.ndarray):
            content.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        else:
            content.update(repr(array).encode())
    return content.hexdigest()[:16]


def remember() -> None:
    """Keep the digests of today's reader."""
    DIGESTS.write_text(json.dumps(digests(), indent=1) + "\n")


def differences() -> list[str]:
    """What is not as it was; empty where nothing is."""
    found = [f"golden: {name} is other bytes when it is written again" for name in unequal_files()]
    old, new = json.loads(DIGESTS.read_text()), digests()
    found += [f"golden: {name} is decoded otherwise" for name in old if name in new and old[name] != new[name]]
    found += [f"golden: {name} is gone" for name in old if name not in new]
    return found + [f"golden: {name} is new" for name in new if name not in old]
