"""A comparison as one HTML page: what was found on top, then every module at every step, then what it was made with.

It reads the JSON documents that `parity run` and `parity explain` keep and computes nothing. Documents come from other
machines: every text is escaped, the script writes text and never markup, and the page's policy lets nothing run but
its own script, by its hash, and nothing load; so it can be read from a mail attachment. Script, style and template lie
beside this module.

Cost. About 40 kB, and 6 bytes a site: sites are columns of numbers with three digits, packed by gzip.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from parity.compare.places import within
from parity.compare.result import EVIDENCE
from parity.errors import MalformedError, UsageError
from parity.floors import L2_LIMIT
from parity.records import Provenance
from parity.report.comparison import Comparison
from parity.report.document import LARGEST, Document, Json, small, times
from parity.report.formats.json import to_json

HERE = Path(__file__).parent

VERDICTS = ("pass", "harmless", "ignored", "not compared", "inconclusive", "fail")
INTRODUCED = (None, "input", "module")
PLACES = {"input": "introduced in its input", "module": "introduced in this module", None: "propagated"}
_CONSTANTS = {"limit": L2_LIMIT, "verdicts": VERDICTS, "places": [PLACES[place] for place in INTRODUCED]}
"""What the script shares with this module."""
MOST_LISTED = 12
"""Sites that are listed in the card; the table has all."""
MOST_STEPS = 500
"""Rows of a table; `result.json` has all."""
MOST_BINS = 2_048
"""Sites whose row bins are kept, those where something was introduced first."""

FACTS = ("command", "backend", "model", "steps", "seed", "devices", "versions", "commit")
"""What is shown of a side's provenance, beside its settings."""

SIGNS = {"pass": "✓", "fail": "✗", "inconclusive": "?", "explained": "~", "harmless": "~"}

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What a terminal obeys, should somebody print a page; no page needs it."""


def html(document: Document) -> str:
    """The page of a comparison, without pictures (`parity report` shows those of a kept run).

    Raises:
        UsageError: another document.
    """
    if not isinstance(document, Comparison):
        raise UsageError("--format html shows a comparison; --format markdown shows any document")
    found = to_json(document.result)
    return build(Shown(document=found, causes=found["causes"] if document.explained else found["causes"] or None))


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded frame on both sides, as `data:` URLs.

    Attributes:
        frame: from 0. reference, candidate: PNGs. caption: its numbers.
    """

    frame: int
    reference: str
    candidate: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A comparison and what was kept of its run.

    Attributes:
        document: of `--format json`. causes: of `parity explain --format json`; None where it was not asked.
        pictures: the frames that differ most. pictures_note: what they are, or why there are none.
        sides: what each side was made with; or none.
    """

    document: Json
    causes: Sequence[Json] | None = None
    pictures: Sequence[Picture] = ()
    pictures_note: str = ""
    sides: Sequence[Provenance] = ()


def build(shown: Shown, version: str = "") -> str:
    """The page of a comparison.

    Args:
        version: of parity.

    Raises:
        MalformedError: something the page shows is missing or is no such thing.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters.update(_FILTERS)
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    try:
        text: str = environment.get_template("page.html.jinja").render(
            **_view(shown), shown=shown, version=version, limit=f"{L2_LIMIT:g}", most_steps=MOST_STEPS, signs=SIGNS,
            words=PLACES, evidence=EVIDENCE, facts=FACTS,
            style=Markup(style), style_hash=f"'{_hash(style)}'",
            script=Markup(script), script_hash=f"'{_hash(script)}'",
        )  # fmt: skip
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, jinja2.UndefinedError) as error:
        raise MalformedError(f"not a document of --format json: {error}") from None
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def _view(shown: Shown) -> dict[str, Any]:
    """What the template reads of a comparison."""
    result = shown.document
    sites = [*result["sites"], *result["closer"]]
    table = Table.of(sites)
    # A closer look names modules where the first names blocks, as in a terminal.
    looked = result["closer"]
    block = min((site["site"].partition(":")[0] for site in looked), key=len, default="")
    elsewhere = [s for s in result["sites"] if s["introduced"] and not within(s["site"].partition(":")[0], block)]
    failing = [s for s in ([*looked, *elsewhere] if looked else result["sites"]) if s["verdict"] == "fail"]
    own = [site for site in failing if site["introduced"] is not None]
    introduced = own or failing
    origin = None if result["origin"] is None else table.cell(result["origin"])
    return {
        "result": result,
        "origin": origin,
        "introduced": [{"site": s, "cell": table.cell(s)} for s in introduced[:MOST_LISTED]],
        "more": max(0, len(introduced) - MOST_LISTED),
        "propagated": own and sum(s["verdict"] == "fail" and s["introduced"] is None for s in result["sites"]),
        "bits": _bits(result["steps"]),
        "charts": [_chart(result["steps"], name) for name in ("noise_pred", "latents")],
        "setting_names": sorted({name for side in shown.sides for name in side.settings}),
        "sites": len(sites),
        "data": json.dumps({"packed": table.packed(), "origin": origin, **_CONSTANTS}),  # nothing to be escaped in it
    }


