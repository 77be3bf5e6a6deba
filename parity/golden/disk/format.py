"""The golden on disk: its names, its limits and `golden.json`.

`golden.json` lists the parts with sizes and SHA-256 checksums beside the provenance, and holds a checksum of itself; it
is rewritten whole after each part, so it never names a part that is not there. A part's file name follows from its
step, so a golden cannot name a file outside itself. `docs/formats.md` describes it. A reader refuses other versions and
unknown names; `Provenance` may gain fields with defaults within a version.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any

import msgspec

from parity.errors import MalformedError, UsageError, shown
from parity.golden.disk.part import MAX_RECORDS, MAX_STEP
from parity.records import Provenance
from parity.redact import without_secrets

FORMAT = 2
KIND = "parity-golden"
MANIFEST = "golden.json"
MAX_MANIFEST = 64 * 2**20
"""Bytes of `golden.json` at most: 100,000 weights and modules come to some 20 MB."""
MAX_SHARDS = 1_000_000


def part_name(step: int) -> str:
    """The file name of a step's part: `before.safetensors` for step -1, `step-0007.safetensors` for step 7."""
    return "before.safetensors" if step < 0 else f"step-{step:04d}.safetensors"


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part as `golden.json` lists it.

    Attributes:
        step: the step it holds; -1 for what happens before the loop. bytes: its size. sha256: of the whole file.
        records: how many it holds.
    """

    step: Annotated[int, msgspec.Meta(ge=-1, le=MAX_STEP)]
    bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    records: Annotated[int, msgspec.Meta(ge=0, le=MAX_RECORDS)]

    @property
    def file(self) -> str:
        return part_name(self.step)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `golden.json`.

    Attributes:
        complete: whether the recording ended by itself. parts: by rising step. sha256: of all but itself.
    """

    kind: str = KIND
    format: int = FORMAT
    complete: bool = False
    parts: Annotated[tuple[Part, ...], msgspec.Meta(max_length=100_000)] = ()
    provenance: Provenance
    sha256: str = ""


def damaged(where: str, what: object) -> UsageError:
    """The error for a file that is not what its golden or the format says."""
    return UsageError(f"{where}: {what}; the file is damaged or was changed: copy the golden again or record it again")


def encode_manifest(manifest: Manifest) -> bytes:
    """`golden.json` of a manifest: the same manifest gives the same bytes.

    Raises:
        MalformedError: the provenance does not fit the format.
    """
    try:
        document = msgspec.to_builtins(manifest, str_keys=True)
        told = document["provenance"]
        told["model"] = without_secrets(told["model"])
        for name in ("idle", "sites"):  # added within the version: what does not need it is written as before
            if not told[name]:
                del told[name]
        for name, value in told.items():  # equal runs agree; the module tree's own order says more than the alphabet's
            if isinstance(value, dict) and name != "modules":
                told[name] = dict(sorted(value.items()))
        document["sha256"] = own_checksum(document)
        _decoded(document)  # what is written can be read
        encoded = (json.dumps(document, indent=1) + "\n").encode("ascii")
    except (msgspec.MsgspecError, OverflowError, TypeError) as error:
        raise MalformedError(str(error)) from None
    if len(encoded) > MAX_MANIFEST:
        raise MalformedError(f"{MANIFEST} would have {len(encoded)} bytes, more than {MAX_MANIFEST}")
    return encoded


def own_checksum(document: Mapping[str, Any]) -> str:
    """SHA-256 of the document but for its own entry, whatever its spacing: one wrong digit of a seed is noticed."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, separators=(",", ":")).encode("ascii")).hexdigest()


def decode_manifest(data: bytes, where: str) -> Manifest:
    """The manifest in `data`.

    Args:
        where: the file's name for messages.

    Raises:
        UsageError: it is not a golden, of another version of the format, or damaged.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise damaged(where, f"it is not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise UsageError(f'{where}: this is not a golden (it has no "kind": "{KIND}"); give the folder of one')
    version = document.get("format")
    if type(version) is int and version != FORMAT:
        age, remedy = ("a newer", "upgrade this one") if version > FORMAT else ("an older", "record it again")
        raise UsageError(f"{where}: format {shown(version)} is of {age} parity; {remedy}")
    try:
        return _decoded(document)
    except (msgspec.MsgspecError, MalformedError, RecursionError) as error:
        raise damaged(where, error) from None


def _decoded(document: Mapping[str, Any]) -> Manifest:
    found = msgspec.convert(document, Manifest)
    if unknown := sorted(document["provenance"].keys() - {f.name for f in fields(Provenance)}):
        raise MalformedError(f"provenance has {shown(unknown[0])}, which this version of parity does not know")
    if any(a.step >= b.step for a, b in itertools.pairwise(found.parts)):
        raise MalformedError("its parts are not in order of their steps, each once")
    index, count = found.provenance.shard
    if not 0 <= index < count <= MAX_SHARDS:
        raise MalformedError(f"provenance.shard {[index, count]} is not an index below a count")
    if not 0 <= found.provenance.steps <= MAX_STEP:  # schedules are made whole, by whoever reads the golden
        raise MalformedError(f"provenance.steps is {found.provenance.steps}, not 0 to {MAX_STEP}")
    if found.sha256 != own_checksum(document):
        raise MalformedError("its content does not match its own checksum")
    # A model may be named by a URL; its secrets go no further, whoever wrote them.
    clean = replace(found.provenance, model=without_secrets(found.provenance.model))
    return msgspec.structs.replace(found, provenance=clean, sha256="")


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
