"""The page of a comparison: everything that was found is on it, and nothing that a document holds runs."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.compare.judge import L2_LIMIT
from parity.compare.reason import Note
from parity.compare.result import Cause, Distance, Result, SiteDiff, Witness
from parity.golden.records import Key
from parity.report.page.build import LIMIT, DocumentError, Picture, Shown, Side, build
from parity.report.page.pack import BIRTHS, VERDICTS, pack
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


# --- Packed sites


def unpack(packed: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """(site, step) -> its numbers and verdict, read as `1_data.js` reads them."""
    state = base64.b64decode(packed["state"])
    numbers = {}
    for name, text in packed["numbers"].items():
        wide = np.zeros((len(state), 4), dtype=np.uint8)
        wide[:, :3] = np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(-1, 3)
        numbers[name] = (wide.view("<u4").ravel() << 7).view(np.float32)
    found, place, shift, distance = {}, -1, 0, 0
    for byte in base64.b64decode(packed["at"]):
        distance |= (byte & 127) << shift
        shift += 7
        if byte & 128:
            continue
        place, distance, shift = place + distance, 0, 0
        line, column = divmod(place, len(packed["steps"]))
        i = len(found)
        found[packed["lines"][line][2], packed["steps"][column]] = {
            **{name: float(values[i]) for name, values in numbers.items()},
            "verdict": VERDICTS[state[i] & 7],
            "birth": BIRTHS[state[i] >> 3],
        }
    assert len(found) == len(state)
    return found


def site(name: str, step: int, value: float | str = 1.0, **other: Any) -> dict[str, Any]:
    numbers = dict.fromkeys(("rel_l2", "floor", "ratio", "local_rel_l2", "local_ratio"), value)
    return {
        "stage": "transformer", "branch": "", "site": name, "step": step, "call": 0, "shapes": [[1], [1]],
        "dtypes": ["float32", "float32"], "verdict": "pass", "birth": None, "note": "", **numbers, **other,
    }  # fmt: skip


def packed(*sites: dict[str, Any], closer: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return pack({"sites": list(sites), "closer": list(closer)})


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 300), st.integers(-1, 70)),
        st.tuples(st.floats(0) | st.just(math.nan), st.sampled_from(VERDICTS), st.sampled_from(BIRTHS)),
        max_size=60,
    )
)
def test_what_is_packed_is_unpacked(sites: dict[tuple[int, int], tuple[float, str, str | None]]) -> None:
    table = packed(*(site(f"m{m}:out", s, v, verdict=d, birth=b) for (m, s), (v, d, b) in sites.items()))
    found = unpack(table)
    assert set(found) == {(f"m{m}:out", s) for m, s in sites}
    for (m, s), (value, verdict, birth) in sites.items():
        cell = found[f"m{m}:out", s]
        assert (cell["verdict"], cell["birth"]) == (verdict, birth)
        if math.isnan(value) or math.isinf(value):
            assert str(cell["rel_l2"]) == str(value)
        elif 1e-37 < value < 1e38:
            assert cell["rel_l2"] == pytest.approx(value, rel=1e-5)  # three digits of what is printed are right
        else:
            assert math.isfinite(cell["rel_l2"])


@pytest.mark.parametrize(
    "broken",
    [{"step": "0"}, {"verdict": "fine"}, {"birth": "there"}, {"rel_l2": None}, {"site": 1}, {"shapes": []}],
)  # fmt: skip
def test_what_is_no_site(broken: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        packed({**site("m:out", 0), **broken})


def test_of_two_sites_at_one_place_the_graver_is_kept_and_a_large_run_is_small() -> None:
    for pair in (("fail", "pass"), ("pass", "fail")):
        found = unpack(packed(*(site("m:out", 0, verdict=verdict) for verdict in pair)))
        assert found["m:out", 0]["verdict"] == "fail"
    sites = [site(f"transformer_blocks.{m}.attn:out", s) for s in range(50) for m in range(200)]
    assert len(str(packed(*sites))) < 28 * len(sites) + 20_000
