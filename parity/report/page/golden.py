"""The page of a golden: what was recorded, where, how large it is, and what it was made with.

Why. A golden is sent about and committed; who gets one asks what is in it before comparing with it.

How. A map of sites and steps, coloured by magnitude, in which a NaN or an Inf stands out; a click has a site's numbers
and their course over the steps. The map is packed as that of a comparison is (`packing`).

Cost. About 130 kB, and 15 bytes a record; of larger goldens than `MOST_CELLS` only some steps are shown (`chosen`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.golden.records import LOOP, Provenance, Record, StepRecords
from parity.report.document import Json
from parity.report.page.packing import base64_of, distances, numbers_bytes
from parity.report.page.shell import page

MOST_CELLS = 120_000
"""Records on a page: 1.8 MB of it."""

MOST_TEXTS = 5_000
MOST_LISTED = 12
SCRIPTS = ("1_data", "2_colours", "5_charts", "golden")

TENSOR, NONE, SCALAR = 0, 1, 2
HELD, BAD = 4, 8
"""Of a record's byte on the page: its kind, whether its value is held, whether it holds NaN or Inf."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenShown:
    """A golden, opened.

    Attributes:
        name: path or URL. complete: whether its recording ended by itself. bytes: of all parts.
        counts: step -> records. provenance: where it comes from. steps: those of `chosen`, read.
    """

    name: str
    complete: bool
    bytes: int
    counts: Mapping[int, int]
    provenance: Provenance
    steps: Iterable[StepRecords]


def chosen(counts: Mapping[int, int], most: int = MOST_CELLS) -> list[int]:
    """The steps that fit a page: all of them, else the first, the last and some between, evenly."""
    steps = sorted(counts)
    kept = steps
    while sum(counts[step] for step in kept) > most and len(kept) > 2:
        fewer = len(kept) - max(1, len(kept) // 8)
        kept = [steps[round(i * (len(steps) - 1) / (fewer - 1))] for i in range(fewer)] if fewer > 1 else kept[:1]
    return kept


def build_golden(shown: GoldenShown, version: str = "") -> str:
    """The page of a golden.

    Args:
        version: of parity.

    Raises:
        UsageError: jinja2 is missing, or a step cannot be read.
    """
    held = _Held()
    for step in shown.steps:
        held.add(step)
    told = shown.provenance
    return page(
        "golden.html.jinja",
        SCRIPTS,
        {"limit": 0, "verdicts": [], "births": [], "words": {}, "runs": [], "golden": held.packed()},
        version,
        name=shown.name,
        complete=shown.complete,
        size=f"{shown.bytes / 1e6:.1f} MB",
        records=sum(shown.counts.values()),
        steps=sorted(shown.counts),
        shown=sorted(held.steps),
        told=told,
        weights=len(told.weights),
        dtypes=sorted(held.dtypes.items(), key=lambda pair: -pair[1]),
        bad=held.bad[:MOST_LISTED],
        more_bad=max(0, len(held.bad) - MOST_LISTED),
        largest=[(text, where) for _, _, where, text in sorted(held.largest, reverse=True)],
        course=held.loop,
        values=held.values,
    )


class _Held:
    """What the page has of the records, gathered in one pass.

    Attributes:
        steps: seen so far. dtypes: number of tensors of each. bad: places with NaN or Inf.
        largest: of magnitude, a heap. loop: a row a step, of the loop's values. values: how many are held whole.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.dtypes: dict[str, int] = {}
        self.bad: list[str] = []
        self.largest: list[tuple[float, int, str, str]] = []
        self.loop: list[dict[str, Any]] = []
        self.values = 0
        self._lines: dict[tuple[str, str, str, int], tuple[int, list[Any]]] = {}
        self._cells: list[tuple[int, int, int, float, float, float]] = []
        self._texts: dict[tuple[int, int], str] = {}

    def add(self, step: StepRecords) -> None:
        """Take in the records of a step."""
        column = len(self.steps)
        self.steps.append(step.step)
        loop: dict[str, Any] = {"step": step.step}
        for record in step.records:
            key = record.key
            place = (key.stage, key.branch, key.site, key.call)
            line, _ = self._lines.setdefault(place, (len(self._lines), [*place, list(record.shape), record.dtype]))
            floor = step.floors.get(key)
            self._cells.append((line, column, *_numbers(record, None if floor is None else floor.l2)))
            self._note(record, line, column)
            if key.module == LOOP and not key.branch and record.moments is not None:
                single = record.moments.count == 1
                loop[key.port] = record.moments.mean if single else rms(record)
        if len(loop) > 1:
            self.loop.append(loop)

    def _note(self, record: Record, line: int, column: int) -> None:
        if record.kind != "tensor":
            if len(self._texts) < MOST_TEXTS:
                self._texts[line, column] = "None" if record.value is None else repr(record.value)[:200]
            return
        self.dtypes[record.dtype] = self.dtypes.get(record.dtype, 0) + 1
        self.values += isinstance(record.value, np.ndarray)
        if record.moments is None:
            return
        if record.moments.nan or record.moments.inf:
            self.bad.append(f"{record.key}: {record.moments.nan} NaN, {record.moments.inf} Inf")
        largest = _largest(record)
        if not math.isfinite(largest):
            return
        entry = (largest, -len(self._cells), str(record.key), f"{largest:.4g}")
        (heapq.heappush if len(self.largest) < MOST_LISTED else heapq.heappushpop)(self.largest, entry)

    def packed(self) -> Json:
        """The map, as `golden.js` unpacks it."""
        width = len(self.steps)
        cells = sorted(self._cells, key=lambda cell: cell[0] * width + cell[1])
        cells = [cell for i, cell in enumerate(cells) if not i or cell[:2] != cells[i - 1][:2]]
        columns = {"rms": 3, "largest": 4, "floor": 5}
        return {
            "lines": [line for _, line in self._lines.values()],
            "steps": self.steps,
            "at": base64_of(distances([line * width + column for line, column, *_ in cells])),
            "state": base64_of(bytes(cell[2] for cell in cells)),
            "numbers": {name: base64_of(numbers_bytes([cell[i] for cell in cells])) for name, i in columns.items()},
            "texts": {f"{line * width + column}": text for (line, column), text in self._texts.items()},
            "loop": [{name: x if math.isfinite(x) else None for name, x in row.items()} for row in self.loop],
        }


def rms(record: Record) -> float:
    """Root mean square of a tensor's finite elements; NaN where there are none."""
    moments = record.moments
    if moments is None or moments.count <= moments.nan + moments.inf:
        return math.nan
    return moments.l2 / math.sqrt(moments.count - moments.nan - moments.inf)


def _largest(record: Record) -> float:
    return math.nan if record.moments is None else max(abs(record.moments.min), abs(record.moments.max))


def _numbers(record: Record, floor: float | None) -> tuple[int, float, float, float]:
    """(byte, rms, largest magnitude, floor relative to the norm)."""
    moments = record.moments
    kind = {"tensor": TENSOR, "none": NONE}.get(record.kind, SCALAR)
    bad = moments is not None and bool(moments.nan or moments.inf)
    state = kind + HELD * isinstance(record.value, np.ndarray) + BAD * bad
    relative = math.nan if floor is None or moments is None or not moments.l2 else floor / moments.l2
    return state, rms(record), _largest(record), relative
