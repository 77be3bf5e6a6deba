"""Floors: the difference that rounding alone explains, measured on the reference.

The float32 rule (docs/how-it-works.md): at each site the larger of |float32 - float64| (`fp64`) and the spread under
Monte Carlo rounding (`rounding`, `parity.hooks.perturb`), never less than what the sketches themselves round. For a
reference in bfloat16 or float16, or with rounded matrix products, |working dtype - float32| (`dtype`), never below the
float32 floor, which is then measured around the float32 run, the truth. Each in L2, in L2 of each row bin, and, where
values are held, in the largest element.

The variants walk the loop beside the reference, so that the floors of later steps hold what rounding has grown to by
then; with `--isolate steps` they start each step from the reference's latents, as the candidate does.

Cost: one float64 run and `SEEDS` perturbed runs of the reference, two copies of the weights; a third, and one run more,
where the truth is not the reference itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from parity.floors import Floors
from parity.hooks.perturb import perturbed
from parity.hooks.sites import SitePlan
from parity.hooks.torchtools import widest
from parity.paths.loaded import Loaded
from parity.paths.loop import Around, Loop, Once, denoise
from parity.paths.plan import State, state_of
from parity.paths.reference import load_reference
from parity.paths.stage import Stage
from parity.records import StepRecords
from parity.settings import BITS, Settings
from parity.settings.chips import NO_CHIP

SEEDS = 3
"""Perturbed runs; the limits of `parity.compare.judge` were measured with three."""


@dataclass
class Variant:
    """A run of the reference, which may round otherwise.

    Attributes:
        name: `float64`, `rounding <seed>` or `float32`; empty for the side's own run. side: loaded. around: context of
            its model calls.
        is_truth: whether the variants after it are variants of this one, not of the reference.
    """

    name: str
    side: Loaded
    around: Around = contextlib.nullcontext
    is_truth: bool = False


def make_variants(side: Loaded, chip: str = NO_CHIP) -> list[Variant]:
    """The variants of a loaded reference, the truth (where it is another run) before those that are measured around it.

    Args:
        chip: the candidate's, whose elementary functions the floors allow for.
    """
    variants = []
    if (exact := _exact(side)) != side.settings:
        side = load_reference(side.network, exact, side.inputs.of("float32"))
        variants.append(Variant("float32", side, is_truth=True))
    inputs = side.inputs.of("float64")
    double = load_reference(side.network, side.settings, inputs, dtype=torch.float64)
    variants.append(Variant("float64", double, lambda step: widest()))
    model = side.backend.model
    for seed in range(SEEDS):

        def around(step: int, seed: int = seed) -> contextlib.AbstractContextManager[None]:
            # A stage outside the loop draws as the first step does.
            return perturbed(model, 1_000_003 * (seed + 1) + max(step, 0), chip)

        name = f"rounding {seed}"
        variants.append(Variant(name, dataclasses.replace(side, inputs=side.inputs.of(name)), around))
    return variants


def _exact(side: Loaded) -> Settings:
    """The settings of the float32 truth: the side's own where it is that itself."""
    settings = side.settings
    if not isinstance(side.network, Stage):
        return settings if settings.exact else settings.with_({"dtype": "float32", "matmul_precision": "highest"})
    return settings if settings.working_bits == BITS["float32"] else settings.neutral


def with_floors(
    steps: Iterator[StepRecords],
    walks: Sequence[tuple[Variant, Loop | Once]],
    plan: SitePlan | None,
    *,
    forced: bool = False,
    first: int = 0,
) -> Iterator[StepRecords]:
    """The reference's steps, each with its floors, the variants run beside it.

    Without variants nothing was measured, and a step has no floors.

    Args:
        forced: whether the variants start each step from the reference's own state.
    """
    state: dict[int, State] = {}
    runs = [(v, denoise(walk, plan, state.get if forced else None, first=first)) for v, walk in walks]
    for step in steps:
        state.clear()  # the variants look it up in this very mapping
        state[step.step] = state_of(step, "before")
        floors = Floors(step.records, None if runs else {})
        for variant, run in runs:
            with variant.around(step.step):
                other = next(run)
            floors.add(other.records, truth=variant.is_truth)
        yield StepRecords(step.step, step.records, floors.done())
