"""What is no small regular file is refused before it is read; what is written has its name once it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from parity.errors import Terminated
from parity.files import read_bytes, replacing
from parity.golden.disk.store import Store
from tests.support.cli import cli


def test_regular_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("é", encoding="utf-8")
    assert read_bytes(tmp_path / "a", 2) == "é".encode()
    with pytest.raises(OSError, match="more than 1 bytes"):
        read_bytes(tmp_path / "a", 1)


def test_pipes_folders_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_bytes(path, 10)


def _part(folder: Path) -> None:
    Store(folder).put("step-0000.safetensors", lambda path: os.close(os.open(path, os.O_WRONLY | os.O_CREAT)))


def _over(folder: Path) -> None:
    with replacing(folder / "a") as temporary:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT))


@pytest.mark.parametrize(("write", "call"), [(_part, "open"), (_over, "open"), (_over, "replace")])
def test_signal_while_a_file_is_written_leaves_nothing(
    write: Callable[[Path], None], call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.open

    def interrupted(path: str | Path, flags: object, mode: int = 0o777) -> int:
        if call == "open":
            assert isinstance(flags, int)
            os.close(own(path, flags, mode))
        raise Terminated

    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(Terminated):
        write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_temporary_file_has_a_name_that_nobody_can_foresee(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as other:
        assert one != other, "a link planted under it would be written through"
        one.write_bytes(b"1")
        other.write_bytes(b"2")
    assert [x.name for x in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("result.json", ["report", "run"]),
        ("request.json", ["explain", "run"]),
        ("map.json", ["diff", "a", "b", "--map", "run/map.json"]),
    ],
)
def test_pipe_in_a_files_place_hangs_no_command(name: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / name)
    assert cli(*words, code=2, cwd=tmp_path).err.count("parity: ") == 1
