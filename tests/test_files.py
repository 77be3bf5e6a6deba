"""What is no small regular file is refused before it is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parity import cli
from parity.errors import Terminated
from parity.files import read_bytes, read_text, replacing
from parity.golden.disk.store import LocalStore


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("é", encoding="utf-8")
    assert read_text(tmp_path / "a", 2) == "é"
    with pytest.raises(OSError, match="more than 1 bytes"):
        read_bytes(tmp_path / "a", 1)


def _written(way: str, folder: Path) -> None:
    if way == "part":
        LocalStore(folder).put("step-0000.safetensors", [b"x"])
        return
    with replacing(folder / "a") as temporary:
        os.open(temporary, os.O_WRONLY | os.O_CREAT)


@pytest.mark.parametrize("way", ["file", "part"])
def test_a_signal_between_opening_a_file_and_its_first_byte_leaves_nothing(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def interrupted(path: str | Path, flags: int, mode: int = 0o777) -> int:
        os.close(opened(path, flags, mode))
        raise Terminated

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(Terminated):
        _written(way, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("over", [True, False])
def test_a_signal_while_a_file_gets_its_name_leaves_no_temporary_file(
    over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: Path, target: Path) -> None:
        raise Terminated

    monkeypatch.setattr(os, "replace" if over else "link", interrupted)
    with pytest.raises(Terminated), replacing(tmp_path / "a", over=over) as temporary:
        temporary.write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_file_has_a_name_that_nobody_can_foresee(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as other:
        assert one != other, "a link planted under it would be written through"
        one.write_bytes(b"1")
        other.write_bytes(b"2")
    assert [x.name for x in tmp_path.iterdir()] == ["a"]


def test_a_file_that_is_there_is_kept_without_over(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileExistsError), replacing(tmp_path / "a", over=False) as temporary:
        temporary.write_bytes(b"x")
    assert (tmp_path / "a").read_bytes() == b"old"
    with replacing(tmp_path / "b", over=False) as temporary:
        temporary.write_bytes(b"x")
    assert {x.name for x in tmp_path.iterdir()} == {"a", "b"}


def test_pipes_folders_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_bytes(path, 10)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("result.json", ["report", "run"]),
        ("request.json", ["explain", "run"]),
        ("map.json", ["diff", "a", "b", "--map", "run/map.json"]),
    ],
)
def test_a_pipe_in_a_files_place_hangs_no_command(
    name: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / name)
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 2
    assert done.stderr.count("parity: ") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "9" * 40], "--steps must be at most 100000, found"),
        (["--model", " "], "--model is empty"),
        (["--candidate", "attention.block_q=" + "9" * 5000], "attention.block_q"),
        (["--candidate", "cache=deepcache:" + "9" * 5000 + ",1,1"], "cache"),
    ],
)
def test_absurd_numbers_and_names_are_refused(words: list[str], said: str) -> None:
    done = CliRunner().invoke(cli.app, ["run", *words])
    assert done.exit_code == 2
    assert said in done.stderr
    assert "defect" not in done.stderr
