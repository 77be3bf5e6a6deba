"""`parity inspect` and `parity merge`: for people, for pipes and for programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parity.cli import app
from parity.golden import Golden, GoldenWriter, Key, Provenance, Record, StepRecords

Make = Callable[..., StepRecords]


@pytest.fixture
def folder(tmp_path: Path, provenance: Provenance, make_step: Make) -> Path:
    with GoldenWriter(tmp_path / "golden", provenance) as writer:
        for step in (-1, 0, 1):
            writer.write_step(make_step(step))
    return tmp_path / "golden"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_inspect_says_what_is_in_it(folder: Path) -> None:
    lines = run("inspect", folder, "--verify").splitlines()
    assert "state: complete" in lines
    assert "model: tiny-hunyuan-video-1.5" in lines
    assert "run: 3 steps, seed 7" in lines
    assert "setting attention.mask: value exact" in lines
    assert any(line.startswith("holds: 3 steps: -1, 0-1, 18 records, ") for line in lines)
    assert any(line.startswith("part of step -1: file before.safetensors; records 6; size ") for line in lines)
    assert lines[-1] == "verified: every part is whole"


def test_inspect_lists_the_records_of_a_step(folder: Path) -> None:
    lines = run("inspect", folder, "--step", "0").splitlines()
    rows = [re.fullmatch(r"record (\S+): (.*)", line) for line in lines if line.startswith("record ")]
    cells = [dict(cell.split(" ", 1) for cell in row[2].split("; ")) for row in rows if row is not None]
    assert [row[1] for row in rows if row is not None] == [
        "blocks.0:out",
        "blocks.1:out",
        "blocks.2:out",
        "loop:noise_pred",
        "blocks.0:in.image_rotary_emb",
        "loop:sigma",
    ]
    assert (cells[0]["dtype"], cells[0]["shape"]) == ("float32", "4x40x24")
    assert [row["holds"] for row in cells] == ["sketch value", "sketch", "sketch", "sketch value", "None", "nan"]
    assert [row["floor"] for row in cells] == ["1e-06", "1e-06", "1e-06", "-", "-", "-"]


def test_inspect_json_is_one_document(folder: Path) -> None:
    document = json.loads(run("inspect", folder, "--json"), parse_constant=pytest.fail)
    assert document["problems"] is None
    assert "records" not in document
    document = json.loads(run("inspect", folder, "--json", "--verify", "--step", "0"), parse_constant=pytest.fail)
    assert document["golden"] == str(folder)
    assert document["complete"] is True
    assert document["steps"] == [-1, 0, 1]
    assert document["problems"] == []
    assert document["bytes"] == sum(part["bytes"] for part in document["parts"])
    assert document["provenance"]["settings"]["dtype"] == "float32"
    records = document["records"]
    assert records[0]["site"] == "blocks.0:out"
    assert records[0]["floor"] == {"l2": 1e-6, "local_l2": 2e-6}
    assert records[0]["moments"]["count"] == 4 * 40 * 24
    assert (records[0]["sketch"], records[0]["value"], records[1]["value"]) == (True, True, False)
    assert records[-1]["scalar"] == "nan"


def test_damage_ends_in_exit_code_2_and_is_listed(folder: Path) -> None:
    (folder / "before.safetensors").write_bytes(b"")
    result = CliRunner().invoke(app, ["inspect", str(folder), "--verify"])
    assert result.exit_code == 2
    assert f"problem: {folder}/before.safetensors: it has 0 bytes" in result.stdout
    result = CliRunner().invoke(app, ["inspect", str(folder), "--verify", "--json"])
    assert result.exit_code == 2
    assert [problem["file"] for problem in json.loads(result.stdout)["problems"]] == ["before.safetensors"]
    for arguments, message in (
        ((folder, "--step", "-1"), "before.safetensors"),
        ((folder.parent / "nothing",), "no golden here"),
    ):
        result = CliRunner().invoke(app, ["inspect", *map(str, arguments)])
        assert (result.exit_code, message in result.stderr) == (2, True)


def test_an_incomplete_golden_is_said_to_be_one(tmp_path: Path, provenance: Provenance) -> None:
    GoldenWriter(tmp_path, provenance)
    lines = run("inspect", tmp_path).splitlines()
    assert any(line.startswith("state: incomplete") for line in lines)
    assert any(line.startswith("holds: 0 steps, 0 records") for line in lines)


def test_names_from_a_file_cannot_drive_the_terminal(tmp_path: Path, provenance: Provenance) -> None:
    site = "a\x1b[31m\n[red]b[/red]\ud800:out"
    with GoldenWriter(tmp_path, replace(provenance, model="m\x1b[2J")) as writer:
        writer.write_step(StepRecords(0, (Record(Key("t", 0, "", site), "none"),)))
    output = run("inspect", tmp_path, "--step", "0")
    assert "\x1b" not in output
    assert "a\\x1b[31m\\n[red]b[/red]\\ud800:out" in output
    assert json.loads(run("inspect", tmp_path, "--step", "0", "--json"))["records"][0]["site"] == site


def test_tables_on_a_terminal_keep_no_color(folder: Path) -> None:
    """A real terminal of its own (a pty), because what a pipe gets is another format."""
    import os
    import pty

    code = f"from parity.commands.golden import inspect; inspect(golden={str(folder)!r}, verify_all=True, step=0)"
    outputs = []
    for extra in ({}, {"NO_COLOR": "1"}):
        parent, child = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", **extra}
        process = subprocess.Popen([sys.executable, "-c", code], stdout=child, env=environment)
        os.close(child)
        read = b""
        while True:
            try:
                chunk = os.read(parent, 65536)
            except OSError:  # the terminal is gone with the process
                break
            if not chunk:
                break
            read += chunk
        os.close(parent)
        assert process.wait(timeout=60) == 0
        outputs.append(read.decode())
    assert all("blocks.0:out" in output and "Settings" in output for output in outputs)
    assert all("\t" not in output for output in outputs)
    assert "\x1b[3" not in outputs[1].replace("\x1b[3m", "")  # italics are no colour


def test_merge(tmp_path: Path, folder: Path, provenance: Provenance, make_step: Make) -> None:
    with GoldenWriter(tmp_path / "later", provenance) as writer:
        writer.write_step(make_step(2))
    result = CliRunner().invoke(app, ["merge", str(tmp_path / "out"), str(folder), str(tmp_path / "later")])
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert "2 merged, 4 steps: -1, 0-2" in result.stderr
    assert Golden.open(tmp_path / "out").steps == (-1, 0, 1, 2)


def test_nothing_heavy_is_imported() -> None:
    """Goldens are read where there is neither torch nor jax, and at once."""
    code = (
        "import sys, parity.commands.golden; "
        "print([m for m in ('torch', 'jax', 'ml_dtypes', 'safetensors', 'fsspec', 'diffusers') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert ran.stdout == "[]\n"
