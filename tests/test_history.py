"""A part of `make history`: faults of public repositories, and a change that only rounds, through parity as it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.slow

HISTORY = str(Path(__file__).parents[1] / "benchmarks" / "history")


@pytest.fixture(scope="module")
def history() -> Iterator[Any]:
    sys.path.insert(0, HISTORY)
    try:
        import judge
        import rivals
        from every_change import CHANGES

        yield SimpleNamespace(changes=CHANGES, judge=judge, rivals=rivals)
    finally:
        sys.path.remove(HISTORY)


def test_every_change_says_where_it_comes_from_and_where_it_lies(history: Any) -> None:
    changes = history.changes.values()
    faults = [c for c in changes if not c.innocent]
    assert len(faults) >= 40
    assert len(changes) - len(faults) >= 10
    for change in changes:
        assert (change.model is None) != (change.script is None), change.name
        assert "#" in change.source or "@" in change.source, change.name
        assert change.what
        assert change.innocent or change.at, change.name
    assert {c.kind for c in faults} == {"transformer", "glue", "VAE", "text"}


def test_a_fault_in_a_model_is_found_where_it_was_said_to_be(history: Any, tmp_path: Path) -> None:
    change = history.changes["cosmos_k_norm"]
    row = history.judge.row(change, tmp_path / "run")
    assert row["verdict"] == "fail", row
    assert history.judge.placed(change, row), row
    assert history.judge.named(change, row) == "right", row
    assert history.rivals.effect(change)["above"]


@pytest.mark.parametrize("name", ["softmax_of_a_bound", "hunyuan_rows_masked"])
def test_a_change_that_only_rounds_or_moves_what_nothing_reads_passes(name: str, history: Any, tmp_path: Path) -> None:
    row = history.judge.row(history.changes[name], tmp_path / "run")
    assert row["verdict"] == "pass", row


def test_a_place_is_a_module_its_attention_call_or_its_input(history: Any) -> None:
    change = history.changes["causal_by_accident"]
    placed = history.judge.placed
    assert placed(change, {"place": "blocks.0.attn1.attention:out", "birth": "module"})
    assert placed(change, {"place": "blocks.0.attn1.to_q:in.input", "birth": "input"})
    assert not placed(change, {"place": "blocks.1.attn1:out", "birth": "module"})
    assert not placed(change, {"place": "", "birth": ""})
