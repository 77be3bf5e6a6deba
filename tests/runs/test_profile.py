"""`parity run --profile`: both traces are written, the result is the one without it, and what cannot be is told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from parity.cli import app

pytest.importorskip("torchax")


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(x) for x in arguments])


def test_both_sides_are_profiled_and_the_result_is_as_without(tmp_path: Path) -> None:
    given = ("run", "--steps", "1", "--rounds", "structure", "--candidate", "attention.mask=none")
    done = invoke(*given, "--json", "--profile", tmp_path / "trace")
    assert done.exit_code == 1, done.stderr
    assert done.stdout == invoke(*given, "--json").stdout
    ours = json.loads((tmp_path / "trace/reference/trace.json").read_text("utf-8"))["traceEvents"]
    assert any(str(event.get("name")).startswith("aten::") for event in ours)
    (theirs,) = (tmp_path / "trace/candidate/plugins/profile").rglob("*.trace.json.gz")
    assert json.loads(gzip.decompress(theirs.read_bytes()))["traceEvents"]
    assert list(theirs.parent.glob("*.xplane.pb"))


def test_what_cannot_be_profiled_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = invoke("run", "--profile", tmp_path / "file" / "trace")
    assert (done.exit_code, "--profile: cannot make" in done.stderr) == (2, True)
    assert "loading" not in done.stderr
    done = invoke("run", "--stages", "vae", "--stage2", "latents.safetensors", "--profile", tmp_path / "trace")
    assert (done.exit_code, "--profile is of the transformer" in done.stderr) == (2, True)
