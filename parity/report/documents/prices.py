"""The document of `parity sweep`."""

from __future__ import annotations

from typing import Literal, TypedDict

from parity.compare.prices import PriceVerdict
from parity.compare.result import Failed
from parity.golden.strict import Number
from parity.report.documents.comparison import Apart


class Row(TypedDict):
    """A candidate with these settings. noise_pred, latents: at the step where each is farthest beyond its floor.
    of_base: time of a step of the transformer relative to the base candidate's, the median of the ratios of calls in
    turns; of_base_quartiles: their first and third quartile; base_seconds: of the base's calls in those turns. seconds:
    of_base times the base's median in the whole sweep. memory: bytes of the largest compiled program on a device."""

    settings: list[str]
    verdict: PriceVerdict
    failed: Failed | None
    reason: str
    noise_pred: Apart
    latents: Apart
    bits: Number
    bits_of: int
    noise_pred_by_step: list[Number]
    seconds: Number
    of_base: Number
    of_base_quartiles: list[Number]
    base_seconds: Number
    memory: int | None


class Sweep(TypedDict):
    """The rows of one model, cheapest error first."""

    model: str
    steps: int
    seed: int
    reference: list[str]
    candidate: list[str]
    device: str
    reference_device: str
    pallas_interpreted: bool
    rows: list[Row]


class Prices(TypedDict):
    """`parity sweep --json`."""

    format: Literal[1]
    sweeps: list[Sweep]
