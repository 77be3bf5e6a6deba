"""The page of a comparison: everything that was found is on it, and nothing that a document holds runs."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import html
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from parity.compare.reason import Note
from parity.compare.result import Cause, Distance, Result, SiteDiff, Witness
from parity.errors import MalformedError
from parity.records import Key, Provenance
from parity.report.formats.html import (
    HERE,
    INTRODUCED,
    VERDICTS,
    Picture,
    Shown,
    Table,
    build,
)
from parity.report.formats.json import to_json
from tests.support.made import because
from tests.support.results import RESULT

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
            assert re.match(r"data:image/png;|data:,$|#\d+\.\d+$", given.get(name) or "data:,"), given
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
        "✗ fail", "(logic)", "attention parts first", "attention.mask", "exact", "none",
        "transformer_blocks.0.attn.attention:out", "introduced in this module", "98.0 %", "phantom keys",
        "812 tensors", "6.70e-02", "inf", "q, k, v agree", "one", "two",
    ):  # fmt: skip
        assert said in shown, said


def test_several_differences_are_listed_and_one_is_not() -> None:
    two = {**to_json(RESULT), "differences": [
        {"place": "the schedule", "branches": [], "causes": ["its shift is 1, not 5"]},
        {"place": "the argument text", "branches": ["cond", "uncond"], "causes": []},
    ]}  # fmt: skip
    read = Read()
    read.feed(build(Shown(document=two)))
    assert "2 independent differences" in read.shown
    assert "the schedule: its shift is 1, not 5" in read.shown
    assert "the argument text (cond, uncond)" in read.shown
    assert "independent difference" not in page().shown


def test_causes_that_were_not_asked_for_are_not_said_to_be_none() -> None:
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


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "</script><b>", "\x1b]0"]
)  # fmt: skip
def test_a_foreign_document_cannot_put_anything_on_the_page_that_runs(hostile: str) -> None:
    cause = Cause(hostile, hostile, hostile, hostile, 0.5, (Witness(hostile, 1.0, hostile),))
    site = SiteDiff(Key(hostile, 0, hostile, hostile), Distance(1.0, 0.1, 10.0), verdict="fail", note=hostile)
    result = dataclasses.replace(
        RESULT, why=because(hostile), model=hostile, sites=(site,), notes=(Note(hostile),), causes=(cause,), origin=None
    )
    sides = [Provenance(hostile, hostile, hostile, {hostile: hostile}, 0, 1, versions={hostile: hostile})]
    frames = [Picture(0, "data:image/png;base64,", "data:image/png;base64,", hostile)]
    read = page(result, to_json(result)["causes"], sides=sides, pictures=frames, pictures_note=hostile)
    assert len(read.scripts) == 2
    assert [row[2] for row in table_of(data(read)["packed"])["rows"]] == [hostile]
    assert "\x1b" not in read.shown
    if "\x1b" not in hostile:
        assert hostile in html.unescape(read.shown)


@pytest.mark.parametrize("key", ["sites", "steps", "preflight", "origin", "checks", "closer", "frames"])
def test_a_document_that_lacks_something(key: str) -> None:
    document = to_json(RESULT)
    for broken in ({k: v for k, v in document.items() if k != key}, {**document, key: 7}):
        with pytest.raises(MalformedError, match="not a document of --format json"):
            build(Shown(document=broken))


# --- Packed sites


def table_of(text: str) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(base64.b64decode(text))))


def unpack(text: str) -> dict[tuple[str, int], dict[str, Any]]:
    """(site, step) -> its numbers and verdict, read as `page.js` reads them."""
    table, found = table_of(text), {}
    for i, at in enumerate(table["at"]):
        row, column = divmod(at, len(table["steps"]))
        numbers = {name: table[name][i] for name in ("rel_l2", "floor", "ratio")}
        found[table["rows"][row][2], table["steps"][column]] = {
            **{name: math.nan if x is None else math.inf if x < 0 else x for name, x in numbers.items()},
            "verdict": VERDICTS[table["state"][i] % 8],
            "introduced": INTRODUCED[table["state"][i] >> 3],
        }
    assert len(found) == len(table["at"])
    return found


def site(name: str, step: int, value: float | str = 1.0, **other: Any) -> dict[str, Any]:
    numbers = dict.fromkeys(("rel_l2", "floor", "ratio", "local_rel_l2", "local_ratio"), value)
    return {
        "stage": "transformer", "branch": "", "site": name, "step": step, "call": 0, "shapes": [[1], [1]],
        "dtypes": ["float32", "float32"], "verdict": "pass", "introduced": None, "note": "", **numbers, **other,
    }  # fmt: skip


def packed(*sites: dict[str, Any]) -> str:
    return Table.of(sites).packed()


VALUES = st.floats(0, 1e300) | st.sampled_from([math.nan, math.inf])


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 300), st.integers(-1, 70)),
        st.tuples(
            st.floats(0, 1e300) | st.sampled_from([math.nan, math.inf]),
            st.sampled_from(VERDICTS),
            st.sampled_from(INTRODUCED),
        ),
        max_size=60,
    )
)
def test_what_is_packed_is_unpacked(sites: dict[tuple[int, int], tuple[float, str, str | None]]) -> None:
    table = packed(*(site(f"m{m}:out", s, v, verdict=d, introduced=b) for (m, s), (v, d, b) in sites.items()))
    found = unpack(table)
    assert set(found) == {(f"m{m}:out", s) for m, s in sites}
    for (m, s), (value, verdict, birth) in sites.items():
        cell = found[f"m{m}:out", s]
        assert (cell["verdict"], cell["introduced"]) == (verdict, birth)
        if math.isfinite(value):
            assert cell["rel_l2"] == pytest.approx(value, rel=5e-3)
        else:
            assert str(cell["rel_l2"]) == str(value)


@pytest.mark.parametrize(
    "broken",
    [{"step": "0"}, {"verdict": "fine"}, {"introduced": "there"}, {"rel_l2": "nan"}, {"site": 1}, {"shapes": []}],
)  # fmt: skip
def test_what_is_no_site(broken: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        packed({**site("m:out", 0), **broken})


def test_of_two_sites_at_one_place_the_graver_is_kept_and_a_large_run_is_small() -> None:
    for pair in (("fail", "pass"), ("pass", "fail")):
        found = unpack(packed(*(site("m:out", 0, verdict=verdict) for verdict in pair)))
        assert found["m:out", 0]["verdict"] == "fail"
    values = np.random.default_rng(0).lognormal(-12, 1, 10_000)
    sites = [site(f"transformer_blocks.{i % 200}.attn:out", i // 200, float(x)) for i, x in enumerate(values)]
    assert len(packed(*sites)) < 15 * len(sites)  # 1.5 MB of 100,000
