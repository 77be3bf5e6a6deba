"""The one way out: whole files, printable text."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.report.output import printable, show, tell, write


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.txt"
    write(file, "one", "--out")
    assert file.read_text() == "one"
    assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()

    def fails() -> str:
        raise ValueError("not now")

    with pytest.raises(UsageError, match=r"--out: cannot write .*: not now"):
        write(file, fails, "--out")
    assert file.read_text() == "one"
    assert [path.name for path in file.parent.iterdir()] == ["a.txt"]


def test_a_rename_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UsageError, match="No space left"):
        write(tmp_path / "a.txt", "one", "--out")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_written_as_it_is(tmp_path: Path) -> None:
    write(Path(os.devnull), "one", "--out")
    with pytest.raises(UsageError, match="Is a directory"):
        write(tmp_path, "one", "--out")


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("a\x1b[2Jb\nc\u2028d\u202e", "utf-8", r"a\x1b[2Jb\nc\u2028d\u202e"),
        ("3 × 4 \ud800", "ascii", r"3 \xd7 4 \ud800"),
        ("[red]x[/red] 3 × 4", "utf-8", "[red]x[/red] 3 × 4"),
        ("×", None, r"\xd7"),
    ],
)
def test_printable_text_controls_nothing(text: str, encoding: str | None, shown: str) -> None:
    assert printable(text, encoding) == shown


def test_results_go_to_stdout_and_the_rest_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    show("a\nb\n")
    tell("one\nline")
    assert tuple(capsys.readouterr()) == ("a\nb\n", "one\\nline\n")


def test_what_stdout_cannot_write_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    show("✅")
    assert raw.getvalue() == b"\\u2705\n"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
