"""The rows as text: a line each, the figures that count, and the page that is published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from change import Change
from every_change import CHANGES
from rivals import RULES

Rows = Mapping[str, Mapping[str, Any]]

HEAD = """# History: faults that were real

Printed by `make history`. Each fault was in a public repository and was mended there; its two versions are written
anew, a few lines each, on tiny weights: the version before is the candidate, the one since the reference. What lies in
a model is run as two ports (`parity run --reference-path ... --candidate-path ...`, defaults, float32); what lies in
the loop around one is recorded in two scripts (`parity.record`) and compared by `parity diff`; where they differ,
`parity explain` is asked why. Where each lies and why was written down and committed before it was run, in
`benchmarks/history/*_faults.py`.

A fault counts as detected only where its effect on the result, measured in float64, is above rounding (how far the
fixed version in float32 is from itself in float64). *Module*: the first divergence is at the module that was written
down, its attention call, or an input of it. *Cause*: what was written down is named; `unknown` where no known fault is
meant. An alarm is any verdict but a pass.
"""

FIRST = """## The first run

As the catalogue was committed: 53 of 56 detected, 52 of these at the module that was written down, 39 with the right
cause (or `unknown`), none wrong, 2 of 11 innocents alarmed. What it broke was mended in parity, each with a test, and
the changes that are meant by it were run again; nothing in the catalogue was changed:

- `explain` ended in a traceback on grouped attention (Cosmos 3), which the row counted as not found.
- A scheduler that draws noise had a floor as large as the noise (DDPM): the run beside it in float64 drew another.
- A scheduler's subclass with `*args` ended the recording.
- Wan's VAE, which keeps its frames in a list that it is given, had a floor of 118 %: perturbed runs copied the list.
- A VAE as a port was compared at its output alone, or not at all: its blocks lie below its own children.
- Dropped, added, inverted and misplaced attention masks were not named, nor a guidance scale lost with its branch, a
  shift of the scheduler's config, latents that are not denormalised by channel.
