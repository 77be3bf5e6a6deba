"""`parity info GOLDEN`: for people, for pipes and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parity.golden import GoldenWriter
from parity.records import Key, Record, StepRecords
from tests.support.cli import cli
from tests.support.made import PROVENANCE, mixed_step, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(write(tmp_path / "golden", PROVENANCE, [mixed_step(step) for step in (-1, 0, 1)]))


def run(*arguments: object, code: int = 0) -> str:
    ran = cli(*arguments, code=code)
    return ran.out + ran.err


def test_info_shows_state_provenance_parts_and_records(folder: Path) -> None:
    lines = run("info", folder, "--verify", "--step", "0").splitlines()
    for begin in ("state: complete", "model: tiny-hunyuan-video-1.5", "run: 3 steps, seed 7",
                  "setting attention.mask: value exact", "holds: 3 parts, 18 records",
                  "part of step -1: file before.safetensors; records 6", "record blocks.0:out: "):  # fmt: skip
        assert any(line.startswith(begin) for line in lines), begin
    rows = [line.split(": ", 1)[1] for line in lines if line.startswith("record ")]
    assert ["sketch value" in rows[0], "sketch value" in rows[1]] == [True, False]


def test_info_json_is_one_document(folder: Path) -> None:
    document = json.loads(
        run("info", folder, "--format", "json", "--verify", "--step", "0"), parse_constant=pytest.fail
    )
    assert (document["golden"], document["complete"], document["problems"]) == (str(folder), True, [])
    assert document["steps"] == [-1, 0, 1]
    assert document["bytes"] == sum(part["bytes"] for part in document["parts"])
    records = document["records"]
    assert records[0]["floor"] == {"l2": 1e-6}
    assert (records[0]["sketch"], records[0]["value"], records[1]["value"]) == (True, True, False)
    assert records[-1]["scalar"] is None


def test_info_refuses_damage_and_marks_what_is_incomplete(folder: Path, tmp_path: Path) -> None:
    (folder / "before.safetensors").write_bytes(b"")
    assert "before.safetensors: it has 0 bytes" in run("info", folder, "--verify", code=2)
    document = json.loads(run("info", folder, "--verify", "--format", "json", code=2))
    assert [problem["file"] for problem in document["problems"]] == ["before.safetensors"]
    assert "before.safetensors" in run("info", folder, "--step", "-1", code=2)
    assert "no golden here" in run("info", tmp_path / "nothing", code=2)
    GoldenWriter(tmp_path / "begun", PROVENANCE)
    assert "state: incomplete" in run("info", tmp_path / "begun")


def test_names_from_a_file_cannot_drive_the_terminal(tmp_path: Path) -> None:
    site = "a\x1b[31m\n[red]b[/red]\ud800:out"
    step = StepRecords(0, (Record(Key("t", 0, "", site), "none"),))
    write(tmp_path, replace(PROVENANCE, model="m\x1b[2J"), [step])
    output = run("info", tmp_path, "--step", "0")
    assert "\x1b" not in output
    assert "a\\x1b[31m\\n[red]b[/red]\\ud800:out" in output
    shown = json.loads(run("info", tmp_path, "--step", "0", "--format", "json"))["records"][0]["site"]
    assert shown == site.replace("\ud800", r"\ud800")
