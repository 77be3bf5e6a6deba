"""A sweep of the tiny model: each row judged as `parity run` judges it, priced, kept; refused ones are told."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from parity.cli import app
from parity.errors import UsageError
from parity.runs.sweep.state import SweepState

CACHE = "cache=deepcache:1,3,2"
ARGUMENTS = ["sweep", "--set", "cache=off,deepcache:1,3,2", "--set", "attention.kernel=sdpa,flex"]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep") / "state.json"


@pytest.fixture(scope="module")
def swept(state: Path) -> dict[str, dict[str, Any]]:
    """A cached reference against a cached and a plain candidate, over two steps, by the command."""
    given = [*ARGUMENTS, "--reference", CACHE, "--steps", "2", "--state", str(state)]
    done = CliRunner().invoke(app, [*given, "--json", "--markdown", str(state.with_suffix(".md"))])
    assert done.exit_code == 0, done.output
    (sweep,) = json.loads(done.stdout)["sweeps"]
    assert sweep["reference"] == [CACHE]
    return {" ".join(row["settings"]): row for row in sweep["rows"]}


def test_the_same_cache_on_both_sides_is_within_the_floor(swept: dict[str, dict[str, Any]]) -> None:
    row = swept[f"{CACHE} attention.kernel=sdpa"]
    assert row["verdict"] == "pass"
    assert row["noise_pred"]["ratio"] < 3
    assert row["bits"] > 15
    assert len(row["noise_pred_by_step"]) == 2


def test_a_cache_on_one_side_is_beyond_it_and_told(swept: dict[str, dict[str, Any]]) -> None:
    row = swept["cache=off attention.kernel=sdpa"]
    assert (row["verdict"], row["failed"]) == ("fail", "structure")
    assert row["noise_pred"]["rel_l2"] > 1e-2
    assert row["noise_pred_by_step"][0] < 1e-5
    assert all(place in row["reason"] for place in ("transformer_blocks.1", "(step 1, cond"))


def test_rows_have_a_price_and_are_in_order(swept: dict[str, dict[str, Any]]) -> None:
    judged = [row for row in swept.values() if row["verdict"] != "refused"]
    assert [row["verdict"] for row in swept.values()] == ["pass", "fail", "refused", "refused"]
    for row in judged:
        assert row["seconds"] > 0
        assert 0 < row["of_base_quartiles"][0] <= row["of_base"] <= row["of_base_quartiles"][1]
        assert row["memory"] > 2**20
    refused = list(swept.values())[-1]
    assert "cannot take 'attention.kernel=flex'" in refused["reason"]
    assert refused["seconds"] == "nan"


def test_a_stopped_sweep_goes_on_and_another_is_refused(swept: dict[str, dict[str, Any]], state: Path) -> None:
    question = {"reference": CACHE, "candidate": "", "steps": "2", "seed": "0"}
    held = SweepState(state, question).known("tiny-hunyuan-video-1.5")
    assert set(held) == set(swept)
    row = held["cache=off attention.kernel=sdpa"]
    assert row.noise_pred.rel_l2 == swept[row.name]["noise_pred"]["rel_l2"]
    assert math.isnan(held["cache=off attention.kernel=flex"].seconds)
    with pytest.raises(UsageError, match="steps is '2' there and '3' here"):
        SweepState(state, {**question, "steps": "3"})
    damaged = state.with_name("damaged.json")
    damaged.write_text('{"kind": "parity sweep 2", "question": {}, "rows": {"m": [{}]}}')
    with pytest.raises(UsageError, match="not a state file of a sweep, or damaged"):
        SweepState(damaged, {})


def test_the_document_has_a_row_for_each(swept: dict[str, dict[str, Any]], state: Path) -> None:
    told = state.with_suffix(".md").read_text()
    assert all(told.count(f"`{name}`") >= 1 for name in swept)
    assert "times are not those of a TPU" in told
    assert r"Feature caches: noise\_pred rel L2 by step against time" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep"], "give --set"),
        (["sweep", "--all", "--set", "jit=true"], "one of the two"),
        (["sweep", "--set", "jit=true", "--candidate", "jit=false"], "given by --set and by --candidate"),
        (["sweep", "--set", "jit=maybe"], "no value 'maybe'"),
    ],
)
def test_mistakes_are_told_before_anything_runs(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert message in done.stderr
