"""JUnit XML: one case a block, step and branch; whatever the names, a parser takes it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.compare.reason import Note
from parity.compare.result import NAN, Birth, Check, Distance, Origin, Result, SiteDiff, SiteVerdict
from parity.golden.records import Key
from parity.report.comparison import Comparison
from parity.report.formats.junit import MOST_SITES, junit
from tests.support.made import because

FAR = Distance(0.405, 6.3e-6, 64384.0)


def site(
    name: str, verdict: SiteVerdict = "pass", *, step: int = 0, branch: str = "cond", birth: Birth | None = None
) -> SiteDiff:
    return SiteDiff(Key("transformer", step, branch, name), FAR, birth=birth, verdict=verdict)


def failing(*sites: SiteDiff, notes: tuple[Note, ...] = ()) -> Result:
    born = next(s for s in sites if s.verdict == "fail")
    return Result(
        "fail", "structure", because("they part"), "tiny", sites=sites, origin=Origin(born.key, "module"), notes=notes
    )


def cases(result: Result) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(junit(Comparison(result)).encode())
    suite = root[0]
    found = list(suite)
    for element in (root, suite):
        assert element.get("tests") == str(len(found))
        assert element.get("failures") == str(len(suite.findall("testcase/failure")))
        assert element.get("errors") == str(len(suite.findall("testcase/error")))
    named = {f"{case.get('classname')}/{case.get('name')}": case for case in found}
    assert len(named) == len(found), "a CI server would count two cases of one name as one"
    return named


def test_a_pass_is_one_case_a_block_step_and_branch() -> None:
    sites = [
        site("blocks.0:in.x"), site("blocks.0.attn:out"), site("blocks.0:out"), site("norm:out"),
        site("blocks.0:out", branch="uncond"), site("blocks.0:out", step=1), site("loop:noise_pred", branch=""),
        site("pad:out@padding", "apart"), site(":out"),
    ]  # fmt: skip
    found = cases(Result("pass", None, because("all agree"), "tiny", sites=tuple(sites)))
    assert list(found) == [
        "parity/verdict",
        "transformer.step 0.cond/blocks.0",
        "transformer.step 0.cond/norm",
        "transformer.step 0.uncond/blocks.0",
        "transformer.step 1.cond/blocks.0",
        "transformer.step 0/loop",
        "transformer.step 0.cond/(model)",
    ]
    assert all(len(case) == 0 for case in found.values())


def test_a_failure_carries_its_numbers() -> None:
    found = cases(
        failing(site("a:out"), site("b:in.x"), site("b:out", "fail", birth="module"), notes=(Note("and this"),))
    )
    assert [name for name, case in found.items() if len(case)] == ["parity/verdict", "transformer.step 0.cond/b"]
    verdict, block = found["parity/verdict"][0], found["transformer.step 0.cond/b"][0]
    assert (verdict.tag, verdict.get("type"), verdict.get("message")) == ("failure", "structure", "they part")
    assert verdict.text == "they part\nand this"
    numbers = "transformer step 0 cond b:out: rel L2 4.05e-01, floor 6.30e-06, ratio 6.4e+04x (module)"
    assert block.get("message") == f"1 of 2 sites beyond their floors, introduced here (module): {numbers}"
    assert block.text == numbers


def test_only_the_first_sites_of_a_block_are_listed() -> None:
    sites = [site(f"a:in.{i}", "fail") for i in range(MOST_SITES + 3)]
    text = cases(failing(*sites))["transformer.step 0.cond/a"][0].text
    assert text is not None
    assert len(text.splitlines()) == MOST_SITES + 1
    assert text.endswith("and 3 more: --json has all")


def test_unjudged_is_an_error_never_an_empty_success() -> None:
    checks = (Check("seed", "fail", "7 against 8"), Check("model", "pass", "tiny"))
    found = cases(Result("unjudged", None, because("not comparable"), preflight=checks))
    assert list(found) == ["parity/verdict"]
    error = found["parity/verdict"][0]
    assert (error.tag, error.get("type")) == ("error", "unjudged")
    assert error.text == "not comparable\nseed: 7 against 8"
    blocks = cases(Result("unjudged", None, because("no floors"), sites=(site("a:out", "unjudged"), site("b:out"))))
    assert [(n, case[0].tag) for n, case in blocks.items() if len(case)] == [
        ("parity/verdict", "error"),
        ("transformer.step 0.cond/a", "error"),
    ]


def test_growth_that_fails_no_run_fails_no_case() -> None:
    found = cases(Result("pass", None, because(""), sites=(site("a:out", "fail", birth="amplified"),)))
    assert all(len(case) == 0 for case in found.values())


def test_numbers_that_are_none_are_written() -> None:
    bad = SiteDiff(
        Key("t", 0, "", "a:out"), Distance(NAN, NAN, float("inf")), verdict="fail", note="None against a tensor"
    )
    text = cases(failing(bad))["t.step 0/a"][0].text
    assert text == "t step 0 a:out: rel L2 nan, floor nan, ratio inf (None against a tensor)"


HOSTILE = "\x00\x01\x1f<&>\"']]>\ud800\ufffe\n\r\t\x7f\U0001f600é"


def test_hostile_names_are_taken_by_a_parser() -> None:
    bad = SiteDiff(Key(HOSTILE, 0, HOSTILE, f"{HOSTILE}:out"), FAR, verdict="fail", note=HOSTILE)
    result = Result(
        "fail",
        "structure",
        because(HOSTILE),
        HOSTILE,
        sites=(bad,),
        origin=Origin(bad.key, "module"),
        notes=(Note(HOSTILE),),
    )
    for name, case in cases(result).items():
        assert "<&>\"']]>" in (case[0].text or ""), name
        assert "\\x00" in (case[0].text or "")
        assert "\\ud800" in (case[0].get("message") or "")


@given(st.text(), st.text())
def test_any_text_survives(reason: str, name: str) -> None:
    bad = SiteDiff(Key("t", 0, "", f"{name}:out"), FAR, verdict="fail", note=reason)
    cases(Result("fail", "structure", because(reason), name, sites=(bad,)))


@pytest.mark.parametrize("verdict", ["pass", "fail", "unjudged"])
def test_equal_results_give_equal_bytes(verdict: str) -> None:
    result = Result(verdict, None, because("r"), sites=(site("a:out", "fail"),))  # type: ignore[arg-type]
    assert junit(Comparison(result)) == junit(Comparison(result))
    assert junit(Comparison(result)).startswith('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites ')
