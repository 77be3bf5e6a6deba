"""Command lines of words that somebody might type, and of some that nobody would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.fuzz.outcome import corpus, ends, fuzzed
from tests.support.made import pair

pytestmark = pytest.mark.slow

LIGHT = ("diff", "info", "report", "init", "--version", "nosuch")
"""Commands that start no side; the others' options are checked before they start one (the corpus)."""
WORDS = st.sampled_from(
    ["--format", "json", "junit", "html", "--map", "auto", "--map-out", "--junit", "--markdown", "--steps", "-1",
     "1e9",
     "nan", "", "-", "--", "\x00", "\udcff", "x" * 5000, "/dev/null", "/", "zip://", "memory://", "nosuch://a", "a=b",
     "REFERENCE", "CANDIDATE", "ABSENT", "--out", "FILE", "-h", "--overwrite", "\x1b[2J", "%s", "\n"]
)  # fmt: skip


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("goldens")
    reference, candidate = pair(folder)
    return {"REFERENCE": reference, "CANDIDATE": candidate, "ABSENT": str(folder / "absent"),
            "FILE": str(folder / "out" / "file")}  # fmt: skip


@fuzzed
@given(command=st.sampled_from(LIGHT), words=st.lists(WORDS, max_size=6))
def test_any_command_line_ends_as_it_should(
    names: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ends(command, *(names.get(word, word) for word in words))


@pytest.mark.parametrize("words", corpus("command_lines"), ids=lambda words: json.dumps(words)[:80])
def test_the_command_lines_that_broke_it(names: dict[str, str], words: list[str]) -> None:
    ends(*(names.get(word, word) for word in words), among=(2, 125))
