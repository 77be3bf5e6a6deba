"""The page of a sweep: its price list, and error against time as a picture.

Why. A price list of fifty rows answers "what may I switch on?" only to who sorts it twice. In the picture the rows
that pass and that no other such row beats in both error and time are joined; they are the ones to choose from.

How. It reads the document of `parity sweep --json`. The picture is SVG in the HTML: the page has no script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parity.report.document import Json
from parity.report.page.packing import number
from parity.report.page.shell import BROKEN, DocumentError, page

WIDTH, HEIGHT = 440, 320
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 14, 42
"""Of the picture, in its own units; the page scales it."""

MOST_ROWS = 2_000
"""Rows of a table; the document has all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """A row in the picture.

    Attributes:
        number: of the row in the table. x, y: its place. verdict: as of the row.
        best: whether none that passes beats it. text: of its tool tip.
    """

    number: int
    x: float
    y: float
    verdict: str
    best: bool
    text: str


def build_sweep(document: Json, version: str = "") -> str:
    """The page of a sweep.

    Args:
        document: of `parity sweep --json`. version: of parity.

    Raises:
        DocumentError: it is no such document. UsageError: jinja2 is missing.
    """
    try:
        sweeps = [_view(sweep) for sweep in document["sweeps"]]
    except BROKEN as error:
        raise DocumentError(f"not a document of parity sweep --json: {error}") from None
    return page("sweep.html.jinja", (), {}, version, sweeps=sweeps, width=WIDTH, height=HEIGHT)


def best(rows: Sequence[tuple[float, float]]) -> list[int]:
    """Positions of the (time, error) that no other beats in both, by rising time."""
    found, least = [], math.inf
    for at in sorted(range(len(rows)), key=lambda i: rows[i]):
        if rows[at][1] < least:
            found.append(at)
            least = rows[at][1]
    return found


def _view(sweep: Json) -> dict[str, Any]:
    """What the template reads of a model's list."""
    rows = list(sweep["rows"])
    judged = [(i, row) for i, row in enumerate(rows) if row["verdict"] in ("pass", "fail")]
    points = [(i, *_point(row)) for i, row in judged]
    drawn = [point for point in points if all(map(math.isfinite, point))]
    passing = [point for point in drawn if rows[point[0]]["verdict"] == "pass"]
    front = [passing[at][0] for at in best([(time, error) for _, time, error in passing])]
    return {
        **{name: sweep[name] for name in ("model", "steps", "seed", "device", "reference_device")},
        "interpreted": bool(sweep["pallas_interpreted"]),
        **{side: " ".join(map(str, sweep[side])) or "defaults" for side in ("reference", "candidate")},
        "rows": [_row(i, row, i in front) for i, row in enumerate(rows[:MOST_ROWS])],
        "more": max(0, len(rows) - MOST_ROWS),
        "picture": _picture(rows, drawn, front),
    }


def _point(row: Json) -> tuple[float, float]:
    """(milliseconds of a step, error)."""
    return number(row["seconds"]) * 1e3, number(row["noise_pred"]["rel_l2"])


def _row(at: int, row: Json, front: bool) -> dict[str, Any]:
    memory = row["memory"]
    return {
        "number": at + 1,
        "name": _name(row),
        "verdict": row["verdict"],
        "failed": row["failed"],
        "reason": row["reason"],
        "noise_pred": row["noise_pred"],
        "latents": row["latents"],
        "bits": f"{number(row['bits']):.1f} of {row['bits_of']}" if row["bits_of"] else "–",
        "time": "–" if math.isnan(number(row["seconds"])) else f"{number(row['seconds']) * 1e3:.1f} ms",
        "of_base": _ratio(row),
        "memory": "–" if memory is None else f"{number(memory) / 2**20:.1f} MiB",
        "front": front,
    }


def _ratio(row: Json) -> str:
    """Relative to the base, with quartiles where the document has them."""
    if math.isnan(number(row["of_base"])):
        return ""
    first, third = map(number, row.get("of_base_quartiles", ("nan", "nan")))
    spread = "" if math.isnan(first) else f" ({first:.2f}–{third:.2f})"
    return f"{number(row['of_base']):.2f}×{spread}"


def _name(row: Json) -> str:
    return " ".join(map(str, row["settings"])) or "(base)"


def _picture(rows: Sequence[Json], drawn: Sequence[tuple[int, float, float]], front: Sequence[int]) -> dict[str, Any]:
    """Dots, the line through the best and the axes; time is linear, error a logarithm. Empty below two dots."""
    if len(drawn) < 2:
        return {}
    times = [time for _, time, _ in drawn]
    least = min((error for _, _, error in drawn if error > 0), default=1e-12)
    decades = [math.log10(max(error, least)) for _, _, error in drawn]
    low, high = math.floor(min(decades)), math.ceil(max(decades) + 1e-9)
    high += low == high
    first, last = _ends(times)

    def x(time: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (time - first) / (last - first), 1)

    def y(decade: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - decade) / (high - low), 1)

    dots = [
        Dot(
            number=i + 1,
            x=x(time),
            y=y(decade),
            verdict=rows[i]["verdict"],
            best=i in front,
            text=f"{i + 1}: {_name(rows[i])}: {error:.2e}, {time:.1f} ms",
        )
        for (i, time, error), decade in zip(drawn, decades, strict=True)
    ]
    by_number = {dot.number: dot for dot in dots}
    every = max(1, math.ceil((high - low) / 8))
    return {
        "dots": dots,
        "line": " ".join(f"{by_number[i + 1].x},{by_number[i + 1].y}" for i in front),
        "across": [(x(time), f"{time:.3g}") for time in (first + (last - first) * n / 4 for n in range(5))],
        "up": [(y(decade), f"1e{decade}") for decade in range(low, high + 1, every)],
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "top": TOP,
        "bottom": HEIGHT - BOTTOM,
    }


def _ends(times: Sequence[float]) -> tuple[float, float]:
    """The ends of the time axis, so that no dot lies on them."""
    wide = max(times) - min(times) or max(times) or 1.0
    return max(0.0, min(times) - 0.08 * wide), max(times) + 0.08 * wide
