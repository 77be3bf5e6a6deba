"""How the glue's arithmetic was ordered and rounded, where two sides differ in nothing else.

Problem. Guidance is written as uncond + s (cond - uncond) or as cond + (s - 1) (cond - uncond); a step multiplies by
a dt that takes the prediction's 16 bits or does not; a schedule is made in float64 or in float32. All of them are
right, no floor is broken, and who compares bits looks for them for days.

How. The loop's values are held whole and 16-bit ones are exact: each way of computing is done again, operation by
operation, and one that gives the very values is the one. Said where the two sides' ways differ, whatever the verdict.

Cost. A few passes over values of the size of the latents, at the first step alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from parity.compare.detect.held import Seen, Values, apart
from parity.records import LOOP
from parity.transforms import bfloat16

ROUNDING = 1e-6
"""Relative difference of two schedules in float32 that is rounding."""
MATCH = 0.995
"""Share of the elements that a way of computing has to give exactly; ties may have gone the other way."""

Guided = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


def _from_uncond(cond: np.ndarray, uncond: np.ndarray, scale: float) -> np.ndarray:
    return bfloat16(uncond + bfloat16(scale * bfloat16(cond - uncond)))


def _from_cond(cond: np.ndarray, uncond: np.ndarray, scale: float) -> np.ndarray:
    return bfloat16(cond + bfloat16((scale - 1.0) * bfloat16(cond - uncond)))


def _weighted(cond: np.ndarray, uncond: np.ndarray, scale: float) -> np.ndarray:
    return bfloat16(bfloat16(scale * cond) + bfloat16((1.0 - scale) * uncond))


GUIDED: dict[str, Guided] = {
    "uncond + scale (cond - uncond)": _from_uncond,
    "cond + (scale - 1) (cond - uncond)": _from_cond,
    "scale cond + (1 - scale) uncond": _weighted,
}


def rounded_otherwise(seen: Seen) -> Iterator[str]:
    """Sentences on what the sides compute in another order or precision and to the same end."""
    yield from _schedule(seen)
    ways = [_guidance(side) for side in (seen.ours, seen.theirs)]
    if all(ways) and ways[0] != ways[1]:
        yield (
            f"guidance is computed as {ways[1]} on the candidate, as {ways[0]} on the reference: the same but for "
            "rounding in bfloat16"
        )
    steps = [_euler(side) for side in (seen.ours, seen.theirs)]
    if all(steps) and steps[0] != steps[1]:
        yield (
            f"the scheduler's product of dt and the prediction is {steps[1]} on the candidate, {steps[0]} on the "
            "reference: a 0-d tensor takes the other's dtype"
        )


def _schedule(seen: Seen) -> Iterator[str]:
    pairs = [p for p in (seen.pair("schedule:sigmas"), seen.pair("schedule:timesteps")) if p is not None]
    worst = max((apart(a, b) for a, b in pairs if not np.array_equal(a, b)), default=0.0)
    if 0.0 < worst <= ROUNDING and all(apart(a, b) <= ROUNDING for a, b in pairs):
        yield f"the schedules differ by rounding alone ({worst:.1e} relative): made in another precision or order"


def _guidance(values: Values) -> str:
    """The way in which a side combined its branches in bfloat16; empty where it is none of those that are known."""
    parts = [values.get((branch, f"{LOOP}:noise_pred")) for branch in ("cond", "uncond", "")]
    held = [x.ravel() for x in parts if x is not None]
    if len(held) < 3 or len({x.size for x in held}) > 1 or not all(_narrow(x) for x in held):
        return ""
    cond, uncond, guided = held
    apart_, moved = cond - uncond, guided - uncond
    square = float(apart_ @ apart_)
    if square == 0.0:
        return ""
    scales = dict.fromkeys(round(float(apart_ @ moved) / square, digits) for digits in (0, 1, 2))
    found = (name for scale in scales for name, way in GUIDED.items() if _gives(way(cond, uncond, scale), guided))
    return next(found, "")


def _euler(values: Values) -> str:
    """How a side's step rounded its product: `rounded to bfloat16` or `in float32`; empty where neither can be told."""
    names = ("noise_pred", "latents.before", "latents.after", "dt")
    flow, before, after, dt = (values.get(("", f"{LOOP}:{name}")) for name in names)
    if flow is None or before is None or after is None or dt is None or dt.size != 1:
        return ""
    # Latents that are kept in 16 bits show nothing of it.
    if not flow.shape == before.shape == after.shape or not _narrow(flow) or _narrow(after):
        return ""
    product = float(dt.item()) * flow
    ways = {"in float32": product, "rounded to bfloat16": bfloat16(product)}
    size = np.abs(before) + np.abs(product)
    near = {name: float(np.mean(np.abs(before + p - after) <= ROUNDING * size)) for name, p in ways.items()}
    best = max(near, key=lambda name: near[name])
    return best if near[best] >= MATCH and min(near.values()) < MATCH else ""


def _narrow(x: np.ndarray) -> bool:
    """Whether all values are bfloat16's."""
    return bool(np.isfinite(x).all()) and np.array_equal(x, bfloat16(x))


def _gives(made: np.ndarray, values: np.ndarray) -> bool:
    return float(np.mean(made == values)) >= MATCH
