"""Goldens that somebody has changed, with or without making their checksums anew."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from parity.golden.disk.format import own_checksum
from parity.golden.disk.part import ROWS

PART = "step-0000.safetensors"
Document = dict[str, Any]
Damage = Callable[[Path], object]


def content(new: Callable[[bytes], bytes], file: str = PART) -> Damage:
    """A file with other bytes; golden.json lists the old ones."""
    return lambda folder: (folder / file).write_bytes(new((folder / file).read_bytes()))


def resealed(change: Callable[[Document], object]) -> Damage:
    """golden.json changed as a forger would: its own checksum is right again."""

    def damage(folder: Path) -> None:
        document = json.loads((folder / "golden.json").read_text())
        change(document)
        document["sha256"] = own_checksum(document)
        (folder / "golden.json").write_text(json.dumps(document))

    return damage


def listed(**fields: object) -> Damage:
    """Other fields of step 0 in the list of parts."""
    return resealed(lambda document: next(part for part in document["parts"] if part["step"] == 0).update(fields))


def forged(new: Callable[[bytes], bytes]) -> Damage:
    """Another part of step 0, listed with the right size and checksum."""

    def damage(folder: Path) -> None:
        data = new((folder / PART).read_bytes())
        (folder / PART).write_bytes(data)
        listed(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())(folder)

    return damage


def split(data: bytes) -> tuple[Document, bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: object, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def header(change: Callable[[Document], object]) -> Damage:
    """A forged part whose safetensors header is changed."""

    def new(data: bytes) -> bytes:
        fields, body = split(data)
        change(fields)
        return joined(fields, body)

    return forged(new)


def rows(change: Callable[[list[list[Any]]], object]) -> Damage:
    """A forged part whose names of records are changed: (stage, branch, site, call, kind, dtype, shape, rows, frame,
    value, moments, sketch, held, floor, bins) of each."""

    def changed(fields: Document) -> None:
        found = json.loads(fields["__metadata__"][ROWS])
        change(found)
        fields["__metadata__"][ROWS] = json.dumps(found)

    return header(changed)


def column(name: str, change: Callable[[np.ndarray], object]) -> Damage:
    """A forged part with other numbers in a column."""

    def new(data: bytes) -> bytes:
        fields, body = split(data)
        start, end = fields[name]["data_offsets"]
        dtype = {"F32": np.float32, "F64": np.float64, "I64": np.int64}[fields[name]["dtype"]]
        numbers = np.frombuffer(body[start:end], dtype).reshape(fields[name]["shape"]).copy()
        change(numbers)
        return joined(fields, body[:start] + numbers.tobytes() + body[end:])

    return forged(new)
