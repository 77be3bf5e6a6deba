"""Floors: the difference that rounding alone explains, measured on the reference.

The float32 rule (DESIGN section 7): at each site the larger of |float32 - float64| and the spread under Monte Carlo
rounding (`parity.paths.perturb`), never less than what the sketches themselves round. The variants walk the loop beside
the reference, so that the floors of later steps hold what rounding has grown to by then; with `--forcing step` they
start each step from the reference's latents, as the candidate does.

Cost: one float64 run and `SEEDS` perturbed runs of the reference, two copies of the weights.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from parity.golden.records import LOOP, Floor, Key, Record, StepRecords
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
"""Relative rounding of storing a float32."""

SCHEDULE_ROUNDING = 2.0**-23
"""Relative rounding of a schedule's numbers; three times it is above what preflight lets through."""


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
    return replace(side, sampler=side.sampler.fresh())


def with_floors(
    steps: Iterator[StepRecords],
    variants: list[Variant],
    plan: SitePlan | None,
    forced: Forced | None,
    *,
    first: int = 0,
) -> Iterator[StepRecords]:
    """The reference's steps, each with its floors, the variants run beside it.

    Without variants nothing was measured, and a step has no floors.
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
    """What no site is judged below: the rounding of the sketches themselves, and of the loop's own numbers.

    Two backends sum the same bits in different orders. Measured on bit-equal tensors, torch's and jax's sketches
    differ by up to 2.5 half ulps of the norm at 5 million elements, by 7.5 in a row bin, growing as the square root
    of the elements (`tests/paths/test_least_floor.py`).
    """
    l2 = record.moments.l2 if record.moments is not None else 0.0
    if record.key.module == LOOP and record.shape == ():
        # sigma and dt are differences of numbers of order one: their rounding is not relative to themselves.
        return Floor(SCHEDULE_ROUNDING * (l2 if record.key.port == "timestep" else max(l2, 1.0)))
    g = Geometry(*record.frame)
    relative = HALF_ULP * (4.0 + math.sqrt(g.rows * g.channels / 2**18))
    bins = None if record.sketch is None else (bin_norms(record.sketch, g) * 2 * relative).astype(np.float32)
    return Floor(l2 * relative, bins)


def _widen(floors: dict[Key, Floor], ours: tuple[Record, ...], theirs: tuple[Record, ...]) -> None:
    """Raise each floor to the distance between the reference and one variant; what is not finite says nothing."""
    others = {r.key: r for r in theirs}
    for record in ours:
        other = others.get(record.key)
        if other is None or record.sketch is None or other.sketch is None:
            continue
        g = Geometry(*record.frame)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = other.sketch.astype(np.float64) - record.sketch.astype(np.float64)
            l2, bins = norm(apart, g), bin_norms(apart, g).astype(np.float32)
        known = floors[record.key]
        bins = np.where(np.isfinite(bins), bins, 0.0).astype(np.float32)
        bins = bins if known.bins is None else np.maximum(known.bins, bins)
        floors[record.key] = Floor(max(known.l2, l2) if math.isfinite(l2) else known.l2, bins)
