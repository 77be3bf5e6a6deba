"""The price list for a person, for a script and for a document: nothing is computed here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from parity.compare.prices import Price, PriceList, to_json
from parity.report.markdown import code, table, text
from parity.report.sections import Facts, Section, Table
from parity.report.terminal import small, times

FORMAT = 1
"""Version of the JSON document; raised when a key changes its meaning or goes."""

COLUMNS = ("settings", "verdict", "noise_pred rel L2", "floor", "ratio", "bits", "latents rel L2", "time", "memory")


def dumps(lists: Sequence[PriceList]) -> str:
    """One JSON document."""
    return json.dumps(
        {
            "format": FORMAT,
            "sweeps": [
                {
                    "model": found.model,
                    "steps": found.steps,
                    "seed": found.seed,
                    "reference": list(found.reference),
                    "candidate": list(found.candidate),
                    "device": found.device,
                    "reference_device": found.reference_device,
                    "pallas_interpreted": found.interpreted,
                    "rows": [to_json(row) for row in found.rows],
                }
                for found in lists
            ],
        },
        indent=1,
    )


def sections(found: PriceList) -> tuple[Section, ...]:
    """What is printed of one model."""
    judged = [row for row in found.rows if row.verdict != "refused"]
    rest = [(row.name, row.verdict, row.reason) for row in found.rows if row.verdict in ("refused", "unjudged")]
    made = (
        Facts((("measured", _measured(found)),)),
        Table(f"Prices: {found.model}", "row", COLUMNS, tuple(map(_cells, judged)), folds=("settings",)),
        Table("Not judged", "row", ("settings", "verdict", "reason"), tuple(rest), folds=("settings", "reason")),
    )
    return tuple(section for section in made if section.rows)


def markdown(lists: Sequence[PriceList]) -> str:
    """The document; ends with a newline."""
    return "\n\n".join([_HEAD, *(part for found in lists for part in _parts(found) if part)]) + "\n"


_HEAD = """# What settings cost

Made by `parity sweep`. Each row is a candidate with these settings, judged by the rounds of `parity run` against one
reference and its floors. noise_pred and latents are taken at the step where each is farthest beyond its floor: relative
L2, the floor that rounding alone explains, and their ratio (beyond 3 a row fails). Bits are the leading bits in which
noise_pred agrees, of those that its dtype has. Time is that of one step of the compiled transformer, unobserved, all
guidance branches, a median; in brackets relative to the base candidate, timed in turns with it. Memory is what XLA says
that the largest compiled program needs on a device, weights included. Rows are sorted by ratio, then time."""


def _parts(found: PriceList) -> Iterator[str]:
    judged = [row for row in found.rows if row.verdict != "refused"]
    yield f"## {text(found.model)}"
    yield text(_measured(found)) + "."
    rows = [(code(row.name), *_cells(row)[1:]) for row in judged]
    yield table(COLUMNS, rows)
    cached = [row for row in judged if any("cache=deepcache" in setting for setting in row.settings)]
    steps = range(max((len(row.by_step) for row in cached), default=0))
    by_step = [(code(row.name), *(small(x) for x in row.by_step), _time(row)) for row in cached]
    if by_step:
        yield "### Feature caches: error by step against time"
        yield table(("noise_pred rel L2", *(f"step {i}" for i in steps), "time"), by_step)
    rest = [
        (code(row.name), row.verdict, text(row.reason)) for row in found.rows if row.verdict in ("refused", "unjudged")
    ]
    if rest:
        yield "### Not judged"
        yield table(("settings", "verdict", "reason"), rest)


def _measured(found: PriceList) -> str:
    """What the numbers were measured on, and what they do not say."""
    ours, theirs = (" ".join(given) or "defaults" for given in (found.reference, found.candidate))
    steps = "1 step" if found.steps == 1 else f"{found.steps} steps"
    told = (
        f"{steps}, seed {found.seed}; reference: {ours}, on {found.reference_device}; "
        f"candidate: {theirs} and the row's settings, on {found.device}"
    )
    if found.interpreted:
        told += "; no TPU: times are not those of a TPU, and Pallas kernels (splash) were interpreted"
    return told


def _cells(row: Price) -> tuple[str, ...]:
    verdict = f"{row.verdict} ({row.failed})" if row.failed else row.verdict
    bits = f"{row.bits:.1f}/{row.bits_of}" if row.bits_of else "-"
    return (
        row.name,
        verdict,
        small(row.noise_pred.rel_l2),
        small(row.noise_pred.floor),
        times(row.noise_pred.ratio),
        bits,
        small(row.latents.rel_l2),
        _time(row),
        "unknown" if row.memory is None else f"{row.memory / 2**20:.1f} MiB",
    )


def _time(row: Price) -> str:
    """`12.3 ms (1.10x)`: of a step, and relative to the base candidate."""
    if math.isnan(row.seconds):
        return "unknown"
    return f"{row.seconds * 1e3:.1f} ms ({row.of_base:.2f}x)"
