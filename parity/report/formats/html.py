"""A kept run as one HTML page: no script, no link to anywhere, readable from a mail attachment.

Why. The person who decides about a port was not at the terminal. The page has the verdict and its evidence: what
differs, the rounds, the drift over the steps, the sites in execution order, the causes, the worst frames.

How. It reads the JSON documents that `parity run` and `parity explain` keep, computes nothing but where a mark goes,
and escapes every text: documents come from other machines. Needs jinja2 (extra `report`).

Cost. A few hundred bytes a site shown; at most `MOST_SITES` are drawn and `MOST_ROWS` listed, and the page says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.report.comparison import Comparison
from parity.report.document import Document, Json
from parity.report.formats import report_format

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal obeys, should somebody print a page; no page needs it."""

TEMPLATE = Path(__file__).with_name("report.html.jinja")
MOST_SITES = 1_500
MOST_ROWS = 100
WIDTH, HEIGHT = 900.0, 180.0
"""Of a chart, in its own units."""


class DocumentError(ValueError):
    """A document that is not what `--json` writes."""


@report_format("html")
def html(document: Document) -> str:
    """The page of a comparison, without pictures (`parity report` shows those of a kept run).

    Raises:
        UsageError: another document; jinja2 is missing.
    """
    if not isinstance(document, Comparison):
        raise UsageError("--format html shows a comparison; --format markdown shows any document")
    found = document.json()
    return to_html(found, found["causes"] if document.explained else None)


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded frame on both sides, as `data:` URLs."""

    frame: int
    reference: str
    candidate: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: its points in the chart's units."""

    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def path(self) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)


@dataclass(frozen=True, slots=True)
class Bar:
    """One site of a strip."""

    x: float
    y: float
    width: float
    height: float
    verdict: str
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What a chart shows: decades of its logarithmic axis as (y, label), lines, bars."""

    decades: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()


def to_html(document: Json, causes: Sequence[Json] | None, pictures: Sequence[Picture] = ()) -> str:
    """The page.

    Args:
        document: of `parity run --json`. causes: of `parity explain --json`; None where it was not asked.

    Raises:
        DocumentError: something the page shows is missing or is no such thing. UsageError: jinja2 is missing.
    """
    try:
        import jinja2
    except ImportError:
        raise UsageError("HTML needs jinja2: pip install 'tpu-parity[report]'") from None
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(sci=_sci, times=_times, percent=_percent)
    try:
        sites = [s for s in document["sites"] if s["verdict"] != "apart"]
        shown = [s for s in sites if s["verdict"] != "pass"][:MOST_ROWS]
        page = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
        text: str = page.render(
            result=document,
            causes=causes,
            pictures=pictures,
            drift=drift(document["steps"]),
            strip=strip(sites),
            shown=shown,
            hidden=sum(s["verdict"] != "pass" for s in sites) - len(shown),
            total=len(sites),
            drawn=min(len(sites), MOST_SITES),
            width=WIDTH,
            height=HEIGHT,
        )
        return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    except (KeyError, TypeError, ValueError, AttributeError, jinja2.UndefinedError) as error:
        raise DocumentError(f"not a document of --json: {error}") from None


def drift(steps: Sequence[Json]) -> Chart | None:
    """noise_pred and latents over the steps, each with its floor; None for no steps."""
    lines = {
        f"{what}{' floor' * (field == 'floor')}": [_number(step[what][field]) for step in steps]
        for what in ("noise_pred", "latents")
        for field in ("rel_l2", "floor")
    }
    axis = _Axis.of([value for values in lines.values() for value in values])
    if axis is None:
        return None
    gap = WIDTH / max(1, len(steps) - 1)
    drawn = [
        Line(name, tuple((i * gap, axis.y(v)) for i, v in enumerate(values) if v > 0 and math.isfinite(v)))
        for name, values in lines.items()
    ]
    return Chart(axis.decades(), lines=tuple(line for line in drawn if line.points))


def strip(sites: Sequence[Json]) -> Chart | None:
    """Each site's ratio to its floor, in execution order; what is no number stands at the top."""
    sites = sites[:MOST_SITES]
    ratios = [_number(site["ratio"]) for site in sites]
    axis = _Axis.of([*ratios, 1.0]) if sites else None
    if axis is None:
        return None
    gap = WIDTH / len(sites)
    bars = []
    for i, (site, ratio) in enumerate(zip(sites, ratios, strict=True)):
        y = axis.y(ratio) if math.isfinite(ratio) else 0.0
        where = f"step {site['step']} {site['branch']} {site['site']}: {_times(site['ratio'])} its floor"
        bars.append(Bar(i * gap, y, max(gap * 0.85, 0.4), HEIGHT - y, str(site["verdict"]), where))
    return Chart(axis.decades(), bars=tuple(bars))


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis from 10^low at the bottom to 10^high at the top."""

    low: int
    high: int

    @classmethod
    def of(cls, values: Sequence[float]) -> _Axis | None:
        exponents = [math.log10(v) for v in values if v > 0 and math.isfinite(v)]
        if not exponents:
            return None
        low = math.floor(min(exponents))
        return cls(max(low, math.ceil(max(exponents)) - 12), max(low + 1, math.ceil(max(exponents))))

    def y(self, value: float) -> float:
        exponent = math.log10(value) if value > 0 else self.low
        share = (min(max(exponent, self.low), self.high) - self.low) / (self.high - self.low)
        return HEIGHT * (1 - share)

    def decades(self) -> tuple[tuple[float, str], ...]:
        every = max(1, (self.high - self.low) // 5)
        return tuple((self.y(10.0**e), f"1e{e}") for e in range(self.low, self.high + 1, every))


def _number(value: Any) -> float:
    """A number of the documents, which spell NaN and infinities as strings."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _sci(value: Any) -> str:
    number = _number(value)
    return "–" if math.isnan(number) else f"{number:.2e}"


def _times(value: Any) -> str:
    number = _number(value)
    return "–" if math.isnan(number) else "∞" if math.isinf(number) else f"{number:.3g}×"


def _percent(value: Any) -> str:
    number = _number(value)
    return "–" if math.isnan(number) else f"{100 * number:.1f} %"
