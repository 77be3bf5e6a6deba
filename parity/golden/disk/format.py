"""The golden on disk: its names, its limits and `golden.json`.

Problem. A golden is trusted months later, on a machine that has only the folder: it must say what it is, what it holds
and which run it came from, and a reader must notice whatever was damaged, cut off, swapped or forged.

How. `golden.json` lists the parts with sizes and SHA-256 checksums beside the provenance, and holds a checksum of
itself; it is rewritten whole after each part, so it never names a part that is not there. A part's file name follows
from its step, so a golden cannot name a file outside itself. Format version 1 is described in
`docs/formats.md`. A reader refuses newer versions and unknown fields; `Provenance` may gain fields with defaults
within a version.

Cost. `golden.json` holds no records: a few hundred bytes a part, and the fingerprints of the weights.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

from parity.errors import UsageError
from parity.golden.disk.codec import MAX_RECORDS, MAX_STEP
from parity.golden.records import Provenance
from parity.golden.strict import (
    BOOL,
    COUNT,
    TEXT,
    MalformedError,
    Schema,
    as_int,
    choice,
    integer,
    listed,
    mapping,
    members,
    parse,
    row,
    shown,
)
from parity.redact import without_secrets

FORMAT = 1
KIND = "parity-golden"
MANIFEST = "golden.json"
MAX_MANIFEST = 64 * 2**20
"""Bytes of `golden.json` at most: 100,000 weights and modules come to some 20 MB."""
MAX_PART = 2**50
MAX_PARTS = 100_000
MAX_SHARDS = 1_000_000
_CHECKSUM = re.compile(r"[0-9a-f]{64}")


def part_name(step: int) -> str:
    """The file name of a step's part: `before.safetensors` for step -1, `step-0007.safetensors` for step 7."""
    return "before.safetensors" if step < 0 else f"step-{step:04d}.safetensors"


@dataclass(frozen=True, slots=True)
class Part:
    """One part as `golden.json` lists it.

    Attributes:
        step: the step it holds; -1 for what happens before the loop.
        bytes: its size.
        sha256: of the whole file, 64 hexadecimal digits.
        records: how many records it holds.
    """

    step: int
    bytes: int
    sha256: str
    records: int

    @property
    def file(self) -> str:
        return part_name(self.step)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `golden.json`.

    Attributes:
        parts: by rising step.
        complete: whether the recording ended by itself.
    """

    provenance: Provenance
    parts: tuple[Part, ...] = ()
    complete: bool = False


def damaged(where: str, what: object) -> UsageError:
    """The error for a file that is not what its golden or the format says."""
    return UsageError(f"{where}: {what}; the file is damaged or was changed: copy the golden again or record it again")


_PART = members(
    {
        "step": integer(-1, MAX_STEP),
        "file": TEXT,
        "bytes": integer(0, MAX_PART),
        "sha256": TEXT,
        "records": integer(0, MAX_RECORDS),
    }
)
_BY_TYPE: Mapping[Any, Schema[Any]] = {
    str: TEXT,
    int: integer(-(2**63)),
    Mapping[str, str]: mapping(TEXT),
    tuple[str, ...]: listed(TEXT, MAX_SHARDS),
    tuple[int, int]: row(COUNT, COUNT),
}
"""Annotation of a field of Provenance -> how it stands in `golden.json`: the dataclass itself says what is allowed."""
_FIELDS = {f.name: _BY_TYPE[get_type_hints(Provenance)[f.name]] for f in fields(Provenance)}
_FIELDS["steps"] = integer(0, MAX_STEP)  # schedules are made whole, by whoever reads the golden
_REQUIRED = {f.name for f in fields(Provenance) if f.default is MISSING and f.default_factory is MISSING}
_PROVENANCE = members(
    {name: item for name, item in _FIELDS.items() if name in _REQUIRED},
    {name: item for name, item in _FIELDS.items() if name not in _REQUIRED},
)
_DOCUMENT = members(
    {
        "kind": choice(KIND),
        "format": integer(FORMAT, FORMAT),
        "complete": BOOL,
        "parts": listed(_PART, MAX_PARTS),
        "provenance": _PROVENANCE,
        "sha256": TEXT,
    }
)


def encode_manifest(manifest: Manifest) -> bytes:
    """`golden.json` of a manifest: the same manifest gives the same bytes.

    Raises:
        MalformedError: the provenance does not fit the format.
    """
    parts = [
        {"step": part.step, "file": part.file, "bytes": part.bytes, "sha256": part.sha256, "records": part.records}
        for part in sorted(manifest.parts, key=lambda part: part.step)
    ]
    provenance = {name: _ordered(name, getattr(manifest.provenance, name)) for name in _FIELDS}
    provenance["model"] = without_secrets(str(provenance["model"]))
    document = {
        "kind": KIND,
        "format": FORMAT,
        "complete": manifest.complete,
        "parts": parts,
        "provenance": provenance,
        "sha256": "",
    }
    document = _DOCUMENT.write(document)
    _provenance(_PROVENANCE.read(document["provenance"], "provenance"))  # what is written can be read
    document["sha256"] = own_checksum(document)
    encoded = (json.dumps(document, indent=1) + "\n").encode("ascii")
    as_int(len(encoded), f"the size of {MANIFEST}", most=MAX_MANIFEST)
    return encoded


def own_checksum(document: Mapping[str, Any]) -> str:
    """SHA-256 of the document but for its own entry, whatever its spacing: one wrong digit of a seed is noticed."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, separators=(",", ":")).encode("ascii")).hexdigest()


