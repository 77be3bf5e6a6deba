"""Floors: the difference that rounding alone explains, measured on the reference.

The float32 rule (docs/verdict.md): at each site the larger of |float32 - float64| (`fp64`) and the spread under Monte
Carlo rounding (`rounding`, `parity.paths.perturb`), never less than what the sketches themselves round. For a
reference in bfloat16 or float16, or with rounded matrix products, |working dtype - float32| (`dtype`), never below the
float32 floor, which is then measured around the float32 run, the truth. Optionally the spread over other attention
kernels (`kernel`). Each in L2, in L2 of each row bin, and, where values are held, in the largest element.

The variants walk the loop beside the reference, so that the floors of later steps hold what rounding has grown to by
then; with `--forcing step` they start each step from the reference's latents, as the candidate does.

Cost: one float64 run and `SEEDS` perturbed runs of the reference, two copies of the weights; a third, and one run more,
where the truth is not the reference itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from parity.golden.records import LOOP, Floor, Key, Record, StepRecords
from parity.golden.sketch import Geometry, bin_norms, norm
from parity.hooks.sites import SitePlan
from parity.paths.loaded import Loaded
from parity.paths.loop import Forced, Loop, denoise, prepare
from parity.paths.perturb import perturbed
from parity.paths.reference import load_reference
from parity.settings import Settings, kernels

KINDS = ("fp64", "rounding", "dtype", "kernel")
"""What floors are measured from; docs/verdict.md has the rule."""

DEFAULT_KINDS = ("fp64", "rounding", "dtype")

SEEDS = 3
"""Perturbed runs; the limits of `parity.compare.judge` were measured with three."""

HALF_ULP = 2.0**-24
"""Relative rounding of storing a float32."""

SCHEDULE_ROUNDING = 2.0**-23
"""Relative rounding of a schedule's numbers; three times it is above what preflight lets through."""


@dataclass
class Variant:
    """A run of the reference that rounds otherwise.

    Attributes:
        name: `float64`, `rounding <seed>`, `float32`, or a kernel's. loop: its own. around: context of its model calls.
        is_truth: whether the variants after it are variants of this one, not of the reference.
    """

    name: str
    loop: Loop
    around: Callable[[int], contextlib.AbstractContextManager[None]]
    is_truth: bool = False


def _as_it_is(step: int) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def make_variants(side: Loaded, kinds: Sequence[str] = DEFAULT_KINDS, seeds: int = SEEDS) -> list[Variant]:
    """The variants of a loaded reference, the truth (where it is another run) before those that are measured around it.

    Args:
        kinds: of `KINDS`. `dtype` asks for nothing where the reference is the float32 truth itself.
        seeds: perturbed runs.
    """
    variants = []
    if "kernel" in kinds:
        for kernel in sorted(set(kernels("torch")) - {side.settings.text("attention.kernel")}):
            other = _load_like(side, side.settings.replace(attention_kernel=kernel))
            variants.append(Variant(kernel, prepare(other), _as_it_is))
    if "dtype" in kinds and not side.settings.exact:
        side = dataclasses.replace(side, inputs=side.inputs.of("float32"))
        side = _load_like(side, side.settings.replace(dtype="float32", matmul_precision="highest"))
        variants.append(Variant("float32", prepare(side), _as_it_is, is_truth=True))
    if "fp64" in kinds:
        double = _load_like(side, side.settings, torch.float64)
        variants.append(Variant("float64", prepare(double), _as_it_is))
    model = side.backend.module()
    for seed in range(seeds if "rounding" in kinds else 0):

        def around(step: int, seed: int = seed) -> contextlib.AbstractContextManager[None]:
            return perturbed(model, 1_000_003 * (seed + 1) + step)

        name = f"rounding {seed}"
        own = dataclasses.replace(side.with_fresh_sampler(), inputs=side.inputs.of(name))
        variants.append(Variant(name, prepare(own), around))
    return variants


def _load_like(side: Loaded, settings: Settings, dtype: torch.dtype | None = None) -> Loaded:
    inputs = side.inputs if dtype is None else side.inputs.of("float64")
    return load_reference(side.family, side.case, settings, inputs, dtype=dtype)


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
        floors: dict[Key, Floor] = {r.key: least(r) for r in step.records if r.kind == "tensor"} if runs else {}
        centre = step.records
        for variant, run in runs:
            with variant.around(step.step):
                other = next(run)
            widen(floors, centre, other.records)
            centre = other.records if variant.is_truth else centre
        level(floors, centre)
        yield StepRecords(step.step, step.records, floors)


def least(record: Record) -> Floor:
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
    return Floor(l2 * relative, bins, linf=_largest(record) * HALF_ULP)


def _largest(record: Record) -> float:
    """The largest element of a value that is held, in size; NaN where none is."""
    if not isinstance(record.value, np.ndarray) or record.moments is None:
        return math.nan
    return max(abs(record.moments.min), abs(record.moments.max))


def level(floors: dict[Key, Floor], records: Sequence[Record]) -> None:
    """Give each row bin at least its share of the tensor's floor: an equal one, or by the size of what it holds.

    A bin is eight counters of a few runs: the norm of what a run rounded there has a spread of a quarter, and where a
    16-bit floor rests on one run, a bin of 700 sites times 64 falls far below what rounding does to it now and then
    (bfloat16 pair, all innocent: 5 x in one bin of `x_embedder`, whose tensor was at 1.4 x). So no bin is taken to be
    more exact than the tensor is as a whole; an error in one bin alone is still seen at 5 / 8 of the tensor's floor.
    """
    for record in records:
        floor = floors.get(record.key)
        if floor is None or floor.bins is None or record.sketch is None:
            continue
        g = Geometry(*record.frame)
        with np.errstate(invalid="ignore", over="ignore"):
            held = bin_norms(record.sketch, g)
            whole = math.sqrt(float((held**2).sum()))
        if not math.isfinite(whole) or whole == 0.0:
            continue
        share = (floor.l2 * np.maximum(held / whole, 1.0 / math.sqrt(held.size))).astype(np.float32)
        floors[record.key] = replace(floor, bins=np.maximum(floor.bins, share))


def widen(floors: dict[Key, Floor], ours: Sequence[Record], theirs: Sequence[Record]) -> None:
    """Raise each floor to the distance between two runs of the reference; what is not finite says nothing."""
    others = {r.key: r for r in theirs}
    for record in ours:
        other = others.get(record.key)
        if other is None or record.sketch is None or other.sketch is None:
            continue
        g = Geometry(*record.frame)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = other.sketch.astype(np.float64) - record.sketch.astype(np.float64)
            l2, bins = norm(apart, g), bin_norms(apart, g).astype(np.float32)
        known = floors.get(record.key)
        if known is None:
            continue
        bins = np.where(np.isfinite(bins), bins, 0.0).astype(np.float32)
        bins = bins if known.bins is None else np.maximum(known.bins, bins)
        linf = max(known.linf, _largest_apart(record, other))  # a NaN that was there stays, one that comes does not
        l2 = max(known.l2, l2) if math.isfinite(l2) else known.l2
        floors[record.key] = replace(known, l2=l2, bins=bins, linf=linf)


def _largest_apart(ours: Record, theirs: Record) -> float:
    """The largest finite element of the difference of two values; NaN where they are not held or have none."""
    a, b = ours.value, theirs.value
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape:
        return math.nan
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(np.subtract(b, a, dtype=np.result_type(a, b, np.float32)))
    return float(np.max(apart, initial=0.0, where=np.isfinite(apart)))
