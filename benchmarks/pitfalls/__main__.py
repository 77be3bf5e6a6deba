"""The 29 pitfalls of diffusers' list, each as two sides run through parity as it is.

    python benchmarks/pitfalls [--only NUMBER]... [--state FILE] [--render]

What the right answer is was written down beside each (`*_pitfalls.py`) before it was run. Some seconds each.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "history"))
import program  # it sets up what is imported next
from every_pitfall import PITFALLS
from pitfall import Pitfall, outcome, told
from program import Row, Rows, table


def row(pitfall: Pitfall) -> Row:
    """What is kept of a pitfall: of what is said the sentence that counts, cut to a line; else the first."""
    with tempfile.TemporaryDirectory() as folder:
        said = told(pitfall, Path(folder))
    chosen = [text for text in said.sentences if pitfall.says and pitfall.words_in(text)]
    says = next(iter([*chosen, *said.sentences]), "").replace(folder, "")
    found = {"outcome": outcome(pitfall, said), "verdict": said.verdict, "place": said.place}
    return {**found, "says": " ".join(says.split())[:300]}


def line(pitfall: Pitfall, found: Row) -> str:
    """One pitfall, for the terminal."""
    place = f" at {found['place']}" if found["place"] else ""
    return f"{pitfall.number:2} {pitfall.title:42} {found['outcome']:8} {found['verdict']}{place}: {found['says']}"


def summary(rows: Rows) -> str:
    """The figures in one line."""
    count = Counter(found["outcome"] for found in rows.values())
    told = (f"{name} {count[name]}" for name in ("named", "found", "passes", "not seen"))
    return f"{', '.join(told)}, of {len(rows)}"


def measured(rows: Rows) -> Iterator[str]:
    """The page's figures and rows."""
    yield f"{summary(rows)}.".capitalize()
    yield ""
    columns = ("", "pitfall", "the two sides here", "outcome", "verdict", "the sentence")
    yield from table(columns, (cells(pitfall, rows[str(pitfall.number)]) for pitfall in PITFALLS))


def cells(pitfall: Pitfall, found: Row) -> tuple[str, ...]:
    """One pitfall, for the page."""
    where = f", at `{found['place'].split(' ', 2)[-1]}`" if found["place"] else ""
    says = found["says"].replace("|", "/")
    return str(pitfall.number), pitfall.title, pitfall.what, found["outcome"], found["verdict"] + where, says


if __name__ == "__main__":
    program.main("pitfalls", {str(row.number): row for row in PITFALLS}, row, line, summary, measured)
