"""A result as `print` and a notebook show it: self-contained, and nothing of a name in it is markup."""

from __future__ import annotations

import html
import re
import sys

import pytest

from parity.compare.reason import Reason
from parity.compare.result import Result
from parity.face.result import Result as Shown

NAMED = "<script>alert(1)</script>"


def test_it_prints_as_its_card_and_its_page_lies_in_a_frame_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    reason = Reason(kind="preflight", check="weights", detail=NAMED)
    shown = Shown.of(Result("fail", "preflight", reason, NAMED))
    assert isinstance(shown, Result)
    assert (shown.passed, shown.exit_code) == (False, 1)
    assert str(shown).startswith("verdict: fail (preflight)")
    page = shown._repr_html_()
    assert re.fullmatch(r'<iframe sandbox="allow-scripts" srcdoc="[^"<>]*" style="[^"]*"></iframe>', page)
    inner = html.unescape(page)
    assert NAMED not in inner
    assert html.escape(NAMED) in inner
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", inner)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    bare = shown._repr_html_()
    assert bare.startswith("<pre>verdict: fail")
    assert "<script" not in bare