"""


def line(change: Change, found: Mapping[str, Any]) -> str:
    """One change, for the terminal."""
    if change.innocent:
        told = "passes" if found["verdict"] == "pass" else f"ALARM {found['verdict']}: {found['reason'][:120]}"
        return f"{change.name:34} innocent  {told}"
    if found["verdict"] != "fail":
        return f"{change.name:34} {found['verdict'].upper()}  {found['reason'][:140]}"
    where = found["place"] or found["failed"]
    place = f"at {where}" if found["placed"] else f"PLACE {where} (meant: {', '.join(change.at)})"
    cause = f"cause {found['named']}" if found["named"] == "right" else f"CAUSE {found['named']}: {_told(found)}"
    return f"{change.name:34} found  {place}  {cause}  effect {found['effect']:.1e}"


def _told(found: Mapping[str, Any]) -> str:
    return "; ".join(c["cause"] for c in found["causes"]) or "none named"


def _split(rows: Rows) -> tuple[list[tuple[Change, Mapping[str, Any]]], list[tuple[Change, Mapping[str, Any]]]]:
    known = [(CHANGES[name], found) for name, found in rows.items() if name in CHANGES]
    return [k for k in known if not k[0].innocent and k[1]["above"]], [k for k in known if k[0].innocent]


def figures(rows: Rows) -> dict[str, tuple[int, int]]:
    """Name -> (how many, of how many)."""
    faults, innocents = _split(rows)
    detected = [(c, r) for c, r in faults if r["verdict"] == "fail"]
    return {
        "detected": (len(detected), len(faults)),
        "innocents alarmed": (sum(r["verdict"] != "pass" for _, r in innocents), len(innocents)),
        "right module, of those detected": (sum(r["placed"] for _, r in detected), len(detected)),
        "right cause, or unknown where that is right": (sum(r["named"] == "right" for _, r in detected), len(detected)),
        "wrong cause": (sum(r["named"] == "wrong" for _, r in detected), len(detected)),
    }


ASKED = {
    "detected": "95 %", "innocents alarmed": "0", "right module, of those detected": "90 %",
    "right cause, or unknown where that is right": "80 %", "wrong cause": "0",
}  # fmt: skip


def summary(rows: Rows) -> Iterator[str]:
    """The figures, and the rules of others beside them."""
    for name, (count, total) in figures(rows).items():
        share = f" ({100 * count / total:.0f} %)" if total else ""
        yield f"{name}: {count} of {total}{share}, asked for: {ASKED[name]}"
    faults, innocents = _split(rows)
    for rule in RULES:
        found = sum(bool(r["rivals"][rule]) for _, r in faults)
        yield f"{rule}: finds {found} of {len(faults)}, alarms {_alarms(innocents, rule)} of {len(innocents)} innocents"


def _alarms(innocents: list[tuple[Change, Mapping[str, Any]]], rule: str) -> int:
    return sum(bool(r["rivals"][rule]) for _, r in innocents)


def markdown(rows: Rows) -> str:
    """The page."""
    faults, innocents = _split(rows)
    return "\n".join(
        [HEAD, *_figures(rows), "", *_others(faults, innocents), "", *_faults(rows), "", *_innocents(innocents), "",
         FIRST, *_short(rows)]
    ) + "\n"  # fmt: skip


def _figures(rows: Rows) -> Iterator[str]:
    yield "| | asked for | |"
    yield "|---|---|---|"
    for name, (count, total) in figures(rows).items():
        share = f" ({100 * count / total:.0f} %)" if total and "alarmed" not in name else ""
        yield f"| {name} | {ASKED[name]} | {count} of {total}{share} |"


def _others(faults: list[Any], innocents: list[Any]) -> Iterator[str]:
    yield "The rules of others on the same tensors, every module's output (`noise`: the reference in float32 against"
    yield "itself in float64); none of them says where, or why:"
    yield ""
    yield "| rule | finds | innocents alarmed |"
    yield "|---|---|---|"
    for rule in RULES:
        found = sum(bool(r["rivals"][rule]) for _, r in faults)
        yield f"| {rule} | {found} of {len(faults)} | {_alarms(innocents, rule)} of {len(innocents)} |"


def _faults(rows: Rows) -> Iterator[str]:
    yield "## Faults"
    yield ""
    yield "| fault | source | kind | what changed | effect | first divergence | cause |"
    yield "|---|---|---|---|---|---|---|"
    for name, found in rows.items():
        change = CHANGES.get(name)
        if change is None or change.innocent:
            continue
        place = f"`{found['place'] or found.get('failed') or '-'}`" if found["verdict"] == "fail" else found["verdict"]
        place += "" if found["placed"] or found["verdict"] != "fail" else " (meant: " + _globs(change) + ")"
        effect = f"{found['effect']:.1e}" + ("" if found["above"] else ", not above rounding")
        cells = (name, _source(change), change.kind, change.what, effect, place, _cause(change, found))
        yield f"| {' | '.join(cells)} |"


def _globs(change: Change) -> str:
    return ", ".join(f"`{at}`" for at in change.at)


def _source(change: Change) -> str:
    repository, _, number = change.source.partition("#")
    if number:
        return f"[{change.source}](https://github.com/{repository}/pull/{number})"
    repository, _, commit = change.source.partition("@")
    return f"[{change.source}](https://github.com/{repository}/commit/{commit})"


def _cause(change: Change, found: Mapping[str, Any]) -> str:
    if found["verdict"] != "fail":
        return "-"
    told = "; ".join(c["setting"] or c["cause"] for c in found["causes"]) or "unknown"
    return told if found["named"] == "right" else f"{told} ({found['named']}; meant: {change.cause})"


def _innocents(innocents: list[tuple[Change, Mapping[str, Any]]]) -> Iterator[str]:
    yield "## Changes that only round"
    yield ""
    yield "| change | source | what changed | verdict | others that alarm |"
    yield "|---|---|---|---|---|"
    for change, found in innocents:
        others = ", ".join(rule for rule, alarm in found["rivals"].items() if alarm) or "-"
        verdict = found["verdict"] if found["verdict"] == "pass" else f"{found['verdict']}: {found['reason']}"
        yield f"| {change.name} | {_source(change)} | {change.what} | {verdict} | {others} |"


def _short(rows: Rows) -> Iterator[str]:
    yield "## What fell short"
    yield ""
    faults, innocents = _split(rows)
    lines = [f"- {line(c, r)}" for c, r in faults if r["verdict"] != "fail" or not r["placed"] or r["named"] != "right"]
    lines += [f"- {line(c, r)}" for c, r in innocents if r["verdict"] != "pass"]
    yield from (" ".join(text.split()) for text in lines) if lines else ["Nothing."]
