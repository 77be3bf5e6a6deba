"""The page of a kept run: everything that was found is on it, and nothing that a document holds runs."""

from __future__ import annotations

import dataclasses
import html
from html.parser import HTMLParser
from typing import Any

import pytest

from parity.compare.reason import Note
from parity.compare.result import Cause, Distance, Result, SiteDiff, Witness
from parity.golden.records import Key
from parity.report.formats.html import HEIGHT, MOST_ROWS, MOST_SITES, DocumentError, drift, strip, to_html
from parity.report.result_json import to_json
from tests.compare.make_records import because
from tests.report.test_result_json import RESULT

pytest.importorskip("jinja2")

VOID = {"meta", "img", "br", "line", "rect", "polyline", "circle"}


class Balanced(HTMLParser):
    """Fails on a tag that is not closed, and on anything that would run or load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object")
        assert not any(name.startswith("on") for name, _ in attrs)
        assert all((value or "").startswith("data:image/png") for name, value in attrs if name in ("src", "href"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:  # of a tag closed within itself
            return
        assert self.open.pop() == tag


def page(result: Result = RESULT, causes: Any = None) -> str:
    text = to_html(to_json(result), causes)
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    return text


def test_everything_found_is_on_the_page() -> None:
    text = page(causes=to_json(RESULT)["causes"])
    for said in (
        "verdict: ", ">fail<", "(structure)", "attention parts first", "attention.mask", "exact", "none",
        "transformer_blocks.0.attn.attention:out", "introduced at: <b>module</b>", "98.0 %", "phantom keys",
        "812 tensors",
        "6.70e-02", "∞", "q, k, v agree", "one", "two",
    ):  # fmt: skip
        assert said in text, said


def test_causes_that_were_not_asked_for_are_not_said_to_be_none() -> None:
    assert "parity explain" in page(causes=None)
    assert "None was found" in page(causes=[])


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"])
def test_a_foreign_document_cannot_put_anything_on_the_page_that_runs(hostile: str) -> None:
    cause = Cause(hostile, hostile, hostile, hostile, 0.5, (Witness(hostile, 1.0, hostile),))
    site = SiteDiff(Key(hostile, 0, hostile, hostile), Distance(1.0, 0.1, 10.0), verdict="fail", note=hostile)
    result = dataclasses.replace(
        RESULT, why=because(hostile), model=hostile, sites=(site,), notes=(Note(hostile),), causes=(cause,)
    )
    text = page(result, to_json(result)["causes"])
    assert "<script" not in text
    assert html.escape(hostile, quote=False) in text.replace("&#34;", '"')


def test_many_sites_are_cut_and_the_cut_is_said() -> None:
    sites = tuple(
        SiteDiff(Key("transformer", 0, "cond", f"m{i}:out"), Distance(1.0, 0.1, 10.0), verdict="fail")
        for i in range(MOST_SITES + 10)
    )
    text = page(dataclasses.replace(RESULT, sites=sites))
    assert text.count("<rect") == MOST_SITES
    assert f"{len(sites) - MOST_ROWS} more in result.json" in text
    assert f"the first {MOST_SITES} of {len(sites)}" in text


def test_nothing_compared_is_a_page_too() -> None:
    text = page(Result("unjudged", None, because("the two sides have no tensor in common")))
    assert "no tensor in common" in text
    assert "<svg" not in text


def test_marks_lie_on_the_axis() -> None:
    document = to_json(RESULT)
    chart = drift(document["steps"])
    assert chart is not None
    names = [line.name for line in chart.lines]
    assert names == ["noise_pred", "noise_pred floor", "latents", "latents floor"]
    assert all(0 <= y <= HEIGHT for line in chart.lines for _, y in line.points)
    bars = strip([{**document["sites"][0], "ratio": r} for r in ("nan", "inf", 1e-9, 1.0, 1e9)])
    assert bars is not None
    tops = [bar.y for bar in bars.bars]
    assert tops[:2] == [0.0, 0.0]  # what is no number is not drawn as agreement
    assert tops[2] >= tops[3] >= tops[4]


@pytest.mark.parametrize("key", ["sites", "steps", "preflight", "origin", "rounds"])
def test_a_document_that_lacks_something(key: str) -> None:
    document = to_json(RESULT)
    for broken in ({k: v for k, v in document.items() if k != key}, {**document, key: 7}):
        with pytest.raises(DocumentError, match="not a document of --json"):
            to_html(broken, None)