@dataclass(frozen=True, slots=True)
class Table:
    """Sites as rows, (stage, branch, site, call), and columns, steps.

    Attributes:
        rows: row -> its position. steps: step -> its position. sites: (cell, site), cells counted row by row; of two
            sites in one place the graver.
    """

    rows: Mapping[tuple[Any, ...], int]
    steps: Mapping[int, int]
    sites: Sequence[tuple[int, Json]]

    @classmethod
    def of(cls, sites: Sequence[Json]) -> Table:
        """Raises KeyError, TypeError or ValueError for a site that is none."""
        rows = {row: i for i, row in enumerate(dict.fromkeys(map(_row, sites)))}
        steps = {step: i for i, step in enumerate(sorted({site["step"] for site in sites}))}
        graver = sorted(sites, key=lambda site: VERDICTS.index(site["verdict"]))
        cells = {rows[_row(site)] * len(steps) + steps[site["step"]]: site for site in graver}
        return cls(rows, steps, sorted(cells.items(), key=lambda cell: cell[0]))

    def cell(self, site: Json) -> str | None:
        """How the page's links name a place: `12.3`, row and column; None for one that the table has not."""
        row = self.rows.get(_row(site))
        return None if row is None or site["step"] not in self.steps else f"{row}.{self.steps[site['step']]}"

    def packed(self) -> str:
        """What the script unpacks: JSON of columns, by gzip, as base64."""
        columns = {
            "rows": [[*row] for row in self.rows],
            "steps": list(self.steps),
            "at": [at for at, _ in self.sites],
            **{name: [_short(site[name]) for _, site in self.sites] for name in ("rel_l2", "floor", "ratio")},
            "state": [VERDICTS.index(s["verdict"]) + 8 * INTRODUCED.index(s["introduced"]) for _, s in self.sites],
            "kinds": self._kinds(),
            "notes": {str(at): str(site["note"]) for at, site in self.sites if site["note"]},
            "bins": self._bins(),
        }
        content = json.dumps(columns, allow_nan=False, separators=(",", ":")).encode()
        return base64.b64encode(gzip.compress(content, mtime=0)).decode("ascii")

    def _kinds(self) -> list[str]:
        """By row: its shape and dtype, of both sides where they differ."""
        found: dict[int, str] = {}
        for at, site in self.sites:
            shapes = ["x".join(map(str, shape)) for shape in site["shapes"]]
            sides = [f"{shape} {dtype}" for shape, dtype in zip(shapes, site["dtypes"], strict=True)]
            found.setdefault(at // len(self.steps), " -> ".join(dict.fromkeys(sides)))
        return [found[row] for row in range(len(self.rows))]

    def _bins(self) -> dict[str, list[float | None]]:
        held = [(at, site) for at, site in self.sites if site.get("bins")]
        held.sort(key=lambda cell: (cell[1]["introduced"] is None, cell[1]["step"], cell[0]))
        return {str(at): [_short(ratio) for ratio in site["bins"][:64]] for at, site in held[:MOST_BINS]}


def _row(site: Json) -> tuple[Any, ...]:
    texts = tuple(site[name] for name in ("stage", "branch", "site"))
    counts = (site["call"], site["step"])
    if not all(isinstance(text, str) for text in texts) or not all(type(count) is int for count in counts):
        raise TypeError("a site's stage, branch and site are strings, its step and call integers")
    return (*texts, site["call"])


def _short(value: object) -> float | None:
    """Three digits; None where there is no number, -1 for infinity (no difference, floor or ratio is negative)."""
    found = float(f"{number(value):.3g}")
    return None if math.isnan(found) else -1 if math.isinf(found) else found


def number(value: object) -> float:
    """A number of the documents; see `finite`.

    Raises:
        ValueError: it is none.
    """
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return math.copysign(math.inf, value) if abs(value) >= LARGEST else float(value)


def _bits(steps: Sequence[Json]) -> str:
    """What the difference costs: the worst step's agreement."""
    known = [step for step in steps if step["bits_of"] and math.isfinite(number(step["bits"]))]
    if not known:
        return ""
    worst = min(known, key=lambda step: number(step["bits"]))
    where = f" at step {worst['step']}" if len(steps) > 1 else ""
    return f"noise_pred agrees in {number(worst['bits']):.1f} of {worst['bits_of']} bits{where}."


def _chart(steps: Sequence[Json], name: str) -> dict[str, Any]:
    """A value's difference and its limit over the steps, for an SVG of 600 by 120: logarithmic, the smallest below."""
    lines = {
        "difference": [number(step[name]["rel_l2"]) for step in steps],
        "limit": [L2_LIMIT * number(step[name]["floor"]) for step in steps],
    }
    logs = [math.log10(y) for line in lines.values() for y in line if 0 < y < math.inf]
    low, high = min(logs, default=0.0), max(logs, default=0.0)

    def point(i: int, y: float) -> str:
        down = (high - math.log10(y)) / ((high - low) or 1.0)
        return f"{600 * i / max(1, len(steps) - 1):.1f},{5 + 110 * down:.1f}"

    drawn = {
        kind: " ".join(point(i, y) for i, y in enumerate(line) if 0 < y < math.inf) for kind, line in lines.items()
    }
    return {"name": name, "lines": drawn, "high": small(10**high), "low": small(10**low)}


def _known(text: Callable[[float], str]) -> Callable[[object], str]:
    def shown(value: object) -> str:
        found = number(value)
        return "–" if math.isnan(found) else text(found)

    return shown


_FILTERS = {
    "sci": _known(small),
    "times": _known(times),
    "decibels": _known(lambda x: "equal" if math.isinf(x) else f"{x:.1f} dB"),
    "similar": _known(lambda x: f"{x:.4f}"),
}


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
