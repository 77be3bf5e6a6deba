"""What a command has to show, once for every format: a JSON document for scripts and sections of text for people.

    render(Listing({"tools": [...]}, (Facts(rows),)), "markdown")

A comparison (`parity.report.comparison.Comparison`) is a document too; some formats take only that. Numbers are written
here as every report writes them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from parity.compare.result import Distance

Json = Mapping[str, Any]
LARGEST = sys.float_info.max
"""Stands for infinity, which JSON has no number for: a ratio stays greater than any limit."""
Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Labelled sentences.

    Attributes:
        rows: (label, text) in order; without a label a plain line. A verdict that begins a text colours it.
    """

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of named cells; the first column names the row.

    Attributes:
        title: of the table. columns, rows: cells as shown.
        folds: columns whose cells a terminal may fold.
        repeats: number of leading cells that a terminal leaves blank where they equal those of the row above.
        below: lines under it: what the rows leave out, what the columns mean; empty ones are not shown.
        noun: what a row is in the plain form, where that is not the name of the first column.
    """

    title: str
    columns: Cells
    rows: tuple[Cells, ...]
    folds: Cells = ()
    repeats: int = 0
    below: tuple[str, ...] = ()
    noun: str = ""


Section = Facts | Table


def finite(value: float) -> float | None:
    """A number as JSON has it: null for NaN, `LARGEST` for infinity."""
    value = float(value)
    return None if math.isnan(value) else max(-LARGEST, min(LARGEST, value))


class Document(Protocol):
    """Anything that a format renders."""

    def json(self) -> Json:
        """The JSON document: its keys are a contract, its numbers finite (`finite`)."""
        ...

    def conclusion(self) -> tuple[Section, ...]:
        """What a reader must not miss, most important first: a page begins with it, a terminal ends in it, turned
        round; may be empty. A section without rows is left out."""
        return ()

    def sections(self) -> tuple[Section, ...]:
        """The rest for a person, most important first."""
        ...


@dataclass(frozen=True, slots=True)
class Listing(Document):
    """A document that is made already.

    Attributes:
        document: the JSON document, but for its `format`. shown: its sections.
    """

    document: Json
    shown: tuple[Section, ...]

    def json(self) -> Json:
        return {"format": 1, **self.document}

    def sections(self) -> tuple[Section, ...]:
        return self.shown


def listed(*tables: Table) -> Listing:
    """Tables whose rows are the JSON document too, under their titles."""
    rows = {table.title.lower(): [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in tables}
    return Listing(rows, tables)


def lines(section: Section) -> Iterator[str]:
    """A section with one fact a line: what `grep` and a CI log want."""
    if isinstance(section, Facts):
        yield from (f"{label}: {text}" if label else text for label, text in section.rows)
        return
    for name, *cells in section.rows:
        named = (f"{column} {cell}" for column, cell in zip(section.columns[1:], cells, strict=True))
        yield f"{section.noun or section.columns[0]} {name}: " + "; ".join(named)
    yield from (f"({said})" for said in section.below if said)


# --- numbers


def small(value: float) -> str:
    """A difference: `2.80e-06`; 0 as such."""
    return "0" if value == 0 else f"{value:.2e}"


def times(ratio: float) -> str:
    """A ratio to the floor: `0.8x`, `1.2e+04x`, `inf`, `nan`."""
    if not math.isfinite(ratio):
        return str(ratio)
    return f"{ratio:.1f}x" if ratio < 1000 else f"{ratio:.1e}x"


def both(reference: float, candidate: float) -> str:
    """A number of each side, once where they agree: `999`, `999 -> 1000`; `-` for one that a schedule does not have."""
    texts = ["-" if math.isnan(value) else f"{value:.5g}" for value in (reference, candidate)]
    if reference == candidate or (math.isnan(reference) and math.isnan(candidate)):
        return texts[0]
    return " -> ".join(texts if texts[0] != texts[1] else [repr(reference), repr(candidate)])


def distance_cells(distance: Distance) -> Cells:
    """(relative L2, floor, ratio)."""
    return small(distance.rel_l2), small(distance.floor), times(distance.ratio)


def counted(count: int, noun: str) -> str:
    """`1 step`, `3 steps`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
