"""A part of each catalogue in benchmarks/ comes to what is published of it: faults, public changes, pitfalls."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
PAGE = (FOLDER / "results" / "pitfalls.md").read_text(encoding="utf-8")
ROWS = {
    int(n): (o, v) for n, o, v in re.findall(r"^\| (\d+) \|.*?\| (named|found|passes|not seen) \| (\w+)", PAGE, re.M)
}


@pytest.fixture(scope="module", autouse=True)
def _found() -> Iterator[None]:
    """Modules of the programs can be imported, as they import each other."""
    folders = [str(FOLDER), str(FOLDER / "history"), str(FOLDER / "pitfalls")]
    sys.path[:0] = folders
    yield
    sys.path[:] = [folder for folder in sys.path if folder not in folders]


@pytest.fixture(scope="module")
def bench(_found: None) -> Any:
    """The fault bench, which measures the reference and its floors once."""
    return importlib.import_module("fault_bench")


@pytest.mark.parametrize("name", ["mask_one_row_too_few", "guidance_in_bfloat16"])
def test_fault_is_found_where_it_is(bench: Any, name: str) -> None:
    (fault,) = (f for f in bench.FAULTS if f.name == name)
    row = bench.row("float32", fault)
    assert (row["verdict"], bench.right(fault, row)) == ("fail", True), row


def test_fault_in_bfloat16_is_placed_by_local_errors(bench: Any) -> None:
    """The free run shows the fault at the attention call behind the norm."""
    (fault,) = (f for f in bench.FAULTS if f.name == "norm_without_affine")
    known = bench.Known("bfloat16", 1, sites="transformer_blocks.1.attn*")
    row = bench.judged(known, fault, known.candidate(*fault.settings))
    assert (row["verdict"], row["origin"], row["birth"]) == ("fail", "transformer_blocks.1.attn.norm_k:out", "module")


@pytest.mark.parametrize("name", ["attention in blocks of keys", "split sums"])
def test_innocent_variant_raises_no_alarm(bench: Any, name: str) -> None:
    (innocent,) = (i for i in bench.INNOCENTS if i.name == name)
    row = bench.row("float32", innocent)
    assert (row["verdict"], row["worst"] < 3) == ("pass", True), row


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("cosmos_k_norm", "fail"),
        ("hunyuan_mask_without_heads", "fail"),  # two prompts in a batch, each with rows of its own
        ("softmax_of_a_bound", "pass"),
        ("hunyuan_rows_masked", "pass"),
    ],
)
def test_change_of_a_public_repository_is_judged(name: str, verdict: str, tmp_path: Path) -> None:
    judge, changes = importlib.import_module("judge"), importlib.import_module("every_change").CHANGES
    change = changes[name]
    row = judge.row(change, tmp_path / "run")
    assert row["verdict"] == verdict, row
    if verdict == "fail":
        assert (judge.placed(change, row), judge.named(change, row)) == (True, "right"), row
        assert not judge.placed(change, {"place": "elsewhere:out", "birth": "module"})


def test_every_change_has_a_source_and_a_place() -> None:
    changes = importlib.import_module("every_change").CHANGES.values()
    for change in changes:
        assert (change.model is None) != (change.script is None), change.name
        assert re.search("[#@]", change.source), change.name
        assert change.innocent or change.at, change.name
    faults = sum(not change.innocent for change in changes)
    assert (faults >= 40, len(changes) - faults >= 10) == (True, True)


@pytest.mark.parametrize("number", range(1, 30))
def test_pitfall_comes_to_what_its_row_says(number: int, tmp_path: Path) -> None:
    asked = importlib.import_module("pitfall")
    (pitfall,) = (p for p in importlib.import_module("every_pitfall").PITFALLS if p.number == number)
    said = asked.told(pitfall, tmp_path)
    assert (asked.outcome(pitfall, said), said.verdict) == ROWS[number], said
    assert asked.outcome(pitfall, type(said)(verdict="none", sentences=())) == "not seen"


def test_pitfalls_are_counted_right() -> None:
    named = sum(found == "named" for found, _ in ROWS.values())
    assert (sorted(ROWS), named >= 22, f"Named {named}, found" in PAGE) == (list(range(1, 30)), True, True)
