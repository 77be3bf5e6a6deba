"""The price list of a sweep as a document: nothing is computed here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parity.compare.prices import Price, PriceList, to_json
from parity.report.cells import small, times
from parity.report.document import Facts, Json, Section, Table

FORMAT = 1
"""Version of the JSON document; raised when a key changes its meaning or goes."""

COLUMNS = ("settings", "verdict", "noise_pred rel L2", "floor", "ratio", "bits", "latents rel L2", "time", "memory")

LEGEND = "floor: what rounding alone explains; ratio: fails above 3x; time: (of base)"
CACHES_LEGEND = "what a cache saves in time it costs at noise_pred: relative L2 of each step"
LEGENDS = (LEGEND, CACHES_LEGEND)

HEADING = """# What settings cost

Made by `parity sweep`. Each row is a candidate with these settings, judged by the rounds of `parity run` against one
reference and its floors. noise_pred and latents are taken at the step where each is farthest beyond its floor: relative
L2, the floor that rounding alone explains, and their ratio (beyond 3 a row fails). Bits are the leading bits in which
noise_pred agrees, of those that its dtype has. Time is that of one step of the compiled transformer, unobserved, all
guidance branches, a median; in brackets relative to the base candidate, timed in turns with it. Memory is what XLA
reports for the largest compiled program on a device, weights included. Rows are sorted by ratio, then time."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The price lists of a sweep as a document.

    Attributes:
        lists: one a model.
    """

    lists: Sequence[PriceList]

    @property
    def heading(self) -> str:
        return HEADING

    def json(self) -> Json:
        return {"format": FORMAT, "sweeps": [_list(prices) for prices in self.lists]}

    def conclusion(self) -> tuple[Section, ...]:
        return ()

    def sections(self) -> tuple[Section, ...]:
        return tuple(section for prices in self.lists for section in _sections(prices) if section.rows)


def _list(prices: PriceList) -> Json:
    return {
        "model": prices.model,
        "steps": prices.steps,
        "seed": prices.seed,
        "reference": list(prices.reference),
        "candidate": list(prices.candidate),
        "device": prices.device,
        "reference_device": prices.reference_device,
        "pallas_interpreted": prices.interpreted,
        "rows": [to_json(row) for row in prices.rows],
    }


def _sections(prices: PriceList) -> Iterator[Section]:
    judged = [row for row in prices.rows if row.verdict != "refused"]
    aside = [row for row in prices.rows if row.verdict in ("refused", "unjudged")]
    rest = [(row.name, row.verdict, row.reason) for row in aside]
    cached = [row for row in judged if any("cache=deepcache" in setting for setting in row.settings)]
    steps = range(max((len(row.by_step) for row in cached), default=0))
    by_step = tuple((row.name, *(small(x) for x in row.by_step), _time(row)) for row in cached)
    yield Facts((("measured", _measured(prices)),))
    yield Table(
        f"Prices: {prices.model}", "row", COLUMNS, tuple(map(_cells, judged)), folds=("settings",), legend=LEGEND
    )
    columns = ("settings", *(f"step {i}" for i in steps), "time")
    yield Table(
        "Feature caches: noise_pred rel L2 by step against time",
        "cache",
        columns,
        by_step,
        folds=("settings",),
        legend=CACHES_LEGEND,
    )
    columns = ("settings", "verdict", "reason")
    yield Table("Not judged, or without effect", "row", columns, tuple(rest), folds=("settings", "reason"))


def _measured(prices: PriceList) -> str:
    """What the numbers were measured on, and what they do not say."""
    reference, candidate = (" ".join(settings) or "defaults" for settings in (prices.reference, prices.candidate))
    steps = "1 step" if prices.steps == 1 else f"{prices.steps} steps"
    text = (
        f"{steps}, seed {prices.seed}; reference: {reference}, on {prices.reference_device}; "
        f"candidate: {candidate} and the row's settings, on {prices.device}"
    )
    if prices.interpreted:
        text += "; no TPU: times are not those of a TPU, and Pallas kernels (splash) were interpreted"
    return text


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
