"""`parity info GOLDEN`: for people, for pipes and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parity.golden import GoldenWriter
from tests.support.cli import cli
from tests.support.made import PROVENANCE, mixed_step, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(write(tmp_path / "golden", PROVENANCE, [mixed_step(step) for step in (-1, 0, 1)]))


def run(*arguments: object, code: int = 0) -> str:
    ran = cli(*arguments, code=code)
    return ran.out + ran.err


def test_info_shows_state_provenance_and_parts(folder: Path) -> None:
    lines = run("info", folder, "--verify").splitlines()
    for begin in ("state: complete", "model: tiny-hunyuan-video-1.5", "run: 3 steps, seed 7",
                  "setting attention.mask: value exact", "holds: 3 parts, 18 records",
                  "part of step -1: file before.safetensors; records 6", "verified: every part is whole"):  # fmt: skip
        assert any(line.startswith(begin) for line in lines), begin


def test_info_json_is_one_document(folder: Path) -> None:
    document = json.loads(run("info", folder, "--format", "json", "--verify"), parse_constant=pytest.fail)
    assert (document["golden"], document["complete"], document["problems"]) == (str(folder), True, [])
    assert document["steps"] == [-1, 0, 1]
    assert document["bytes"] == sum(part["bytes"] for part in document["parts"])


def test_info_refuses_damage_and_marks_what_is_incomplete(folder: Path, tmp_path: Path) -> None:
    (folder / "before.safetensors").write_bytes(b"")
    assert "before.safetensors: it has 0 bytes" in run("info", folder, "--verify", code=2)
    document = json.loads(run("info", folder, "--verify", "--format", "json", code=2))
    assert [problem["file"] for problem in document["problems"]] == ["before.safetensors"]
    assert "no golden here" in run("info", tmp_path / "nothing", code=2)
    GoldenWriter(tmp_path / "begun", PROVENANCE)
    assert "state: incomplete" in run("info", tmp_path / "begun")


def test_names_from_a_file_cannot_drive_the_terminal(tmp_path: Path) -> None:
    write(tmp_path, replace(PROVENANCE, model="a\x1b[31m\n[red]b[/red]"), [])
    output = run("info", tmp_path)
    assert "\x1b" not in output
    assert "a\\x1b[31m\\n[red]b[/red]" in output
