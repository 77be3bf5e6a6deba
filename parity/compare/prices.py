"""The price list: what each combination of settings costs in error, time and memory. Plain data and its order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from parity.compare.result import NAN, UNKNOWN, Distance, Failed, Result
from parity.golden.strict import (
    MalformedError,
    as_int,
    as_list,
    as_mapping,
    as_number,
    as_text,
    number,
)

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


def to_json(row: Price) -> dict[str, Any]:
    """A row as plain JSON: the form of the document and of the state file."""
    return {
        "settings": list(row.settings),
        "verdict": row.verdict,
        "failed": row.failed,
        "reason": row.reason,
        "noise_pred": _distance(row.noise_pred),
        "latents": _distance(row.latents),
        "bits": number(row.bits),
        "bits_of": row.bits_of,
        "noise_pred_by_step": [number(x) for x in row.by_step],
        "seconds": number(row.seconds),
        "of_base": number(row.of_base),
        "memory": row.memory,
    }


def from_json(value: Any) -> Price:
    """The row that `to_json` wrote.

    Raises:
        MalformedError: it did not write this.
    """
    held = as_mapping(value, "a row")
    try:
        verdict, failed, memory = held["verdict"], held["failed"], held["memory"]
        if verdict not in get_args(PriceVerdict) or failed not in (None, *get_args(Failed)):
            raise MalformedError("a row's verdict is none")
        return Price(
            tuple(as_text(x, "a setting") for x in as_list(held["settings"], "settings", MOST)),
            verdict,
            failed,
            as_text(held["reason"], "a reason", MOST_TEXT),
            _read_distance(held["noise_pred"]),
            _read_distance(held["latents"]),
            as_number(held["bits"], "bits"),
            as_int(held["bits_of"], "bits_of"),
            tuple(as_number(x, "a step") for x in as_list(held["noise_pred_by_step"], "noise_pred_by_step", MOST)),
            as_number(held["seconds"], "seconds"),
            as_number(held["of_base"], "of_base"),
            None if memory is None else as_int(memory, "memory"),
        )
    except KeyError as error:
        raise MalformedError(f"a row has no {error}") from None


MOST = 100_000
MOST_TEXT = 100_000


def _distance(x: Distance) -> dict[str, Any]:
    return {"rel_l2": number(x.rel_l2), "floor": number(x.floor), "ratio": number(x.ratio)}


def _read_distance(value: Any) -> Distance:
    held = as_mapping(value, "a distance")
    return Distance(*(as_number(held[name], name) for name in ("rel_l2", "floor", "ratio")))
