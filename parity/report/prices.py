"""The price list of a sweep as a document: nothing is computed here."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parity.compare.prices import Price, PriceList, to_json
from parity.report.cells import small, times
from parity.report.document import Facts, Json, Section, Table
from parity.report.page.sweep import best

FORMAT = 1
"""Version of the JSON document; raised when a key changes its meaning or goes."""

COLUMNS = ("settings", "verdict", "noise_pred rel L2", "floor", "ratio", "bits", "latents rel L2", "time", "memory")

LEGEND = "floor: what rounding explains; ratio: fails above 3x; time: of base, quartiles"
CACHES_LEGEND = "what a cache saves in time it costs at noise_pred: relative L2 of each step"
LEGENDS = (LEGEND, CACHES_LEGEND)

HEADING = """# What settings cost

Made by `parity sweep`. Each row is a candidate with these settings, judged by the rounds of `parity run` against one
reference and its floors. noise_pred and latents are taken at the step where each is farthest beyond its floor: relative
L2, the floor that rounding alone explains, and their ratio (beyond 3 a row fails). Bits are the leading bits in which
noise_pred agrees, of those that its dtype has. Time is that of one step of the compiled transformer, unobserved, all
guidance branches. In brackets it is relative to the base candidate's: each row and the base are called in turns, and
the median of the ratios stands there with their quartiles; the time before it is that ratio of the base's median in the
whole sweep. The row `(base)` is the base against itself: what its ratios spread is the machine's noise. Memory is what
XLA reports for the largest compiled program on a device, weights included. Rows are sorted by ratio, then time."""


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
    yield Facts((("model", prices.model), ("measured", _measured(prices)), *_choose(prices.rows)))
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


def _choose(rows: Sequence[Price]) -> Iterator[tuple[str, str]]:
    """The rows that pass and that no other such row beats in both error and time, the fastest first."""
    passing = [row for row in rows if row.verdict == "pass" and math.isfinite(row.seconds)]
    front = [passing[at].name for at in best([(row.seconds, row.noise_pred.rel_l2) for row in passing])]
    if len(front) > 1:
        yield "choose among", f"{', '.join(front)} (they pass, and none that passes beats them in error and time)"


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
    """`12.3 ms (1.10x, 1.05-1.18)`: of a step, and relative to the base candidate with its quartiles."""
    if math.isnan(row.seconds):
        return "unknown"
    first, third = row.of_base_quartiles
    spread = "" if math.isnan(first) else f", {first:.2f}-{third:.2f}"
    return f"{row.seconds * 1e3:.1f} ms ({row.of_base:.2f}x{spread})"


CSV = (
    "model", "settings", "verdict", "failed", "noise_pred", "floor", "ratio", "latents", "bits", "bits_of", "seconds",
    "of_base", "first_quartile", "third_quartile", "memory", "reason",
)  # fmt: skip
"""Columns of `to_csv`; seconds, bytes; a number that is not known is empty."""


def to_csv(lists: Sequence[PriceList]) -> str:
    """The rows of all lists as one table for a spreadsheet; a line a row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV)
    for prices in lists:
        for row in prices.rows:
            memory = math.nan if row.memory is None else row.memory
            numbers = (
                row.noise_pred.rel_l2, row.noise_pred.floor, row.noise_pred.ratio, row.latents.rel_l2, row.bits,
                row.bits_of, row.seconds, row.of_base, *row.of_base_quartiles, memory,
            )  # fmt: skip
            cells = ("" if math.isnan(x) else repr(x) for x in numbers)
            writer.writerow([prices.model, row.name, row.verdict, row.failed or "", *cells, row.reason])
    return text.getvalue()
