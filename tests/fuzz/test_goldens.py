"""Goldens damaged with care: what their checksums cannot show, since whoever changed them made them anew."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.golden.disk.format import own_checksum
from tests.compare.make_goldens import pair
from tests.fuzz.outcome import corpus, ends, fuzzed

ODD = st.sampled_from(
    [None, True, -1, 0, 2**31, 10**9, 2**63, 10**400, 1e308, 0.5, "", "\ud800", "\x1b[2J", "nan", "../x", "a" * 5000,
     [], {}, [[]], {"": ""}, "https://me:secret@host/m"]
)  # fmt: skip
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


def rewritten(folder: Path, path: tuple[Step, ...], value: Any, part: bool) -> bool:
    """Change a golden's document, or its first part's, and make all checksums anew; whether that could be done."""
    manifest = json.loads((folder / "golden.json").read_text())
    try:
        if part:
            file = folder / manifest["parts"][0]["file"]
            raw = file.read_bytes()
            length = int.from_bytes(raw[:8], "little")
            header = json.loads(raw[8 : 8 + length])
            inner = put(json.loads(header["__metadata__"]["parity"]), path, value)
            header["__metadata__"]["parity"] = json.dumps(inner, separators=(",", ":"))
            text = json.dumps(header, separators=(",", ":")).encode()
            text += b" " * (-len(text) % 8)
            changed = len(text).to_bytes(8, "little") + text + raw[8 + length :]
            file.write_bytes(changed)
            manifest["parts"][0] |= {"bytes": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
        else:
            manifest = put(manifest, path, value)
        if isinstance(manifest, dict):
            manifest["sha256"] = own_checksum(manifest)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError):
        return False
    (folder / "golden.json").write_text(json.dumps(manifest))
    return True


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return pair(tmp_path_factory.mktemp("goldens"))


def checked(sides: tuple[str, str], tmp_path: Path, which: int, path: tuple[Step, ...], value: Any, part: bool) -> None:
    folder = tmp_path / "changed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sides[which], folder)
    if not rewritten(folder, path, value, part):
        return
    both = [str(folder), sides[1]] if which == 0 else [sides[0], str(folder)]
    ends(["diff", *both], among=(0, 1, 2, 125))
    ends(["inspect", str(folder)])


@fuzzed
@given(st.data())
def test_a_changed_golden_is_judged_or_refused(sides: tuple[str, str], tmp_path: Path, data: st.DataObject) -> None:
    which, part = data.draw(st.integers(0, 1)), data.draw(st.booleans())
    manifest = json.loads((Path(sides[which]) / "golden.json").read_text())
    document: Any = manifest
    if part:
        raw = (Path(sides[which]) / manifest["parts"][0]["file"]).read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        document = json.loads(header["__metadata__"]["parity"])
    checked(sides, tmp_path, which, data.draw(st.sampled_from(paths_of(document))), data.draw(ODD), part)


@fuzzed
@given(st.data())
def test_damaged_bytes_are_never_taken_for_whole(sides: tuple[str, str], tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sides[1], folder)
    file = data.draw(st.sampled_from(sorted(folder.iterdir())))
    raw = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        del raw[at:]
    else:
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(bytes(raw))
    blank = file.name == "golden.json" and json.loads((Path(sides[1]) / file.name).read_text()) == _read(bytes(raw))
    ends(["diff", sides[0], str(folder)], among=(0,) if blank else (2,))


def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


@pytest.mark.parametrize("seed", corpus("goldens"), ids=lambda seed: "/".join(map(str, seed["path"])))
def test_the_goldens_that_broke_it(sides: tuple[str, str], tmp_path: Path, seed: dict[str, Any]) -> None:
    checked(sides, tmp_path, seed["which"], tuple(seed["path"]), seed["value"], seed["part"])
