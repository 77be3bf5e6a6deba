"""Goldens damaged with care: what their checksums cannot show, since whoever changed them made them anew."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.golden.disk.format import own_checksum
from tests.fuzz.outcome import computed, corpus, damaged, ends, fuzzed
from tests.support.made import pair

pytestmark = pytest.mark.slow

ODD = st.sampled_from(
    [None, True, -1, 0, 2**31, 10**9, 2**63, 10**400, 1e308, 0.5, "", "\ud800", "\x1b[2J", "nan", "../x", "a" * 5000,
     [], {}, [[]], {"": ""}, "https://me:secret@host/m"]
)  # fmt: skip
NUMBERS = st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 0.0])
Step = str | int


def paths_of(value: Any, at: tuple[Step, ...] = ()) -> list[tuple[Step, ...]]:
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [at, *(path for name, x in inner for path in paths_of(x, (*at, name)))]


def put(document: Any, path: tuple[Step, ...], value: Any) -> Any:
    if not path:
        return value
    made = copy.copy(document)
    made[path[0]] = put(made[path[0]], path[1:], value)
    return made


@dataclass(frozen=True)
class Part:
    """The first part of a golden, taken apart: the header of a safetensors file, and the tensors behind it."""

    header: dict[str, Any]
    tensors: bytes

    @classmethod
    def read(cls, folder: Path) -> Part:
        raw = (folder / json.loads((folder / "golden.json").read_text())["parts"][0]["file"]).read_bytes()
        length = int.from_bytes(raw[:8], "little")
        return cls(json.loads(raw[8 : 8 + length]), raw[8 + length :])

    @property
    def records(self) -> Any:
        """What parity itself put into the header."""
        return json.loads(self.header["__metadata__"]["parity"])

    def written(self) -> bytes:
        text = json.dumps(self.header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + self.tensors


PLACES = ("manifest", "records", "header", "tensors")


def document_in(folder: Path, place: str) -> Any:
    """What can be changed at a place; the tensors as their numbers of 32 bits."""
    if place == "manifest":
        return json.loads((folder / "golden.json").read_text())
    part = Part.read(folder)
    return part.records if place == "records" else part.header if place == "header" else [0] * (len(part.tensors) // 4)


def changed(part: Part, place: str, path: tuple[Step, ...], value: Any) -> Part:
    if place == "records":
        inner = json.dumps(put(part.records, path, value), separators=(",", ":"))
        return replace(part, header=put(part.header, ("__metadata__", "parity"), inner))
    if place == "header":
        return replace(part, header=put(part.header, path, value))
    at = 4 * int(path[0])
    return replace(part, tensors=part.tensors[:at] + struct.pack("<f", value) + part.tensors[at + 4 :])


def rewritten(folder: Path, place: str, path: tuple[Step, ...], value: Any) -> bool:
    """Change a golden, and make all checksums anew; whether that could be done."""
    manifest = document_in(folder, "manifest")
    try:
        if place == "manifest":
            manifest = put(manifest, path, value)
        else:
            content = changed(Part.read(folder), place, path, value).written()
            listed = manifest["parts"][0]
            (folder / listed["file"]).write_bytes(content)
            manifest["parts"][0] = listed | {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if isinstance(manifest, dict):
            manifest["sha256"] = own_checksum(manifest)
    except (OSError, ValueError, KeyError, IndexError, TypeError, OverflowError, struct.error):
        return False
    (folder / "golden.json").write_text(json.dumps(manifest))
    return True


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return pair(tmp_path_factory.mktemp("goldens"))


Change = tuple[str, tuple[Step, ...], Any]


def checked(sides: tuple[str, str], tmp_path: Path, which: int, changes: Sequence[Change]) -> None:
    folder = tmp_path / "changed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sides[which], folder)
    for place, path, value in changes:
        if not rewritten(folder, place, path, value):
            return
    both = [str(folder), sides[1]] if which == 0 else [sides[0], str(folder)]
    computed("diff", *both)
    ends("info", folder, "--verify", "--step", "0")


@st.composite
def a_change(draw: st.DrawFn, folder: Path) -> Change:
    place = draw(st.sampled_from(PLACES))
    document = document_in(folder, place)
    if place == "tensors":
        return place, (draw(st.integers(0, len(document) - 1)),), draw(NUMBERS)
    return place, draw(st.sampled_from(paths_of(document))), draw(ODD)


@fuzzed
@given(data=st.data(), which=st.integers(0, 1))
def test_a_changed_golden_is_judged_or_refused(
    sides: tuple[str, str], tmp_path: Path, data: st.DataObject, which: int
) -> None:
    # One change shows what is not checked; a second one what is not checked after the first.
    checked(sides, tmp_path, which, data.draw(st.lists(a_change(Path(sides[which])), min_size=1, max_size=2)))


@fuzzed
@given(st.data())
def test_damaged_bytes_are_never_taken_for_whole(sides: tuple[str, str], tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sides[1], folder)
    file = data.draw(st.sampled_from(sorted(folder.iterdir())))
    raw = damaged(file.read_bytes(), data)
    file.write_bytes(raw)
    blank = file.name == "golden.json" and json.loads((Path(sides[1]) / file.name).read_text()) == _read(raw)
    ends("diff", sides[0], folder, among=(0,) if blank else (2,))


def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


@pytest.mark.parametrize("seed", corpus("goldens"), ids=lambda seed: "/".join(map(str, seed["path"])))
def test_the_goldens_that_broke_it(sides: tuple[str, str], tmp_path: Path, seed: dict[str, Any]) -> None:
    checked(sides, tmp_path, seed["which"], [(seed["place"], tuple(seed["path"]), seed["value"])])
