"""The rows as text: a line each, the figures, and the page that is published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from asked import Outcome
from pitfall import Pitfall, Told

SOURCE = "https://github.com/huggingface/diffusers/blob/7d5767db48/.ai/skills/parity-testing/pitfalls.md"

HEAD = f"""# Pitfalls: diffusers' own list

Printed by `python benchmarks/pitfalls --markdown docs/pitfalls.md`. diffusers had a list of
[29 pitfalls]({SOURCE})
for those who port a model to it; 12 are left in it since. Each is written here as two sides, a few lines of real code
on tiny weights, recorded in two scripts (`parity.record`, float32 if nothing else is said) and compared by
`parity diff`; where they differ, `parity explain` is asked why. What parity has to say, the verdict and the words that
name it, was written down and committed before it was run, in `benchmarks/pitfalls`.

*Named*: the right verdict, and a sentence of the result says what it is. *Found*: the right verdict alone.
*Passes*: both sides only round, and nothing has to be said. *Not seen*: another verdict. Six pitfalls (17, 19 to 23)
are no faults but rounding or shape: there a pass is right, and what is said is a note. Two (8, 10) are no numbers: what
is shown is the error that the user sees, in 8 the script's own. Measured on a CPU.

As the list was first run, 10 were named or passed, 16 found and 3 not seen: a timestep by token was alarmed at, frames
that were rounded for truncated were not judged, and audio of another length passed. What was missing became rules of
parity, none of them for a row of this table alone, each with a test. Since then the expectations are as they were; five
scenes were mended that held no fault or did not run (7, 15, 21, 22, 27), one leaves an argument out in place of passing
another value (25), and one has the strength of its original (4).
"""


@dataclass(frozen=True)
class Row:
    """A pitfall and what came of it."""

    pitfall: Pitfall
    said: Told
    outcome: Outcome
    sentence: str


def line(row: Row) -> str:
    """One pitfall, for the terminal."""
    place = f" at {row.said.place}" if row.said.place else ""
    text = " ".join(row.sentence.split())
    return f"{row.pitfall.number:2} {row.pitfall.title:42} {row.outcome:8} {row.said.verdict}{place}: {text[:300]}"


def summary(rows: Sequence[Row]) -> str:
    """The figures in one line."""
    count = Counter(row.outcome for row in rows)
    return ", ".join(f"{name} {count[name]}" for name in ("named", "found", "passes", "not seen")) + f", of {len(rows)}"


def markdown(rows: Sequence[Row]) -> str:
    """The page."""
    table = ["| | pitfall | the two sides here | outcome | verdict | what is said |", "|---|---|---|---|---|---|"]
    for row in rows:
        where = f", at `{row.said.place.split(' ', 2)[-1]}`" if row.said.place else ""
        cells = (
            str(row.pitfall.number), row.pitfall.title, row.pitfall.what, row.outcome, row.said.verdict + where,
            " ".join(row.sentence.split()).replace("|", "/")[:300],
        )  # fmt: skip
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join([HEAD, f"{summary(rows)}.".capitalize(), "", *table]) + "\n"
