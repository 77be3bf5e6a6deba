"""Counterfactuals: the candidate run again with one differing setting at a time as the reference has it.

The share of a setting is how much of the error goes when it alone is swapped back, and how much of it is there when it
alone is wrong, averaged: the exact Shapley value for two settings, and for settings that do not interact. One that does
no harm alone, and none together with the other harmless ones, is harmless: its number is told, its share is 0. Cost: a
run of the candidate, unobserved, for each setting twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parity.compare.judge import L2_LIMIT
from parity.diagnose.bisect_settings import Plan, Swap
from parity.diagnose.ddmin import ddmin
from parity.settings import Settings

Run = Callable[[Settings], np.ndarray]
"""The candidate's error vector with these settings (`parity.compare.regress.error_vector`)."""


@dataclass(frozen=True, slots=True)
class Share:
    """One differing setting.

    Attributes:
        swap: its two values. share: of the error's square, 0 where it is harmless. half: half width that rounding
            gives it. alone: the norm of the error when it alone is wrong, as a multiple of what rounding gives.
        recovered: share of the error's norm that goes when it alone is swapped back. harmless: see above.
    """

    swap: Swap
    share: float
    half: float
    alone: float
    recovered: float
    harmless: bool


def shares(plan: Plan, run: Run, noise: float) -> tuple[Share, ...]:
    """The shares of all differing settings, the largest first.

    Args:
        noise: norm of the error that rounding alone gives.
    """
    names = tuple(s.setting for s in plan.swaps)
    known: dict[frozenset[str], np.ndarray] = {}

    def error(subset: frozenset[str]) -> np.ndarray:
        if subset not in known:
            known[subset] = run(plan.with_only(tuple(n for n in names if n in subset)))
        return known[subset]

    def fails(subset: tuple[str, ...]) -> bool:
        return float(np.linalg.norm(error(frozenset(subset)))) > L2_LIMIT * noise

    whole = error(frozenset(names))
    guilty = {n for n in names if fails((n,))}
    rest = tuple(n for n in names if n not in guilty)
    if len(rest) > 1 and fails(rest):  # each harmless alone, not together
        guilty |= set(ddmin(rest, lambda subset: "bad" if fails(subset) else "good"))
    found = [_share(swap, frozenset(guilty), error, whole, noise) for swap in plan.swaps]
    return tuple(sorted(found, key=lambda s: (-s.share, s.harmless, names.index(s.swap.setting))))


def _share(
    swap: Swap, guilty: frozenset[str], error: Callable[[frozenset[str]], np.ndarray], whole: np.ndarray, noise: float
) -> Share:
    """Among the guilty only: what a harmless setting does beside a fault is the fault's doing."""
    name, square = swap.setting, float(whole @ whole)
    size = math.sqrt(square)
    alone = error(frozenset({name}))
    far = float(np.linalg.norm(alone)) / noise if noise else math.inf
    half = min(1.0, 2.0 * noise / size) if size else 1.0
    if name not in guilty or not square:
        return Share(swap, 0.0, half, far, 0.0, True)
    every = error(guilty)
    without = error(guilty - {name}) if len(guilty) > 1 else np.zeros_like(whole)
    base = float(every @ every) or 1.0
    share = (float(alone @ every) + float((every - without) @ every)) / (2.0 * base)
    left = float(np.linalg.norm(without)) if len(guilty) > 1 else float(np.linalg.norm(error(frozenset())))
    return Share(swap, share, half, far, 1.0 - left / math.sqrt(base), False)
