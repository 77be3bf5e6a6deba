"""The documents' pictures: there, small, loading nothing; and what makes them, on a command that takes a second."""

from __future__ import annotations

import importlib
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest
from documents import DOCS, ROOT

from tests.support.made import pair

MOST_BYTES = 300_000


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("pictures")


def test_the_pictures_are_small_and_each_is_shown_somewhere() -> None:
    documents = [*DOCS.glob("*.md"), ROOT / "README.md"]
    shown = {Path(name).name for d in documents for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", d.read_text("utf-8"))}
    found = {path.name for path in (DOCS / "pictures").iterdir()}
    assert found == shown
    assert all(path.stat().st_size <= MOST_BYTES for path in (DOCS / "pictures").iterdir())


def test_the_terminal_s_picture_says_what_where_and_why_and_loads_nothing() -> None:
    text = (DOCS / "pictures" / "terminal.svg").read_text("utf-8")
    said = re.sub(r"[\s\xa0]+", " ", " ".join(ElementTree.fromstring(text).itertext()))
    for words in ("$ parity run", "$ parity explain run", "verdict", "fail", "the rounding floor", "top cause", "next"):
        assert words in said
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|@import|@font-face", text)


def test_a_picture_is_of_what_the_command_writes_to_a_terminal(pictures: ModuleType, tmp_path: Path) -> None:
    reference, candidate = pair(tmp_path, fault=1e4)
    code, text = pictures.in_terminal(f"parity diff {reference} {candidate}", tmp_path)
    assert code == 1
    assert "\x1b[1;31mfail" in text  # in colour: a terminal
    svg = pictures.drawn([("parity diff gpu tpu", text, pictures.VERDICT)])
    said = re.sub(r"[\s\xa0]+", " ", " ".join(ElementTree.fromstring(svg).itertext()))
    assert re.search(r"\$ parity diff gpu tpu \.\.\. verdict fail", said)
    assert "Sites that failed" not in said  # only the card
    assert max(map(len, pictures.card_of(text).splitlines())) < pictures.COLUMNS + 30  # colours beside the columns


def test_a_page_is_photographed_at_its_width(pictures: ModuleType, tmp_path: Path) -> None:
    if pictures.chromium() is None:
        pytest.skip("no chromium with a chromedriver (Debian: apt install chromium chromium-driver)")
    pytest.importorskip("selenium")
    page = tmp_path / "page.html"
    page.write_text("<h1>verdict</h1>")
    png = pictures.photographed(page, 390, 300)
    assert png.startswith(b"\x89PNG")
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (390, 300)
