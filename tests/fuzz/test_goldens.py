"""Goldens damaged with care: what their checksums cannot show, since whoever changed them made them anew."""

from __future__ import annotations

import copy
import json
import math
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from parity.golden.disk.part import ROWS
from tests.fuzz.outcome import computed, corpus, damaged, ends, fuzzed
from tests.support.forged import PART, Damage, forged, header, resealed, rows, split
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


def assign(document: Any, new: Any) -> None:
    if isinstance(document, dict):
        document.update(new)
    else:
        document[:] = new


PLACES: dict[str, Callable[[Callable[[Any], object]], Damage]] = {"manifest": resealed, "rows": rows, "header": header}


def with_number(at: int, value: float) -> Damage:
    """One of the numbers of 32 bits that the tensors are made of."""

    def new(data: bytes) -> bytes:
        start = 8 + int.from_bytes(data[:8], "little") + 4 * at
        return data[:start] + struct.pack("<f", value) + data[start + 4 :]

    return forged(new)


def rewritten(folder: Path, place: str, path: tuple[Step, ...], value: Any) -> bool:
    """Change a golden, and make all checksums anew; whether that could be done."""
    try:
        if place == "tensors":
            with_number(int(path[0]), value)(folder)
        else:
            PLACES[place](lambda document: assign(document, put(document, path, value)))(folder)
    except (OSError, ValueError, KeyError, IndexError, TypeError, OverflowError, StopIteration, struct.error):
        return False
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
    ends("info", folder, "--verify")


@st.composite
def a_change(draw: st.DrawFn, folder: Path) -> Change:
    place = draw(st.sampled_from([*PLACES, "tensors"]))
    fields, body = split((folder / PART).read_bytes())
    if place == "tensors":
        return place, (draw(st.integers(0, len(body) // 4 - 1)),), draw(NUMBERS)
    documents = {"header": fields, "rows": json.loads(fields["__metadata__"][ROWS])}
    document = documents.get(place) or json.loads((folder / "golden.json").read_text())
    return place, draw(st.sampled_from(paths_of(document)[1:])), draw(ODD)


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
