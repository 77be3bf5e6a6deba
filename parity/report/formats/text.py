"""For a person: columns and colour on a terminal, one fact a line in a pipe.

Why two forms. Columns that line up are for eyes; `grep` and a CI log want whole names, no boxes and no colour. Both
lay out the same strings, so that they cannot disagree.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from parity.report.document import Cells, Document, Facts, Section, Table, lines
from parity.report.output import console, printable

_STYLES = {
    "pass": "green", "complete": "green", "fail": "bold red", "incomplete": "bold red",
    "harmless": "yellow", "explained": "yellow", "inconclusive": "bold yellow",
}  # fmt: skip
_FIRST_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"-?\d|(-|nan|inf)$")
_FOLD = 16
"""A column that may fold needs this many columns of the terminal at most."""


def text(document: Document) -> str:
    return laid_out(in_order(document), console())


def in_order(document: Document) -> tuple[Section, ...]:
    """The sections as they are read in a terminal, whose last lines are seen first: the conclusion ends it."""
    return tuple(s for s in (*document.sections(), *reversed(document.conclusion())) if s.rows)


def laid_out(sections: Iterable[Section], console: Console) -> str:
    """Sections as text: columns where the console is a terminal, else one fact a line, never cut or wrapped."""
    if not console.is_terminal:
        return "".join(f"{printable(line, console.encoding)}\n" for section in sections for line in lines(section))
    with console.capture() as captured:
        for i, section in enumerate(sections):
            if i:
                console.print()
            if isinstance(section, Facts):
                _print_facts(section, console)
            else:
                _print_table(section, console)
    return captured.get()


def _print_facts(facts: Facts, console: Console) -> None:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts.rows:
        grid.add_row(Text(printable(label, console.encoding), style="dim"), _styled(text, console))
    console.print(grid)


def _print_table(table: Table, console: Console) -> None:
    console.print(Text(printable(table.title, console.encoding), style="bold"))
    if _least_width(table) > console.width:
        # Too narrow for the columns: whole lines, wrapped by the terminal, lose nothing.
        for line in lines(table):
            console.print(Text(printable(line, console.encoding)), soft_wrap=True)
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
    for said in filter(None, table.below):
        console.print(Text(printable(said, console.encoding), style="dim"), soft_wrap=True)


def _least_width(table: Table) -> int:
    """Columns of the terminal that the table needs."""
    widths = (
        min(max(cell_len(cell) for cell in cells), _FOLD if cells[0] in table.folds else sys.maxsize)
        for cells in zip(table.columns, *table.rows, strict=True)
    )
    return sum(widths) + 2 * (len(table.columns) - 1)


def _styled(text: str, console: Console) -> Text:
    """The text, coloured where it begins with a verdict."""
    shown = Text(printable(text, console.encoding))
    first = _FIRST_WORD.match(text)
    if first is not None and first[0] in _STYLES:
        shown.stylize(_STYLES[first[0]], 0, first.end())
    return shown
