"""docs/pitfalls.md is what the 29 pitfalls of diffusers' list come to: each is run again, and has its row."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FOLDERS = [str(ROOT / "benchmarks" / name) for name in ("pitfalls", "history")]
PAGE = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
ROWS = {
    int(n): (o, v) for n, o, v in re.findall(r"^\| (\d+) \|.*?\| (named|found|passes|not seen) \| (\w+)", PAGE, re.M)
}


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    sys.path[:0] = FOLDERS
    try:
        import asked
        from every_pitfall import PITFALLS

        yield SimpleNamespace(asked=asked, pitfalls={p.number: p for p in PITFALLS})
    finally:
        del sys.path[: len(FOLDERS)]


def test_every_pitfall_has_two_sides_and_a_right_answer(bench: Any) -> None:
    assert sorted(bench.pitfalls) == list(range(1, 30)) == sorted(ROWS)
    for pitfall in bench.pitfalls.values():
        assert (pitfall.sides is None) != (pitfall.told is None), pitfall.title
        assert pitfall.says or pitfall.verdict == "pass", pitfall.title
    named = sum(found == "named" for found, _ in ROWS.values())
    assert named >= 22
    assert f"Named {named}, found" in PAGE


@pytest.mark.parametrize("number", range(1, 30))
def test_a_pitfall_comes_to_what_its_row_says(number: int, bench: Any, tmp_path: Path) -> None:
    pitfall = bench.pitfalls[number]
    said = bench.asked.told(pitfall, tmp_path)
    assert (bench.asked.outcome(pitfall, said), said.verdict) == ROWS[number], said


def test_a_verdict_without_the_words_is_found_and_another_is_not_seen(bench: Any) -> None:
    from pitfall import Told

    pitfall = bench.pitfalls[11]
    assert bench.asked.outcome(pitfall, Told(verdict="fail", sentences=("something",))) == "found"
    assert bench.asked.outcome(pitfall, Told(verdict="pass", sentences=pitfall.says)) == "not seen"
