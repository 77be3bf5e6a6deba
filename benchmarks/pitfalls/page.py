"""The rows as text: a line each, the figures, and the page that is published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import stamp
from asked import Outcome
from every_pitfall import PITFALLS
from pitfall import Pitfall, Told

SOURCE = "https://github.com/huggingface/diffusers/blob/7d5767db48/.ai/skills/parity-testing/pitfalls.md"

HEAD = f"""# Pitfalls: diffusers' own list

`make pitfalls` runs them and renders this page from `benchmarks/results/pitfalls.json`. diffusers had a list of
[29 pitfalls]({SOURCE})
for those who port a model to it. Each is written here as two sides, a few lines of real code on tiny weights, recorded
in two scripts (`parity.record`, float32 unless it says otherwise) and compared by `parity diff`; where they differ,
`parity explain` is asked why. The expected verdict and words of each are in `benchmarks/pitfalls`.

**At first sight 10 of the 29 were named or passed, 16 found and 3 not seen.** What was missing became rules of parity:
the figures below are of a list that it was made for. *Named*: the right verdict, and a sentence of the result says what
it is. *Found*: the right verdict alone. *Passes*: both sides only round. Six (17, 19 to 23) are no faults but rounding
or shape: there a pass with a note is right. Two (8, 10) have no numbers: they show the error that the user sees, in 8
the script's own. Changed after the first run: five scenes that held no fault or did not run (7, 15,
21, 22, 27), one argument left out in place of another value (25), the strength of one fault (4), the words of 10.
"""

Row = Mapping[str, str]


def row(pitfall: Pitfall, said: Told, outcome: Outcome, sentence: str) -> Row:
    """What is kept of a pitfall."""
    return {"outcome": outcome, "verdict": said.verdict, "place": said.place, "says": " ".join(sentence.split())[:300]}


def line(pitfall: Pitfall, found: Row) -> str:
    """One pitfall, for the terminal."""
    place = f" at {found['place']}" if found["place"] else ""
    return f"{pitfall.number:2} {pitfall.title:42} {found['outcome']:8} {found['verdict']}{place}: {found['says']}"


def summary(rows: Iterable[Row]) -> str:
    """The figures in one line."""
    count = Counter(found["outcome"] for found in rows)
    return (
        ", ".join(f"{name} {count[name]}" for name in ("named", "found", "passes", "not seen"))
        + f", of {sum(count.values())}"
    )


def markdown(kept: Mapping[str, Any]) -> str:
    """The page."""
    rows = kept["rows"]
    table = ["| | pitfall | the two sides here | outcome | verdict | what is said |", "|---|---|---|---|---|---|"]
    for pitfall in PITFALLS:
        found = rows[str(pitfall.number)]
        where = f", at `{found['place'].split(' ', 2)[-1]}`" if found["place"] else ""
        cells = (
            pitfall.title,
            pitfall.what,
            found["outcome"],
            found["verdict"] + where,
            found["says"].replace("|", "/"),
        )
        table.append(f"| {pitfall.number} | {' | '.join(cells)} |")
    return "\n".join([HEAD, stamp.line(kept), "", f"{summary(rows.values())}.".capitalize(), "", *table]) + "\n"
