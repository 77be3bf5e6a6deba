"""JSON, JUnit and Markdown: what a program or a reviewer reads; a name is never more than a name."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from parity.compare.reason import Note
from parity.compare.result import Check, Origin, Result, SettingDifference, SiteDiff
from parity.errors import UsageError
from parity.records import Key
from parity.report import formats
from parity.report.comparison import Comparison
from parity.report.document import Facts, Listing
from parity.report.formats.junit import MOST_SITES, junit
from parity.report.formats.markdown import MOST_ROWS, markdown, text
from tests.support.made import because
from tests.support.results import FAR, KEY, RESULT, STEP, site

LISTING = Listing({"format": 1, "tools": [{"tool": "a"}, {"tool": "b"}]}, (Facts((("tool", "a"), ("tool", "b"))),))
INCONCLUSIVE = Result(
    "inconclusive", None, because("nothing in common"), preflight=(Check("seed", "fail", "7 against 8"),)
)


def test_a_listing_has_those_formats_that_are_not_of_a_comparison() -> None:
    assert json.loads(formats.render(LISTING, "json")) == LISTING.document
    assert formats.render(LISTING, "text") == "tool: a\ntool: b\n"
    assert formats.render(LISTING, "markdown") == "- **tool**: a\n- **tool**: b\n"
    names: tuple[formats.Name, ...] = ("junit", "html")
    for name in names:
        with pytest.raises(UsageError, match=f"--format {name} .* a comparison"):
            formats.render(LISTING, name)


# --- JSON


def document(result: Result) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON number")

    whole = formats.render(Comparison(result), "json")
    assert whole.isascii()
    return dict(json.loads(whole, parse_constant=refuse))


def test_the_keys_of_the_contract() -> None:
    found = document(RESULT)
    assert list(found) == [
        "format", "verdict", "failed", "reason", "model", "differing_settings", "preflight", "steps", "sites",
        "origin", "causes", "checks", "stages", "frames", "closer", "notes", "differences", "next",
    ]  # fmt: skip
    assert list(document(INCONCLUSIVE)) == list(found)
    assert (found["format"], found["verdict"], found["failed"], found["notes"]) == (
        2,
        "fail",
        "logic",
        ["one", "two"],
    )
    far = {"rel_l2": 6.7e-2, "floor": 1 / 3, "ratio": sys.float_info.max}
    place = {"stage": "transformer", "step": 0, "branch": "cond", "site": KEY.site, "call": 1}
    assert found["origin"] == {**place, "introduced": "module"}
    assert found["steps"] == [
        {
            "step": 0, "timestep": 999.0, "sigma": 1.0, "dt": -0.1,
            "candidate": {"timestep": 1000.0, "sigma": 0.9, "dt": None},
            "latents_before": far, "noise_pred": far, "branches": {"cond": far},
            "latents": {"rel_l2": 1.0, "floor": 2.0, "ratio": 0.5}, "bits": None, "bits_of": 0,
        }
    ]  # fmt: skip
    first, second = found["sites"]
    assert first == {
        **place, **far, "local_rel_l2": None, "local_floor": None, "local_ratio": None, "cosine": 0.5,
        "max_abs": -sys.float_info.max, "linf_ratio": None,
        "shapes": [[1, 2], [1, 3]], "dtypes": ["float32", "bfloat16"],
        "nonfinite": [0, 2], "introduced": "module", "verdict": "fail", "note": "q, k, v agree", "bins": [1.0, None],
    }  # fmt: skip
    assert "bins" not in second  # of a site that passes nobody asks where in it the difference lies
    assert found["causes"][0]["evidence"] == [
        {"kind": "measured", "value": 64.0, "detail": "phantom keys", "confirm": ""}
    ]


# --- JUnit


def cases(result: Result) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(junit(Comparison(result)).encode())
    suite = root[0]
    for element in (root, suite):
        assert element.get("tests") == str(len(suite))
        assert element.get("failures") == str(len(suite.findall("testcase/failure")))
        assert element.get("errors") == str(len(suite.findall("testcase/error")))
    named = {f"{case.get('classname')}/{case.get('name')}": case for case in suite}
    assert len(named) == len(suite), "a CI server would count two cases of one name as one"
    return named


def failing(*sites: SiteDiff) -> Result:
    return replace(RESULT, sites=sites, origin=Origin(next(s.key for s in sites if s.verdict == "fail"), "module"))


def test_one_case_a_block_step_and_branch_and_failures_carry_their_numbers() -> None:
    born = site("b:out", 64384.0, "fail", birth="module")
    found = cases(
        failing(
            site("a:in.x"), site("a.attn:out"), site("a:out", branch="uncond"), site("a:out", step=1), site("b:in.x"),
            born, site("loop:noise_pred", branch=""), site("pad:out@padding", verdict="ignored"), site(":out"),
        )
    )  # fmt: skip
    assert list(found) == [
        "parity/verdict", "transformer.step 0.cond/a", "transformer.step 0.uncond/a", "transformer.step 1.cond/a",
        "transformer.step 0.cond/b", "transformer.step 0/loop", "transformer.step 0.cond/(model)",
    ]  # fmt: skip
    failed = {name: case[0] for name, case in found.items() if len(case)}
    assert list(failed) == ["parity/verdict", "transformer.step 0.cond/b"]
    assert failed["parity/verdict"].text == "attention parts first\none\ntwo"
    assert "b:out: rel L2 6.44e-02, floor 1.00e-06, ratio 6.4e+04x (module)" in (
        failed["transformer.step 0.cond/b"].text or ""
    )
    many = cases(failing(*(site(f"a:in.{i}", 9.0, "fail") for i in range(MOST_SITES + 3))))
    listed = (many["transformer.step 0.cond/a"][0].text or "").splitlines()
    assert (len(listed), listed[-1]) == (MOST_SITES + 1, "and 3 more: --format json has all")


def test_inconclusive_is_an_error_never_an_empty_success() -> None:
    (error,) = cases(INCONCLUSIVE)["parity/verdict"]
    assert (error.tag, error.text) == ("error", "nothing in common\nseed: 7 against 8")
    some = cases(replace(INCONCLUSIVE, sites=(site("a:out", verdict="inconclusive"), site("b:out"))))
    assert [case[0].tag for case in some.values() if len(case)] == ["error", "error"]
    grown = cases(Result("pass", None, because(""), sites=(site("a:out", 9.0, "fail", birth="propagated"),)))
    assert all(len(case) == 0 for case in grown.values()), "growth that fails no run fails no case"


@given(st.text() | st.just("\x00\x01<&>\"']]>\ud800\ufffe\n\r\t\x7f\U0001f600"))
def test_any_name_is_taken_by_a_parser(name: str) -> None:
    bad = SiteDiff(Key("t", 0, name, f"{name}:out"), FAR, verdict="fail", note=name)
    result = Result("fail", "logic", because(name), name, sites=(bad,), notes=(Note(name),))
    assert len(cases(result)) == 2
    assert junit(Comparison(result)).isprintable() or "\n" in junit(Comparison(result))


# --- Markdown


def test_a_summary_says_what_a_reviewer_asks_in_order() -> None:
    sites = tuple(site(f"s{i}:out", float(i + 10), "fail") for i in range(40))
    steps = tuple(replace(STEP, step=i) for i in range(MOST_ROWS))
    out = markdown(Comparison(replace(RESULT, sites=sites, steps=steps)))
    said = [
        "## ❌ parity: fail (logic)\n", "- **verdict**: fail", "- **reason**: attention parts first",
        "- **kind**: logic", "- **settings**: attention.mask", "- **note**: one",
        "- **preflight**:", "### Steps", "steps: -v", "### Blocks of step 0", "### Sites that failed",
        "more: -v",
    ]  # fmt: skip
    places = [out.index(words) for words in said]
    assert places == sorted(places)
    for verdict, sign in (("pass", "✅"), ("inconclusive", "⚠️")):
        result = Result(verdict, None, because("because"))  # type: ignore[arg-type]
        assert markdown(Comparison(result)).startswith(f"## {sign} parity: {verdict}\n")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a*b_c`d|e", r"a\*b\_c\`d\|e"), ("<script>&lt;", r"\<script\>&amp;lt;"), ("![x](y)", r"!\[x\](y)"),
        ("see @octocat and #12", "see @\u2060octocat and #\u206012"), ("http://x.yz", "http:\u2060//x.yz"),
        ("out@image", "out@image"), ("# head", "\u2060# head"), ("1. item", "\u20601. item"), ("a\n\n- b", "a - b"),
    ],
)  # fmt: skip
def test_a_sentence_is_only_a_sentence(raw: str, shown: str) -> None:
    assert text(raw) == shown


@given(st.text())
def test_no_name_leaves_its_cell(name: str) -> None:
    bad = SiteDiff(Key("t", 0, "", f"m{name}:out"), FAR, verdict="fail", note=name)
    result = replace(
        RESULT, why=because(name), model=name, sites=(bad,), differing_settings=(SettingDifference(name, name, name),)
    )
    out = markdown(Comparison(result))
    rows = [line for line in out.split("\n") if line.startswith("| ") and "---" not in line]
    assert len(rows) == (1 + 3) + (1 + 1) + (1 + 1), "one line a row"
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", rows[-1])) == 6, rows[-1]
    assert all(char.isprintable() or char in "\n\u2060" for char in out)


def test_a_summary_has_no_commands_of_one_machine_and_json_has_them() -> None:
    shown = Comparison(RESULT, following=("parity explain run   # why",))
    assert "parity explain" not in markdown(shown)
    assert json.loads(formats.render(shown, "json"))["next"] == ["parity explain run"]
