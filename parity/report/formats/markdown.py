"""Markdown, for a comment on a pull request, a CI job's summary or a page in docs/.

How. The sections that a terminal shows, as lists and tables of GitHub's Markdown. Names come from somebody else's
file: in the first column of a table they are code spans, elsewhere everything that is Markdown or HTML is escaped, and
what GitHub makes links of by itself (`@name`, `#1`, addresses, even behind a backslash) is broken with a word joiner,
which nobody sees. Equal documents give equal bytes.
"""

from __future__ import annotations

import re
from dataclasses import replace

from parity.compare.result import Result
from parity.redact import printable
from parity.report.comparison import Comparison
from parity.report.document import Document, Facts, Section

MOST_ROWS = 100
"""Rows of a table; GitHub cuts a long comment."""

_SIGNS = {"pass": "✅", "fail": "❌", "inconclusive": "⚠️"}
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~$])")
_LINKS = re.compile(r"(?<!\w)([@#])(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_BLOCK = re.compile(r"^(?=[-+#=]\D|\d+[.)]\s)")
_JOINER = "\u2060"
_SPACE = re.compile(r"\s+")
_TICKS = re.compile(r"`+")


def markdown(document: Document) -> str:
    heading = ""
    if isinstance(document, Comparison):
        result = document.result
        heading = f"## {_SIGNS[result.verdict]} parity: {result.verdict}" + (
            f" ({result.failed})" if result.failed else ""
        )
        document = replace(document, result=_without_commands(result), following=())
    parts = [heading, *(_section(s) for s in (*document.conclusion(), *document.sections()) if s.rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _without_commands(result: Result) -> Result:
    """Without what to type on this machine, with its folders and its prompt: the page is read elsewhere."""
    causes = (replace(c, evidence=tuple(replace(e, confirm="") for e in c.evidence)) for c in result.causes)
    return replace(result, causes=tuple(causes))


def _section(section: Section) -> str:
    if isinstance(section, Facts):
        return "\n".join(
            f"- **{text(label)}**: {text(fact)}" if label else f"- {text(fact)}" for label, fact in section.rows
        )
    rows = ["| " + " | ".join([code(name), *map(text, cells)]) + " |" for name, *cells in section.rows[:MOST_ROWS]]
    more = len(section.rows) - len(rows)
    head = ["| " + " | ".join(map(text, section.columns)) + " |", "|" + " --- |" * len(section.columns)]
    tail = ["", f"{more} more rows"] if more else []
    for said in filter(None, section.below):
        tail += ["", text(said)]
    return "\n".join([f"### {text(section.title)}", "", *head, *rows, *tail])


def flat(raw: str) -> str:
    """Any text on one line, without control characters."""
    return printable(_SPACE.sub(" ", raw), "utf-8")


def text(raw: str) -> str:
    """A sentence as it is read: no markup, no links, on one line."""
    unlinked = _LINKS.sub(lambda match: (match[1] or "") + _JOINER, flat(raw))
    return _BLOCK.sub(_JOINER, _SPECIAL.sub(r"\\\1", unlinked.replace("&", "&amp;")))


def code(raw: str) -> str:
    """A name or a number as a code span; a bar, which would end a table's cell, is written as a broken one."""
    shown = flat(raw).replace("|", "\u00a6") or " "
    ticks = "`" * (1 + max((len(run) for run in _TICKS.findall(shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}"
