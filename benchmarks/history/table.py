"""The rows as text: a line each, the figures that count, and the page that is published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import stamp
from change import Change
from every_change import CHANGES
from rivals import RULES

Row = Mapping[str, Any]

HEAD = """# History: faults that were real

`make history` runs them and renders this page from `benchmarks/results/history.json`. Each fault was in a public
repository and was mended there; its two versions are written anew, a few lines each, on tiny weights: the version
before is the candidate, the one since the reference. What lies in a model is run as two ports (`parity run
--reference-port ... --port ...`, defaults, float32); what lies in the loop around one is recorded in two
scripts (`parity.record`) and compared by `parity diff`; where they differ, `parity explain` is asked why. The expected
place and cause of each are in `benchmarks/history/*_faults.py`.

The first column is what counts: parity as it was when the catalogue was first run. Since then parity was changed by
what it got wrong here, so the second says only that nothing is lost. A fault counts where its effect on the result,
measured in float64, is above rounding. *Module*: the first divergence is at the module that was written down, its
attention call, or an input of it. *Cause*: of the faults whose cause parity could know, those that were named;
`unknown` is no right cause. An alarm is any verdict but a pass.
"""

FIRST = {
    "detected": "53 of 56",
    "innocents alarmed": "2 of 11",
    "right module": "52 of 53",
    "cause named": "39, with `unknown` where none is meant",
    "wrong cause": "0",
}


def line(change: Change, found: Row) -> str:
    """One change, for the terminal."""
    if change.innocent:
        told = "passes" if found["verdict"] == "pass" else f"ALARM {found['verdict']}: {found['reason'][:120]}"
        return f"{change.name:34} innocent  {told}"
    if found["verdict"] != "fail":
        return f"{change.name:34} {found['verdict'].upper()}  {found['reason'][:140]}"
    where = found["place"] or found["failed"]
    place = f"at {where}" if found["placed"] else f"PLACE {where} (meant: {', '.join(change.at)})"
    return f"{change.name:34} found  {place}  cause {found['named']}: {_told(found)}  effect {found['effect']:.1e}"


def _told(found: Row) -> str:
    return "; ".join(c["setting"] or c["cause"] for c in found["causes"]) or "none"


def figures(rows: Mapping[str, Row]) -> dict[str, str]:
    """Name -> how many of how many."""
    known = [(CHANGES[name], found) for name, found in rows.items() if name in CHANGES]
    faults = [(c, r) for c, r in known if not c.innocent and r["above"]]
    detected = [(c, r) for c, r in faults if r["verdict"] == "fail"]
    meant = [r for c, r in detected if c.cause != "unknown"]
    innocents = [r for c, r in known if c.innocent]
    return {
        "detected": f"{len(detected)} of {len(faults)}",
        "innocents alarmed": f"{sum(r['verdict'] != 'pass' for r in innocents)} of {len(innocents)}",
        "right module": f"{sum(r['placed'] for _, r in detected)} of {len(detected)}",
        "cause named": f"{sum(r['named'] == 'right' for r in meant)} of {len(meant)}",
        "wrong cause": f"{sum(r['named'] == 'wrong' for _, r in detected)} of {len(detected)}",
        **{
            rule: f"{sum(bool(r['rivals'][rule]) for _, r in faults)} of {len(faults)}, alarms at "
            f"{sum(bool(r['rivals'][rule]) for r in innocents)} of {len(innocents)} innocents"
            for rule in RULES
        },
    }


def markdown(kept: Mapping[str, Any]) -> str:
    """The page."""
    return "\n".join([HEAD, stamp.line(kept), "", *_figures(kept["rows"]), "", *_rows(kept["rows"])]) + "\n"


def _figures(rows: Mapping[str, Row]) -> Iterator[str]:
    now = figures(rows)
    yield "| | first run | now |"
    yield "|---|---|---|"
    yield from (f"| {name} | {first} | {now[name]} |" for name, first in FIRST.items())
    yield ""
    told = "; ".join(f"`{rule}` finds {now[rule]}" for rule in RULES)
    yield "Rules of others on the same tensors, every module's output (`noise`: the reference in float32 against itself"
    yield f"in float64): {told}. They detect as much on such sets: what parity adds is the place, the cause, and that"
    yield "padding does not decide."


def _rows(rows: Mapping[str, Row]) -> Iterator[str]:
    yield "| change | source | what changed | effect | verdict | cause |"
    yield "|---|---|---|---|---|---|"
    for name, found in rows.items():
        change = CHANGES.get(name)
        if change is None:
            continue
        place = f"`{found.get('place') or found.get('failed') or '-'}`"
        meant = "" if found["placed"] else f" (meant: {', '.join(f'`{at}`' for at in change.at)})"
        verdict = found["verdict"] if found["verdict"] != "fail" else place + meant
        told = "-" if found["verdict"] != "fail" or change.innocent else _told(found)
        told += f" (meant: {change.cause})" if told != "-" and found["named"] != "right" else ""
        effect = "only rounds" if change.innocent else f"{found['effect']:.1e}"
        yield f"| {' | '.join((name, _source(change), change.what, effect, verdict, told))} |"


def _source(change: Change) -> str:
    repository, mark, at = change.source.partition("#" if "#" in change.source else "@")
    return f"[{change.source}](https://github.com/{repository}/{'pull' if mark == '#' else 'commit'}/{at})"
