"""The golden on disk: its names, its limits and `golden.json`.

Problem. A golden is trusted months later, on a machine that has only the folder: it must say what it is, what it holds
and which run it came from, and a reader must notice whatever was damaged, cut off, swapped or forged.

How. `golden.json` lists the parts with sizes and SHA-256 checksums beside the provenance, and holds a checksum of
itself; it is rewritten whole after each part, so it never names a part that is not there. A part's file name follows
from its step, so a golden cannot name a file outside itself. Format version 1 is described in
`docs/golden-format.md`. A reader refuses newer versions and unknown fields; `Provenance` may gain fields with defaults
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
from parity.golden.codec import MAX_RECORDS, MAX_STEP
from parity.golden.records import Provenance
from parity.golden.strict import (
    MalformedError,
    as_bool,
    as_int,
    as_list,
    as_mapping,
    as_object,
    as_text,
    parse,
    shown,
)

FORMAT = 1
KIND = "parity-golden"
MANIFEST = "golden.json"
MAX_MANIFEST = 64 * 2**20
"""Bytes of `golden.json` at most: 100,000 weights and modules come to some 20 MB."""
MAX_PART = 2**50
MAX_PARTS = 100_000
MAX_SHARDS = 1_000_000
_DOCUMENT = frozenset({"kind", "format", "complete", "parts", "provenance", "sha256"})
_PART = frozenset({"step", "file", "bytes", "sha256", "records"})
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


def encode_manifest(manifest: Manifest) -> bytes:
    """`golden.json` of a manifest: the same manifest gives the same bytes.

    Raises:
        MalformedError: the provenance does not fit the format.
    """
    parts = [
        {"step": part.step, "file": part.file, "bytes": part.bytes, "sha256": part.sha256, "records": part.records}
        for part in sorted(manifest.parts, key=lambda part: part.step)
    ]
    provenance = {
        field.name: _encode_field(field.name, getattr(manifest.provenance, field.name)) for field in fields(Provenance)
    }
    _decode_provenance(provenance)  # what is written can be read
    document = {
        "kind": KIND,
        "format": FORMAT,
        "complete": manifest.complete,
        "parts": parts,
        "provenance": provenance,
    }
    document["sha256"] = own_checksum(document)
    encoded = (json.dumps(document, indent=1) + "\n").encode("ascii")
    as_int(len(encoded), f"the size of {MANIFEST}", most=MAX_MANIFEST)
    return encoded


def own_checksum(document: Mapping[str, Any]) -> str:
    """SHA-256 of the document but for its own entry, whatever its spacing: one wrong digit of a seed is noticed."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, separators=(",", ":")).encode("ascii")).hexdigest()


def _encode_field(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        # Sorted, so that two equal runs agree; but the module tree's own order says more than the alphabet's.
        return dict(value) if name == "modules" else {key: value[key] for key in sorted(value)}
    return list(value) if isinstance(value, tuple) else value


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
    as_object(document, "the document", _DOCUMENT)
    parts = tuple(_decode_part(entry, i) for i, entry in enumerate(as_list(document["parts"], "parts", MAX_PARTS)))
    if any(a.step >= b.step for a, b in itertools.pairwise(parts)):
        raise MalformedError("its parts are not in order of their steps, each once")
    provenance = _decode_provenance(document["provenance"])
    complete = as_bool(document["complete"], "complete")
    if document["sha256"] != own_checksum(document):
        raise MalformedError("its content does not match its own checksum")
    return Manifest(provenance, parts, complete)


def _decode_part(value: Any, index: int) -> Part:
    what = f"parts[{index}]"
    entry = as_object(value, what, _PART)
    step = as_int(entry["step"], f"the step of {what}", least=-1, most=MAX_STEP)
    if entry["file"] != part_name(step):
        raise MalformedError(f"{what} names the file {shown(entry['file'])} instead of {part_name(step)}")
    checksum = as_text(entry["sha256"], f"the checksum of {what}")
    if not _CHECKSUM.fullmatch(checksum):
        raise MalformedError(f"the checksum of {what} is {shown(checksum)}, not 64 hexadecimal digits")
    return Part(
        step,
        as_int(entry["bytes"], f"the size of {what}", most=MAX_PART),
        checksum,
        as_int(entry["records"], f"the number of records of {what}", most=MAX_RECORDS),
    )


def _decode_provenance(value: Any) -> Provenance:
    known = fields(Provenance)
    required = frozenset(f.name for f in known if f.default is MISSING and f.default_factory is MISSING)
    entry = as_object(value, "the provenance", required, frozenset(f.name for f in known))
    hints = get_type_hints(Provenance)
    decoded = {name: _decode_field(hints[name], held, f"provenance.{name}") for name, held in entry.items()}
    provenance = Provenance(**decoded)
    index, count = provenance.shard
    if not 0 <= index < count <= MAX_SHARDS:
        raise MalformedError(f"provenance.shard {[index, count]} is not an index below a count")
    return provenance


def _decode_field(hint: Any, value: Any, what: str) -> Any:
    """Check a value against the annotation of its field: `Provenance` itself says what is allowed."""
    if hint is str:
        return as_text(value, what)
    if hint is int:
        return as_int(value, what, least=-(2**63))
    if hint == Mapping[str, str]:
        return {name: as_text(text, f"{what}[{shown(name)}]") for name, text in as_mapping(value, what).items()}
    items = as_list(value, what, MAX_SHARDS)
    if hint == tuple[str, ...]:
        return tuple(as_text(item, what) for item in items)
    if hint == tuple[int, int]:
        if len(items) != 2:
            raise MalformedError(f"{what} should be two numbers")
        return tuple(as_int(item, what) for item in items)
    raise TypeError(f"{what}: a golden cannot hold a {hint}; teach parity.golden.format to")
