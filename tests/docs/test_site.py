"""The documents as a site: the nav names each of them once, in four parts, and every link and anchor leads somewhere.

mkdocs itself is not needed here: `make docs` builds the site and fails on a warning.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from documents import DOCS, ROOT, extras

yaml = pytest.importorskip("yaml")

DOCUMENTS = sorted(DOCS.glob("*.md"))
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")


def site() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8")))


def anchors(document: Path) -> set[str]:
    """What a link may lead to within a document, as both GitHub and mkdocs call it."""
    text = re.sub(r"^```.*?^```", "", document.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_nav_names_every_document_once_in_four_parts() -> None:
    parts = [next(iter(part.items())) for part in site()["nav"]]
    assert [name for name, _ in parts] == ["Tutorial", "How-to", "Reference", "Explanation"]
    named = [name for _, pages in parts for name in pages]
    assert named[0] == "index.md"
    assert sorted(named) == [document.name for document in DOCUMENTS]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_stay_among_the_documents_and_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text("utf-8")):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        where = (document.parent / name).resolve() if name else document
        assert where.is_relative_to(DOCS), f"{target}: the site holds docs/ alone"
        assert where.is_file(), target
        assert not anchor or anchor in anchors(where), target


def test_a_document_opens_with_its_title() -> None:
    assert [d.name for d in DOCUMENTS if not d.read_text("utf-8").lstrip().startswith("# ")] == []


def test_make_docs_installs_what_it_needs() -> None:
    assert "docs" in extras()
    done = subprocess.run(["make", "--dry-run", "docs"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ".[docs]" in done.stdout
    assert "mkdocs build --strict" in done.stdout
