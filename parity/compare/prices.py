"""The price list: what each combination of settings costs in error, time and memory. Plain data and its order."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from parity.compare.result import NAN, UNKNOWN, Distance, Failed, Result
from parity.golden.strict import COUNT, LONG_TEXT, NUMBER, TEXT, choice, listed, members, optional
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
        seconds: of a step of the transformer, unobserved. of_base: relative to the base candidate's, timed in turns.
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


def in_order(rows: list[Price]) -> tuple[Price, ...]:
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
        "memory": optional(COUNT),
    }
)


def to_json(row: Price) -> dict[str, Any]:
    """A row as plain JSON: the form of the document and of the state file."""
    return _PRICE.write({f.name: getattr(row, f.name) for f in fields(Price)} | {"noise_pred_by_step": row.by_step})


def from_json(value: Any) -> Price:
    """The row that `to_json` wrote.

    Raises:
        MalformedError: it did not write this.
    """
    row = _PRICE.read(value, "a row")
    by_step = row.pop("noise_pred_by_step")
    return Price(**row, by_step=by_step)
