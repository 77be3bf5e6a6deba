"""The summary for a pull request: what a reviewer asks for, in order, and no name is more than a name."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.compare.reason import Note
from parity.compare.result import (
    Check,
    Distance,
    Origin,
    Result,
    SettingDifference,
    SiteDiff,
    StepDiff,
)
from parity.golden.records import Key
from parity.report.comparison import Comparison
from parity.report.document import Facts, Listing
from parity.report.formats.markdown import MOST_ROWS, code, markdown, text
from parity.report.tables import MOST_SITES
from tests.support.made import because

FAR = Distance(0.405, 6.3e-6, 64384.0)


def site(name: str, ratio: float, verdict: str = "fail") -> SiteDiff:
    key = Key("transformer", 0, "cond", name)
    return SiteDiff(key, Distance(ratio * 1e-6, 1e-6, ratio), birth=None, verdict=verdict)  # type: ignore[arg-type]


def step(at: int) -> StepDiff:
    return StepDiff(at, (999.0, 1000.0), (1.0, 1.0), (-0.5, -0.5), FAR, Distance(0.1, 0.2, 0.5), FAR)


RESULT = Result(
    "fail",
    "structure",
    because("first divergence: blocks.0 output, image tokens (step 0, cond)"),
    "tiny",
    differing_settings=(SettingDifference("attention.mask", "exact", "none"),),
    preflight=(Check("weights", "pass", "3 equal"), Check("steps held", "explained", "the candidate was not finished")),
    steps=(step(0), step(1)),
    sites=(site("a:out", 2.0, "pass"), site("b:out", 70.0), site("c:out", 900.0), site("p:out", 1e9, "apart")),
    origin=Origin(Key("transformer", 0, "cond", "b:out"), "module"),
    notes=(Note("one note"),),
)


def of(result: Result) -> str:
    return markdown(Comparison(result))


def test_it_says_what_a_reviewer_asks() -> None:
    assert (
        of(RESULT)
        == """## ❌ parity: fail (structure)

- **verdict**: fail (structure): tiny
- **reason**: first divergence: blocks.0 output, image tokens (step 0, cond)
- **first divergence**: step 0 cond b:out, introduced in the module (its inputs match, its output differs)

- **differs**: attention.mask: exact -\\> none
- **note**: one note

- **preflight**: explained: steps held: the candidate was not finished
- **preflight**: 1 other check passes

### Steps (relative L2 of candidate against reference)

| step | timestep | sigma | dt | value | rel L2 | floor | ratio | bits |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| `0` | 999 -\\> 1000 | 1 | -0.5 | noise\\_pred | 4.05e-01 | 6.30e-06 | 6.4e+04x | - |
| `0` | 999 -\\> 1000 | 1 | -0.5 | latents | 1.00e-01 | 2.00e-01 | 0.5x | - |
| `1` | 999 -\\> 1000 | 1 | -0.5 | noise\\_pred | 4.05e-01 | 6.30e-06 | 6.4e+04x | - |
| `1` | 999 -\\> 1000 | 1 | -0.5 | latents | 1.00e-01 | 2.00e-01 | 0.5x | - |

floor: what rounding alone explains; ratio: difference to floor, fails above 3x

### Blocks of step 0 (worst ratio to the floor)

| block | cond out | cond in | verdict |
| --- | --- | --- | --- |
| `a` | 2.0x | - | pass |
| `b` | 70.0x | - | fail |
| `c` | 900.0x | - | fail |

in, out: the worst input and output of a block, in multiples of its floor

### Sites that failed

| site | where | rel L2 | ratio | remarks |
| --- | --- | --- | --- | --- |
| `b:out` | step 0 cond | 7.00e-05 | 70.0x | - |
| `c:out` | step 0 cond | 9.00e-04 | 900.0x | - |

module: inputs match, output differs; input: it differs, its producer matches
"""
    )


@pytest.mark.parametrize(("verdict", "sign"), [("pass", "✅"), ("unjudged", "⚠️")])
def test_the_verdict_is_the_heading(verdict: str, sign: str) -> None:
    result = Result(verdict, None, because("because"))  # type: ignore[arg-type]
    assert of(result) == f"## {sign} parity: {verdict}\n\n- **verdict**: {verdict}\n- **reason**: because\n"


def test_long_results_are_cut_and_it_is_said() -> None:
    sites = tuple(site(f"s{i}:out", float(i)) for i in range(40))
    out = of(replace(RESULT, sites=sites, steps=tuple(step(i) for i in range(MOST_ROWS))))
    assert f"\n{40 - MOST_SITES} more: --json has all\n" in out
    assert "\n100 more rows\n" in out
    assert out.count("| noise\\_pred |") + out.count("| latents |") == MOST_ROWS


def test_any_document_has_a_page() -> None:
    listing = Listing({"format": 1}, (Facts((("found", "a"), ("", "b"))), Facts(())), heading="# Title")
    assert markdown(listing) == "# Title\n\n- **found**: a\n- b\n"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "`plain`"),
        ("a`b", "``a`b``"),
        ("`a``", "``` `a`` ```"),
        ("", "` `"),
        ("a|b", "`a¦b`"),
        ("a\nb\x00", "`a b\\x00`"),
    ],
)
def test_a_name_is_a_code_span(raw: str, shown: str) -> None:
    assert code(raw) == shown


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a*b_c`d|e", r"a\*b\_c\`d\|e"),
        ("<script>&lt;", r"\<script\>&amp;lt;"),
        ("![x](y)", r"!\[x\](y)"),
        ("see @octocat and #12", "see @\u2060octocat and #\u206012"),
        ("http://x.yz www.x.yz", "http:\u2060//x.yz www\u2060.x.yz"),
        ("out@image", "out@image"),
        ("# head", "\u2060# head"),
        ("1. item", "\u20601. item"),
        ("a\n\n- b", "a - b"),
    ],
)
def test_a_sentence_is_only_a_sentence(raw: str, shown: str) -> None:
    assert text(raw) == shown


@given(st.text())
def test_no_name_leaves_its_cell(name: str) -> None:
    bad = SiteDiff(Key("t", 0, "", f"{name}:out"), FAR, verdict="fail", note=name)
    result = replace(
        RESULT, why=because(name), model=name, sites=(bad,), differing_settings=(SettingDifference(name, name, name),)
    )
    out = of(result)
    rows = [line for line in out.split("\n") if line.startswith("| ") and "---" not in line]
    assert len(rows) == (1 + 4) + (1 + 1) + (1 + 1), "one line a row"
    for row, cells in ((rows[6], 4), (rows[-1], 5)):
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == cells + 1, row
    assert all(char.isprintable() or char in "\n\u2060" for char in out)
