"""`parity visible`: what a model and its inputs could show, and what not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from parity import cli
from tests.models.generic_models import make


def _kinds(folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(cli.app, ["visible", "--model", str(folder), "--json", *options])
    assert done.exit_code == 0, done.stderr
    return {kind["kind"]: kind for kind in json.loads(done.stdout)["kinds"]}


def test_what_a_run_could_show_and_what_not(tmp_path: Path) -> None:
    """Allegro takes rotary tables that nobody makes for it; its text, only attended to, has no order."""
    kinds = _kinds(make(tmp_path, "allegro"))
    sights = {name: kind["sight"] for name, kind in kinds.items()}
    absent = {"rotary dropped", "rotary reversed", "guidance", "pooled text"}
    assert {name for name, sight in sights.items() if sight == "absent"} == absent
    assert {name for name, sight in sights.items() if sight == "shown"} == set(sights) - absent
    mask = kinds["attention mask"]
    assert mask["site"] == "transformer_blocks.0.attn2.attention:out"
    assert mask["changed"] == 2
    assert mask["noise_pred"]["ratio"] > 3.0
    assert kinds["text order"]["noise_pred"]["ratio"] < 1.0
    assert kinds["guidance"]["noise_pred"]["ratio"] == "nan"


def test_the_foot_says_what_these_inputs_cannot_show(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["visible", "--model", str(make(tmp_path, "sana"))])
    assert done.exit_code == 0, done.stderr
    assert "These inputs cannot show: " in done.stdout
    assert "rotary dropped" in done.stdout.partition("These inputs cannot show: ")[2]
