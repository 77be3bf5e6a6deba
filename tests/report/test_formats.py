"""Each format shows what it can, and refuses the rest."""

from __future__ import annotations

import json

import pytest

from parity.compare.result import Result
from parity.errors import UsageError
from parity.report import formats
from parity.report.comparison import Comparison
from parity.report.document import Facts, Listing
from tests.support.made import because

LISTING = Listing({"format": 1, "tools": [{"tool": "a"}, {"tool": "b"}]}, (Facts((("tool", "a"), ("tool", "b"))),))
COMPARISON = Comparison(Result("pass", None, because("all agree"), "tiny"))


def test_the_formats() -> None:
    assert formats.NAMES == ("html", "json", "junit", "markdown", "text")
    for name in formats.NAMES:
        text = formats.render(COMPARISON, name)
        assert "all agree" in text or name == "junit"
        assert text.endswith("\n")


def test_a_listing_has_those_that_are_not_of_a_comparison() -> None:
    assert json.loads(formats.render(LISTING, "json")) == LISTING.document
    assert formats.render(LISTING, "text") == "tool: a\ntool: b\n"
    assert formats.render(LISTING, "markdown") == "- **tool**: a\n- **tool**: b\n"
    for name in ("junit", "html"):
        with pytest.raises(UsageError, match=f"--format {name} .* a comparison"):
            formats.render(LISTING, name)


def test_an_unknown_format_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="takes html, json, junit, markdown, text; found 'pdf'"):
        formats.render(LISTING, "pdf")
