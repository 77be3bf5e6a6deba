"""Sections of plain strings, laid out as columns on a terminal and as one fact a line in a pipe.

Why two forms. Columns that line up are for eyes; `grep` and a CI log want whole names, no boxes and no colour. Both
lay out the same strings, so that they cannot disagree.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

_STYLES = {
    "pass": "green", "complete": "green", "fail": "bold red", "incomplete": "bold red",
    "harmless": "yellow", "explained": "yellow", "unjudged": "bold yellow",
}  # fmt: skip
_FIRST_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"-?\d|(-|nan|inf)$")
_FOLD = 16
"""A column that may fold needs this many columns of the terminal at most."""

Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Labelled sentences.

    Attributes:
        rows: (label, text) in order. A text that begins with a verdict is coloured by it on a terminal.
    """

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of named cells; the first column names the row.

    Attributes:
        title: of the table. noun: what a row is, in one word for the plain form. columns, rows: cells as shown.
        folds: columns whose cells a terminal may fold. repeats: so many leading cells are left blank on a terminal
            where they are those of the row above.
    """

    title: str
    noun: str
    columns: Cells
    rows: tuple[Cells, ...]
    folds: Cells = ()
    repeats: int = 0


Section = Facts | Table


def print_sections(found: Iterable[Section], console: Console) -> None:
    """Print sections: laid out where the console is a terminal, else one fact a line, never cut or wrapped."""
    for i, section in enumerate(found):
        if not console.is_terminal:
            _print_lines(section, console)
            continue
        if i:
            console.print()
        if isinstance(section, Facts):
            _print_facts(section, console)
        else:
            _print_table(section, console)


def lines(section: Section) -> Iterator[str]:
    """A section's plain form."""
    if isinstance(section, Facts):
        yield from (f"{label}: {text}" for label, text in section.rows)
        return
    for name, *cells in section.rows:
        named = (f"{column} {cell}" for column, cell in zip(section.columns[1:], cells, strict=True))
        yield f"{section.noun} {name}: " + "; ".join(named)


def _print_lines(section: Section, console: Console) -> None:
    for line in lines(section):
        console.print(Text(_printable(line, console)), soft_wrap=True)


def _print_facts(facts: Facts, console: Console) -> None:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts.rows:
        grid.add_row(Text(label, style="dim"), _styled(text, console))
    console.print(grid)


def _print_table(table: Table, console: Console) -> None:
    console.print(Text(table.title, style="bold"))
    if _least_width(table) > console.width:
        # Too narrow for the columns: whole lines, wrapped by the terminal, lose nothing.
        _print_lines(table, console)
        return
    grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name, cells in zip(table.columns, zip(*table.rows, strict=True), strict=True):
        folds = name in table.folds
        right = all(_NUMBER.match(cell) for cell in cells)
        grid.add_column(Text(name), justify="right" if right else "left", no_wrap=not folds, overflow="fold")
    above: Cells = ()
    for row in table.rows:
        again = table.repeats if row[: table.repeats] == above[: table.repeats] else 0
        grid.add_row(*[""] * again, *(_styled(cell, console) for cell in row[again:]))
        above = row
    console.print(grid)


def _least_width(table: Table) -> int:
    """Columns of the terminal that the table needs."""
    widths = (
        min(max(cell_len(cell) for cell in cells), _FOLD if cells[0] in table.folds else sys.maxsize)
        for cells in zip(table.columns, *table.rows, strict=True)
    )
    return sum(widths) + 2 * (len(table.columns) - 1)


def _styled(text: str, console: Console) -> Text:
    """The text, coloured where it begins with a verdict."""
    shown = Text(_printable(text, console))
    first = _FIRST_WORD.match(text)
    if first is not None and first[0] in _STYLES:
        shown.stylize(_STYLES[first[0]], 0, first.end())
    return shown


def _printable(text: str, console: Console) -> str:
    """Names can come from somebody else's file: no control character, nor one the console cannot write, gets out."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return shown.encode(console.encoding, "backslashreplace").decode(console.encoding)
