"""Guidance: how the branches' predictions were combined, fitted on both sides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parity.compare.detect.held import SAME, Seen, Values, apart, named
from parity.compare.result import Cause
from parity.records import LOOP
from parity.transforms import EXACT

_GUIDED = f"{LOOP}:noise_pred"


def guidance(seen: Seen) -> Iterator[Cause]:
    """How the branches' predictions were combined, fitted on both sides."""
    ours, theirs = seen.ours, seen.theirs
    first, second = combined(ours), combined(theirs)
    yield from _zeros(seen)
    swapped = _crossed(seen)
    if swapped is not None:
        text = "the branches are swapped: the candidate's cond is the reference's uncond (negative and positive prompt)"
        yield named(text, "guidance", "cond, uncond", "uncond, cond", swapped)  # what they are given is listed
        return
    if first is not None and _unguided(ours, theirs):
        text = f"the guidance scale of {first.scale:.4g} is lost: the candidate runs one branch alone, cond"
        yield _cause(text, first.scale, 1.0)
        return
    if first is None or second is None:
        return
    scale, other = first.scale, second.scale
    near = EXACT * max(1.0, abs(scale)) + first.unsure + second.unsure
    if abs(other - (1 - scale)) <= near and abs(scale - 0.5) > near:
        swap = "the branches or the prompts are swapped"
        text = f"guidance is applied the wrong way round ({swap}): scale {other:.4g} for {scale:.4g}"
        yield _cause(text, scale, other)
    elif abs(other - scale) > near:
        lost = " (none is applied)" if abs(other - 1) <= near else ""
        yield _cause(f"the guidance scale is {other:.4g}, not {scale:.4g}{lost}", scale, other)
    elif abs(second.size + first.size) <= EXACT * abs(first.size):
        text = "the guided prediction is negated on the candidate"
        yield named(text, "guidance.sign", first.size, second.size, second.size, at=_GUIDED)
    elif abs(second.size - first.size) > EXACT:
        text = (
            f"the guided prediction is rescaled by {first.size:.4g} on the reference, by {second.size:.4g} on the "
            "candidate: guidance_rescale"
        )
        yield named(text, "guidance_rescale", first.size, second.size, second.size, at=_GUIDED)


def _cause(text: str, scale: float, other: float) -> Cause:
    return named(text, "guidance", scale, other, other, at=_GUIDED)


def _unguided(ours: Values, theirs: Values) -> bool:
    """Whether the candidate has no uncond branch, and predicts what the reference's cond does."""
    site = f"{LOOP}:noise_pred"
    cond, alone = ours.get(("cond", site)), theirs.get(("", site))
    if ("uncond", site) in theirs or cond is None or alone is None or cond.shape != alone.shape:
        return False
    return apart(cond, alone) <= EXACT


@dataclass(frozen=True, slots=True)
class Combined:
    """How a side combined its branches.

    Attributes:
        scale: of guidance. size: a common factor. unsure: how far rounding may have moved the scale, which is read off
            where the branches part.
    """

    scale: float
    size: float
    unsure: float


def combined(values: Values) -> Combined | None:
    """Fitted to the branches' predictions and the guided one; None where that is no combination of them."""
    parts = [values.get((branch, _GUIDED)) for branch in ("uncond", "cond", "")]
    if any(x is None for x in parts):
        return None
    uncond, cond, guided = (np.ravel(_like(x, parts[-1])) for x in parts if x is not None)
    if not uncond.size == cond.size == guided.size or not all(np.isfinite(x).all() for x in (uncond, cond, guided)):
        return None
    columns = np.stack([uncond, cond], axis=1)
    weights, *_ = np.linalg.lstsq(columns, guided, rcond=None)
    left, whole = float(np.linalg.norm(columns @ weights - guided)), float(np.linalg.norm(guided))
    if left > EXACT * whole or abs(weights.sum()) < SAME:
        return None
    between = float(np.linalg.norm(cond - uncond))
    return Combined(float(weights[1] / weights.sum()), float(weights.sum()), left / between if between else math.inf)


def _like(x: np.ndarray, guided: np.ndarray | None) -> np.ndarray:
    """What of a prediction is guided: its first channels, where a learned variance follows them."""
    more = guided is not None and x.ndim == guided.ndim > 1 and x.shape[2:] == guided.shape[2:]
    return x[:, : guided.shape[1]] if guided is not None and more else x


def _branches_agree(seen: Seen) -> bool:
    pairs = [seen.pair(f"{LOOP}:noise_pred", branch) for branch in ("cond", "uncond")]
    return all(pair is not None and apart(*pair) <= EXACT for pair in pairs)


def _crossed(seen: Seen) -> float | None:
    """How far each side's branches are from the other's other branch, where they are those; None where not."""
    site = f"{LOOP}:noise_pred"
    crossed = [
        (seen.ours.get((a, site)), seen.theirs.get((b, site))) for a, b in (("cond", "uncond"), ("uncond", "cond"))
    ]
    if _branches_agree(seen) or any(a is None or b is None or a.shape != b.shape for a, b in crossed):
        return None
    worst = max(apart(a, b) for a, b in crossed if a is not None and b is not None)
    return worst if worst <= EXACT else None


def _zeros(seen: Seen) -> Iterator[Cause]:
    """A step that guidance leaves out by zeros (zero-init of CFG-Zero*), on one side alone."""
    pair = seen.pair(f"{LOOP}:noise_pred")
    if pair is None or bool(np.any(pair[0])) == bool(np.any(pair[1])) or not _branches_agree(seen):
        return
    zeroed, other = ("candidate", "reference") if np.any(pair[0]) else ("reference", "candidate")
    text = (
        f"at step {seen.step} the guided prediction is zeros on the {zeroed} and not on the {other}: the steps that "
        "guidance zeroes (zero_steps, zero_init_steps) are counted otherwise, or the guider was not reset"
    )
    first, second = (float(not np.any(x)) for x in pair)
    yield named(text, "guidance.zero_steps", first, second, float(seen.step), at=_GUIDED)
