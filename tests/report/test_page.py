"""The page of a comparison: everything that was found is on it, and nothing that a document holds runs."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from parity.compare.judge import L2_LIMIT
from parity.compare.reason import Note
from parity.compare.result import Cause, Distance, Result, SiteDiff, Witness
from parity.golden.records import Key
from parity.report.page.build import LIMIT, DocumentError, Picture, Shown, Side, build
from parity.report.page.shell import HERE
from parity.report.result_json import to_json
from tests.support.made import because
from tests.support.results import RESULT

pytest.importorskip("jinja2")

VOID = {"meta", "img", "br", "input", "link", "meter"}


class Read(HTMLParser):
    """Fails on a tag that is not closed, on a handler and on an address; keeps the scripts and what is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: list[tuple[str, str]] = []
        self.policy = ""
        self.shown = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert tag not in ("iframe", "object", "embed", "base", "form")
        assert not any(name.startswith("on") or name in ("style", "srcset", "action") for name in given)
        for name in ("src", "href"):
            assert re.match(r"data:image/png;|data:,$|#\d+\.\d+$|#words$", given.get(name) or "data:,"), given
        if tag == "script":
            assert "src" not in given
            self.scripts.append((given.get("type") or "", ""))
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "meter":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)
        elif self.open[-1:] != ["style"]:
            self.shown += data


def page(result: Result = RESULT, causes: Any = None, **beside: Any) -> Read:
    text = build(Shown(document=to_json(result), causes=causes, **beside))
    read = Read()
    read.feed(text)
    assert read.open == []
    return read


def data(read: Read) -> dict[str, Any]:
    return dict(json.loads(next(text for kind, text in read.scripts if kind == "application/json")))


def test_everything_found_is_on_the_page() -> None:
    shown = page(causes=to_json(RESULT)["causes"]).shown
    for said in (
        "verdict: fail", "(structure)", "attention parts first", "attention.mask", "exact", "none",
        "transformer_blocks.0.attn.attention:out", "introduced at: the module", "98.0 %", "phantom keys",
        "812 tensors", "6.70e-02", "∞", "q, k, v agree", "one", "two",
    ):  # fmt: skip
        assert said in shown, said


def test_causes_that_were_not_asked_for_are_not_said_to_be_none() -> None:
    assert LIMIT == L2_LIMIT
    assert "parity explain" in page(causes=None).shown
    assert "none was found" in page(causes=[]).shown


def test_only_the_page_s_own_script_may_run_and_nothing_may_load() -> None:
    read = page()
    (script,) = (text for kind, text in read.scripts if not kind)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = dict(rule.strip().split(" ", 1) for rule in read.policy.split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == f"'sha256-{digest}'"
    assert (policy["img-src"], policy["base-uri"], policy["form-action"]) == ("data:", "'none'", "'none'")
    assert "connect-src" not in policy
    assert "unsafe" not in read.policy


def test_the_script_writes_text_and_never_markup() -> None:
    own = "".join(path.read_text() for path in HERE.glob("*.js"))
    found = re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(|http", own
    )
    assert not found
    assert "Permission is hereby granted" in page().scripts[-1][1]  # the library's licence goes with it


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "</script><b>", "\x1b]0"]
)  # fmt: skip
def test_a_foreign_document_cannot_put_anything_on_the_page_that_runs(hostile: str) -> None:
    cause = Cause(hostile, hostile, hostile, hostile, 0.5, (Witness(hostile, 1.0, hostile),))
    site = SiteDiff(Key(hostile, 0, hostile, hostile), Distance(1.0, 0.1, 10.0), verdict="fail", note=hostile)
    result = dataclasses.replace(
        RESULT, why=because(hostile), model=hostile, sites=(site,), notes=(Note(hostile),), causes=(cause,), origin=None
    )
    sides = [Side("reference", {hostile: hostile}, {hostile: hostile})]
    frames = [Picture(0, "data:image/png;base64,", "data:image/png;base64,", hostile)]
    read = page(result, to_json(result)["causes"], sides=sides, pictures=frames)
    assert len(read.scripts) == 2
    assert [line[2] for line in data(read)["sites"]["lines"]] == [hostile]
    assert "\x1b" not in read.shown
    if "\x1b" not in hostile:
        assert hostile in html.unescape(read.shown)


@pytest.mark.parametrize("key", ["sites", "steps", "preflight", "origin", "rounds", "closer", "frames"])
def test_a_document_that_lacks_something(key: str) -> None:
    document = to_json(RESULT)
    for broken in ({k: v for k, v in document.items() if k != key}, {**document, key: 7}):
        with pytest.raises(DocumentError, match="not a document of --json"):
            build(Shown(document=broken))
