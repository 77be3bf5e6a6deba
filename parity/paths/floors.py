"""Floors: the difference that rounding alone explains, measured on the reference.

The float32 rule (DESIGN section 7): at each site the larger of |float32 - float64| and the spread under Monte Carlo
rounding (`parity.paths.perturb`), never less than half an ulp of the value itself. The variants walk the loop beside
the reference, so that the floors of later steps hold what rounding has grown to by then; with `--forcing step` they
start each step from the reference's latents, as the candidate does.

Cost: one float64 run and `SEEDS` perturbed runs of the reference, two copies of the weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from parity.golden.records import Floor, Key, Record, StepRecords
from parity.golden.sketch import Geometry, bin_norms, norm
from parity.hooks.sites import SitePlan
from parity.paths.loop import Forced, Loop, denoise, prepare
from parity.paths.perturb import perturbed
from parity.paths.reference import load_reference
from parity.paths.side import Side

KINDS = ("fp64", "rounding")
"""What floors are measured from; DESIGN section 7 has the rule."""

SEEDS = 3
"""Perturbed runs; DESIGN section 7 measured with three."""

HALF_ULP = 2.0**-24
"""Relative rounding of storing a float32; the least floor of any floating value."""


@dataclass
class Variant:
    """A run of the reference that rounds otherwise.

    Attributes:
        name: `float64` or `rounding <seed>`. loop: its own. around: context of its model calls.
    """

    name: str
    loop: Loop
    around: Callable[[int], contextlib.AbstractContextManager[None]]


def make_variants(side: Side, kinds: Sequence[str] = KINDS, seeds: int = SEEDS) -> list[Variant]:
    """The variants of a loaded reference: its weights in float64 (`fp64`), perturbed calls of its model (`rounding`).

    Args:
        kinds: of `KINDS`. seeds: perturbed runs.
    """
    variants = []
    if "fp64" in kinds:
        double = load_reference(side.family, side.case, side.settings, side.inputs, dtype=torch.float64)
        variants.append(Variant("float64", prepare(double), lambda step: contextlib.nullcontext()))
    model = side.backend.module()
    for seed in range(seeds if "rounding" in kinds else 0):

        def around(step: int, seed: int = seed) -> contextlib.AbstractContextManager[None]:
            return perturbed(model, 1_000_003 * (seed + 1) + step)

        variants.append(Variant(f"rounding {seed}", prepare(_fresh(side)), around))
    return variants


def _fresh(side: Side) -> Side:
    """The same path with a scheduler of its own, which keeps state."""
    scheduler = type(side.scheduler).from_config(side.scheduler.config)
    guider = type(side.guider).from_config(side.guider.config)
    return replace(side, scheduler=scheduler, guider=guider)


def with_floors(
    steps: Iterator[StepRecords],
    variants: list[Variant],
    plan: SitePlan | None,
    forced: Forced | None,
    *,
    first: int = 0,
) -> Iterator[StepRecords]:
    """The reference's steps, each with its floors, the variants run beside it.

    Without variants the floors are the least ones, half an ulp of each value, which nothing real stays within: a step
    then has none.
    """
    runs = [(v, denoise(v.loop, plan, forced, first=first)) for v in variants]
    for step in steps:
        floors: dict[Key, Floor] = {r.key: _least(r) for r in step.records if r.kind == "tensor"} if runs else {}
        for variant, run in runs:
            with variant.around(step.step):
                other = next(run)
            _widen(floors, step.records, other.records)
        yield StepRecords(step.step, step.records, floors)


def _least(record: Record) -> Floor:
    """Half an ulp of a floating value; exactly nothing for integers and masks."""
    floating = "float" in record.dtype
    l2 = record.moments.l2 * HALF_ULP if record.moments is not None and floating else 0.0
    g = Geometry(*record.frame)
    bins = None
    if record.sketch is not None:
        bins = (bin_norms(record.sketch, g) * (HALF_ULP if floating else 0.0)).astype(np.float32)
    return Floor(l2, bins)


def _widen(floors: dict[Key, Floor], ours: tuple[Record, ...], theirs: tuple[Record, ...]) -> None:
    """Raise each floor to the distance between the reference and one variant."""
    others = {r.key: r for r in theirs}
    for record in ours:
        other = others.get(record.key)
        if other is None or record.sketch is None or other.sketch is None:
            continue
        g = Geometry(*record.frame)
        apart = other.sketch.astype(np.float64) - record.sketch.astype(np.float64)
        known = floors[record.key]
        bins = bin_norms(apart, g).astype(np.float32)
        bins = bins if known.bins is None else np.maximum(known.bins, bins)
        floors[record.key] = Floor(max(known.l2, norm(apart, g)), bins)
