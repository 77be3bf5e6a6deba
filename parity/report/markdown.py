"""A result as Markdown, for a comment on a pull request or a CI job's summary.

Why. Whoever reviews reads half a screen: the verdict, why, where it starts, what the two differ in, how it grew from
step to step, and the worst sites; the document behind `--json` has the rest.

How. Tables of GitHub's Markdown. Names come from somebody else's file: in tables they are code spans, in sentences
everything that is Markdown or HTML is escaped, and what GitHub makes links of by itself (`@name`, `#1`, addresses,
even behind a backslash) is broken with a word joiner, which nobody sees. Nothing is computed; equal results give
equal bytes.

Cost. One pass over the sites; some 10 KB at most, but for the steps (a row each).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from parity.compare.result import Distance, Result, SiteDiff, StepDiff
from parity.report.terminal import both, distance_cells, remarks, small, times

MOST_SITES = 10
MOST_STEPS = 100
MOST_SETTINGS = 40

_SIGNS = {"pass": "✅", "fail": "❌", "unjudged": "⚠️"}
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~$])")
_LINKS = re.compile(r"(?<!\w)([@#])(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_BLOCK = re.compile(r"^(?=[-+#=]|\d+[.)])")
_JOINER = "\u2060"
_SPACE = re.compile(r"\s+")
_TICKS = re.compile(r"`+")


def markdown(result: Result) -> str:
    """The document; ends with a newline."""
    parts = [
        f"## {_SIGNS[result.verdict]} parity: {result.verdict}" + (f" ({result.failed})" if result.failed else ""),
        *([f"**{text(result.model)}**"] if result.model else []),
        *([text(result.reason)] if result.reason else []),
        _origin(result),
        _settings(result),
        _preflight(result),
        _steps(result.steps),
        _sites(result.sites),
        "\n".join(f"- {text(note.text)}" for note in result.notes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def flat(raw: str) -> str:
    """Any text on one line, without control characters."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in _SPACE.sub(" ", raw))


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


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; empty without rows."""
    body = ["| " + " | ".join(row) + " |" for row in rows]
    if not body:
        return ""
    return "\n".join(["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns), *body])


def _origin(result: Result) -> str:
    if result.origin is None:
        return ""
    return f"First divergence: {code(str(result.origin.key))} ({result.origin.birth})"


def _settings(result: Result) -> str:
    rows = [(code(d.setting), code(d.reference), code(d.candidate)) for d in result.differing_settings[:MOST_SETTINGS]]
    return _titled("Differing settings", table(("setting", "reference", "candidate"), rows))


def _preflight(result: Result) -> str:
    rows = [(text(c.check), c.verdict, text(c.detail)) for c in result.preflight if c.verdict != "pass"]
    return _titled("Before the first step", table(("check", "verdict", "detail"), rows))


def _steps(steps: Sequence[StepDiff]) -> str:
    columns = ("step", "timestep", "noise_pred rel L2", "ratio", "latents rel L2", "ratio")
    rows = [(str(s.step), both(*s.timestep), *_cells(s.noise_pred), *_cells(s.latents)) for s in steps[:MOST_STEPS]]
    more = len(steps) - len(rows)
    tail = f"\n\n{more} more steps" if more else ""
    return _titled("Steps", table(columns, rows) + tail if rows else "")


def _cells(distance: Distance) -> tuple[str, str]:
    return small(distance.rel_l2), times(distance.ratio)


def _sites(sites: Sequence[SiteDiff]) -> str:
    """The sites farthest beyond their floors; all of them pass where the result does."""
    decide = [s for s in sites if s.verdict != "apart"]
    worst = sorted(decide, key=_far, reverse=True)[:MOST_SITES]  # a stable sort: ties stay in execution order
    rows = [
        (code(str(s.key)), *distance_cells(s.distance), s.verdict, text(", ".join(remarks(s))) or "-") for s in worst
    ]
    columns = ("site", "rel L2", "floor", "ratio", "verdict", "remarks")
    return _titled(f"Worst {len(rows)} of {len(decide)} sites", table(columns, rows))


def _far(site: SiteDiff) -> tuple[bool, float, float]:
    ratio, far = site.distance.ratio, site.distance.rel_l2
    known = -1.0 if math.isnan(ratio) else ratio
    return site.verdict in ("fail", "unjudged"), known, math.inf if math.isnan(far) else far


def _titled(title: str, body: str) -> str:
    return f"### {title}\n\n{body}" if body else ""
