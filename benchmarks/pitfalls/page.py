"""The rows as text: a line each, the figures, and the page that is published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outcome import Outcome
from pitfall import Pitfall, Told

SOURCE = "https://github.com/huggingface/diffusers/blob/7d5767db48/.ai/skills/parity-testing/pitfalls.md"

HEAD = f"""# Pitfalls: diffusers' own list

Printed by `python benchmarks/pitfalls --markdown docs/pitfalls.md`. Who ports a model to diffusers had a list of
[29 pitfalls]({SOURCE}) in which ports and references part (12 of them are left in the list since). Each is written
here as two sides, a few lines of real code on tiny weights, recorded in two scripts (`parity.record`, float32 if
nothing else is said) and compared by `parity diff`; where they differ, `parity explain` is asked why. What parity has
to say, the verdict and the words that name it, was written down and committed before it was run, in
`benchmarks/pitfalls`.

*Named*: the right verdict, and a sentence of the result says what it is. *Found*: the right verdict alone. *Not seen*:
another verdict. Six of them only round: there a pass is right, and that sentence is a note. Measured on a CPU.
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
    return f"named {count['named']}, found {count['found']}, not seen {count['not seen']}, of {len(rows)}"


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
