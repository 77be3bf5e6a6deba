"""The price list: what each combination of settings costs in error, time and memory. Plain data and its order."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from parity.compare.result import NAN, UNKNOWN, Distance, Failed, Result
from parity.golden.strict import COUNT, LONG_TEXT, NUMBER, TEXT, choice, listed, members, optional, row
from parity.golden.strict import record as of

MOST = 100_000
"""Settings or steps of a row, at most."""

PriceVerdict = Literal["pass", "fail", "unjudged", "refused"]


@dataclass(frozen=True, slots=True)
class Price:
    """One row.

    Attributes:
        settings: `NAME=VALUE` of the candidate; empty for the base itself.
        verdict: as of `parity run`; `refused` where the candidate or the model does not take the settings.
        failed: which round, or preflight. reason: one sentence.
        noise_pred, latents: at the step where each is farthest beyond its floor.
        bits, bits_of: leading bits in which noise_pred agrees at its worst step, and those of its dtype.
        by_step: relative L2 of noise_pred at each step.
        seconds: of a step of the transformer, unobserved. of_base: relative to the base candidate's: the median of the
            ratios of calls in turns. of_base_quartiles: their first and third quartile. base_seconds: of the base
            candidate's calls in those turns, a median.
        memory: bytes of the largest compiled program on a device; None where unknown.
    """

    settings: tuple[str, ...]
    verdict: PriceVerdict
    failed: Failed | None = None
    reason: str = ""
    noise_pred: Distance = UNKNOWN
    latents: Distance = UNKNOWN
    bits: float = NAN
    bits_of: int = 0
    by_step: tuple[float, ...] = ()
    seconds: float = NAN
    of_base: float = NAN
    of_base_quartiles: tuple[float, float] = (NAN, NAN)
    base_seconds: float = NAN
    memory: int | None = None

    @property
    def name(self) -> str:
        """The settings as one text."""
        return " ".join(self.settings) or "(base)"


@dataclass(frozen=True, slots=True)
class PriceList:
    """All rows of one model.

    Attributes:
        model, steps, seed: of the runs. reference, candidate: settings beyond the defaults, of the reference and of
            every row. device: the candidate's. reference_device: the reference's.
        interpreted: whether Pallas kernels were interpreted, so that their times say nothing.
        rows: cheapest error first.
    """

    model: str
    steps: int
    seed: int
    reference: tuple[str, ...]
    candidate: tuple[str, ...]
    device: str
    reference_device: str
    interpreted: bool
    rows: tuple[Price, ...]


def priced(settings: tuple[str, ...], result: Result) -> Price:
    """The row of a judged run, its cost still unknown."""
    worst = max(result.steps, key=lambda step: _last(step.noise_pred.ratio), default=None)
    return Price(
        settings,
        result.verdict,
        result.failed,
        result.reason,
        UNKNOWN if worst is None else worst.noise_pred,
        max((step.latents for step in result.steps), key=lambda d: _last(d.ratio), default=UNKNOWN),
        min((step.bits for step in result.steps if step.bits_of), default=NAN),
        max((step.bits_of for step in result.steps), default=0),
        tuple(step.noise_pred.rel_l2 for step in result.steps),
    )


def with_one_base(rows: Sequence[Price]) -> list[Price]:
    """The rows with the seconds that they take where the base takes its median of the whole sweep.

    A sweep takes an hour, and the machine is not as fast in each of its minutes; a row's ratio was measured against the
    base of its own minute.
    """
    bases = [row.base_seconds for row in rows if math.isfinite(row.base_seconds)]
    base = statistics.median(bases) if bases else NAN
    return [replace(row, seconds=row.of_base * base) if math.isfinite(row.of_base) else row for row in rows]


def in_order(rows: Sequence[Price]) -> tuple[Price, ...]:
    """By ratio to the floor, then by time; what was not judged, then what was refused, at the end."""
    last = {"refused": 2, "unjudged": 1}

    def key(row: Price) -> tuple[int, float, float]:
        return last.get(row.verdict, 0), _last(row.noise_pred.ratio), _last(row.seconds)

    return tuple(sorted(rows, key=key))


def _last(x: float) -> float:
    """What is no number sorts behind all that is."""
    return math.inf if math.isnan(x) else x


_DISTANCE = of(Distance, rel_l2=NUMBER, floor=NUMBER, ratio=NUMBER)
_PRICE = members(
    {
        "settings": listed(TEXT, MOST),
        "verdict": choice(*get_args(PriceVerdict)),
        "failed": choice(None, *get_args(Failed)),
        "reason": LONG_TEXT,
        "noise_pred": _DISTANCE,
        "latents": _DISTANCE,
        "bits": NUMBER,
        "bits_of": COUNT,
        "noise_pred_by_step": listed(NUMBER, MOST),
        "seconds": NUMBER,
        "of_base": NUMBER,
        "of_base_quartiles": row(NUMBER, NUMBER),
        "base_seconds": NUMBER,
        "memory": optional(COUNT),
    }
)


def to_json(price: Price) -> dict[str, Any]:
    """A row as plain JSON: the form of the document and of the state file."""
    return _PRICE.write({f.name: getattr(price, f.name) for f in fields(Price)} | {"noise_pred_by_step": price.by_step})


def from_json(value: Any) -> Price:
    """The row that `to_json` wrote.

    Raises:
        MalformedError: it did not write this.
    """
    found = _PRICE.read(value, "a row")
    by_step = found.pop("noise_pred_by_step")
    return Price(**found, by_step=by_step)
