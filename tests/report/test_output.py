"""The one way out: whole files, printable text."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.report.output import printable, show, tell, write


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new" / "a.txt"
    write(file, "one", "--out")
    mask = os.umask(0)
    os.umask(mask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask

    def fails(*given: object) -> str:
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"--out: cannot write .*: No space left"):
        write(file, fails, "--out")
    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(UsageError, match="No space left"):
        write(file, "two", "--out")
    assert file.read_text() == "one"
    assert [path.name for path in file.parent.iterdir()] == ["a.txt"]
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


def test_only_results_go_to_stdout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    show("a\nb\n")
    tell("one\nline")
    assert tuple(capsys.readouterr()) == ("a\nb\n", "one\\nline\n")
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    show("✅")
    assert raw.getvalue() == b"\\u2705\n"