def _ordered(name: str, value: Any) -> Any:
    """Sorted, so that two equal runs agree; but the module tree's own order says more than the alphabet's."""
    return dict(sorted(value.items())) if isinstance(value, Mapping) and name != "modules" else value


def decode_manifest(data: bytes, where: str) -> Manifest:
    """The manifest in `data`.

    Args:
        where: the file's name for messages.

    Raises:
        UsageError: it is not a golden, from a newer parity, or damaged.
    """
    try:
        document = parse(data)
    except MalformedError as error:
        raise damaged(where, error) from None
    if document.get("kind") != KIND:
        raise UsageError(f'{where}: this is not a golden (it has no "kind": "{KIND}"); give the folder of one')
    version = document.get("format")
    if type(version) is int and version > FORMAT:
        raise UsageError(
            f"{where}: format {shown(version)} is newer than {FORMAT}, which this parity reads; upgrade it"
        )
    try:
        as_int(version, "the format", least=FORMAT, most=FORMAT)
        return _decode_document(document)
    except MalformedError as error:
        raise damaged(where, error) from None


def _decode_document(document: dict[str, Any]) -> Manifest:
    found = _DOCUMENT.read(document, "")
    parts = tuple(_part(entry, index) for index, entry in enumerate(found["parts"]))
    if any(a.step >= b.step for a, b in itertools.pairwise(parts)):
        raise MalformedError("its parts are not in order of their steps, each once")
    provenance = _provenance(found["provenance"])
    if found["sha256"] != own_checksum(document):
        raise MalformedError("its content does not match its own checksum")
    return Manifest(provenance, parts, found["complete"])


def _part(entry: dict[str, Any], index: int) -> Part:
    step, file, checksum = entry["step"], entry.pop("file"), entry["sha256"]
    if file != part_name(step):
        raise MalformedError(f"parts[{index}] names the file {shown(file)} instead of {part_name(step)}")
    if not _CHECKSUM.fullmatch(checksum):
        raise MalformedError(f"the checksum of parts[{index}] is {shown(checksum)}, not 64 hexadecimal digits")
    return Part(**entry)


def _provenance(entry: dict[str, Any]) -> Provenance:
    # A model may be named by a URL; its secrets go no further, whoever wrote them.
    provenance = Provenance(**{**entry, "model": without_secrets(entry["model"])})
    index, count = provenance.shard
    if not 0 <= index < count <= MAX_SHARDS:
        raise MalformedError(f"provenance.shard {[index, count]} is not an index below a count")
    return provenance


def first_difference(a: Provenance, b: Provenance, ignore: tuple[str, ...] = ()) -> str | None:
    """The first field, and within it the first name, in which two runs differ, with both values; None where none."""
    for field in fields(Provenance):
        ours, theirs = getattr(a, field.name), getattr(b, field.name)
        if field.name in ignore or ours == theirs:
            continue
        if isinstance(ours, dict) and isinstance(theirs, dict):
            name = min(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
            return f"{field.name}[{name}]: {shown(ours.get(name))} and {shown(theirs.get(name))}"
        return f"{field.name}: {shown(ours)} and {shown(theirs)}"
    return None
