"""The page of a sweep: its rows and the picture of error against time."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.commands.report import report
from parity.compare.prices import Price, PriceList
from parity.compare.result import Distance
from parity.errors import UsageError
from parity.report.formats import render
from parity.report.page.shell import DocumentError
from parity.report.page.sweep import best, build_sweep
from parity.report.prices import Prices
from tests.report.test_page import Read

pytest.importorskip("jinja2")


def price(name: str, error: float, seconds: float, verdict: str = "pass") -> Price:
    return Price(
        settings=(name,), verdict=verdict, noise_pred=Distance(error, 1e-6, error / 1e-6),  # type: ignore[arg-type]
        bits=10.5, bits_of=24, seconds=seconds, of_base=1.5, memory=2**20, reason="why",
    )  # fmt: skip


ROWS = (
    price("dtype=bfloat16", 1e-3, 0.010),
    price("rope=cached", 1e-6, 0.020),
    price("attention.mask=none", 1e-1, 0.005, "fail"),  # fastest, and none to choose
    price("jit=false", 1e-6, 0.080),
    price("attention.kernel=flex", float("nan"), float("nan"), "refused"),
)
LIST = PriceList("tiny", 2, 0, (), ("jit=true",), "TFRT_CPU_0", "cpu", True, ROWS)


def page(*lists: PriceList) -> tuple[Read, str]:
    text = build_sweep(Prices(lists).json())
    read = Read()
    read.feed(text)
    assert read.open == []
    return read, text


def test_every_row_is_on_the_page_and_what_it_was_measured_on() -> None:
    read, _ = page(LIST)
    for row in ROWS:
        assert row.name in read.shown
    for said in ("1.00e-03", "10.0 ms", "1.50×", "1.0 MiB", "10.5 of 24", "jit=true", "TFRT_CPU_0", "No TPU", "why"):
        assert said in read.shown, said
    assert read.scripts == []
    assert "script-src 'none'" in read.policy


def test_the_picture_joins_the_rows_that_pass_and_that_no_other_beats() -> None:
    _, text = page(LIST)
    assert text.count("<circle") == 4  # the refused row has no place
    assert len(re.findall(r'class="dot \w+ best"', text)) == 2
    points = re.search(r'class="front" points="([^"]*)"', text)
    assert points is not None
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in points[1].split())
    assert x1 < x2  # slower,
    assert y1 < y2  # and with less error, which lies lower
    assert "1: dtype=bfloat16: 1.00e-03, 10.0 ms" in text


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), max_size=12))
def test_the_best_are_those_that_nothing_beats(rows: list[tuple[float, float]]) -> None:
    found = {rows[i] for i in best(rows)}
    for row in rows:
        beaten = any(other != row and other[0] <= row[0] and other[1] <= row[1] for other in rows)
        assert (row in found) == (not beaten)


@pytest.mark.parametrize("rows", [(), ROWS[:1], (ROWS[0], ROWS[0]), (price("a", 0.0, 0.0), price("b", 0.0, 1.0))])
def test_few_and_equal_rows_are_a_page_too(rows: tuple[Price, ...]) -> None:
    _, text = page(replace(LIST, rows=rows))
    assert not re.search(r'="[^"]*\bnan\b', text)  # a dot or an axis without a place


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"])
def test_nothing_of_a_document_runs(hostile: str) -> None:
    rows = tuple(replace(row, settings=(hostile,), reason=hostile) for row in ROWS)
    made = replace(LIST, model=hostile, device=hostile, reference=(hostile,), candidate=(hostile,), rows=rows)
    read, _ = page(made)
    assert read.scripts == []
    assert hostile in html.unescape(read.shown)


def test_two_models_and_a_large_sweep_are_small() -> None:
    many = tuple(price(f"a=b{i}", 1e-6 * (i + 1), 0.01 * (i % 7 + 1)) for i in range(2_000))
    _, text = page(LIST, replace(LIST, model="second", rows=many))
    assert "second" in text
    assert len(text) < 3_000_000


def test_a_file_and_a_format_give_the_same_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "sweep.json"
    document.write_text(render(Prices([LIST]), "json"))
    report(run=document)
    assert capsys.readouterr().out.strip() == str(tmp_path / "sweep.html")
    page = (tmp_path / "sweep.html").read_text()
    assert re.sub(r"</code> \d\S*\.", "</code>.", page) == render(Prices([LIST]), "html")


@pytest.mark.parametrize("sweeps", ["7", "[7]", "[{}]", '[{"rows": 7}]'])
def test_a_damaged_document_is_a_sentence(tmp_path: Path, sweeps: str) -> None:
    (tmp_path / "sweep.json").write_text(f'{{"sweeps": {sweeps}}}')
    with pytest.raises(UsageError, match=r"sweep\.json' cannot be shown"):
        report(run=tmp_path / "sweep.json")
    with pytest.raises(DocumentError):
        build_sweep({})
