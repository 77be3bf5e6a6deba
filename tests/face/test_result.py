"""A result as a notebook shows it: self-contained, and nothing of a name in it is markup."""

from __future__ import annotations

import html
import re
import sys

import pytest

from parity.compare.reason import Reason
from parity.compare.result import Result
from parity.face.result import Result as Shown

NAMED = "<script>alert(1)</script>"


def shown() -> Shown:
    reason = Reason(kind="preflight", check="weights", detail=NAMED)
    return Shown.of(Result("fail", "preflight", reason, NAMED))


def test_it_is_the_result_and_prints_as_its_card() -> None:
    result = shown()
    assert isinstance(result, Result)
    assert (result.passed, result.exit_code) == (False, 1)
    assert str(result).startswith("verdict: fail (preflight)")


def test_its_page_lies_in_a_frame_of_its_own() -> None:
    pytest.importorskip("jinja2")
    page = shown()._repr_html_()
    assert re.fullmatch(r'<iframe sandbox="allow-scripts" srcdoc="[^"<>]*" style="[^"]*"></iframe>', page)
    inner = html.unescape(page)
    assert NAMED not in inner
    assert html.escape(NAMED) in inner
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", inner)


def test_without_jinja2_it_is_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page = shown()._repr_html_()
    assert page.startswith("<pre>verdict: fail")
    assert "<script" not in page
