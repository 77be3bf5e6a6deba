"""The swap test: the candidate run again with its differing settings as the reference has them, one at a time.

Each setting alone wrong tells whether it does harm, beside what is wrong with all of them set back; each alone set
back, how much of the error goes with it. What does no harm alone, nor together with the others that do none, is
harmless; those that harm only together are found by delta debugging.

Cost: a run of the candidate, unobserved, for each setting, for each that does harm, and for none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from parity.bisect.ddmin import ddmin
from parity.bisect.swaps import Plan, Swap
from parity.causes.errors import norm
from parity.compare.births import L2_LIMIT
from parity.settings import Settings

Run = Callable[[Settings], np.ndarray]
"""The candidate's error vector with these settings (`parity.causes.errors.error_vector`)."""


@dataclass(frozen=True, slots=True)
class Swapped:
    """One differing setting.

    Attributes:
        swap: its two values. alone: norm of what it does where it alone is wrong, over what rounding gives.
        gone: share of the error's norm, 0 to 1, that goes where it alone is set back. harmless: see the module.
    """

    swap: Swap
    alone: float
    gone: float
    harmless: bool


@dataclass(frozen=True, slots=True)
class SwapTest:
    """All differing settings.

    Attributes:
        swapped: those that do most harm first. left: share of the error's norm that is left with all of them set back;
            0 where that is within what rounding gives.
    """

    swapped: tuple[Swapped, ...]
    left: float


def swap_test(plan: Plan, run: Run, noise: float) -> SwapTest:
    """What each differing setting does to the error.

    Args:
        noise: norm of the error that rounding alone gives.
    """
    names = tuple(s.setting for s in plan.swaps)
    known: dict[frozenset[str], np.ndarray] = {}

    def error(wrong: Iterable[str]) -> np.ndarray:
        at = frozenset(wrong)
        if at not in known:
            known[at] = run(plan.with_only(tuple(n for n in names if n in at)))
        return known[at]

    def does(wrong: tuple[str, ...]) -> float:
        return norm(error(wrong) - error(()))

    def fails(wrong: tuple[str, ...]) -> bool:
        return does(wrong) > L2_LIMIT * noise

    whole, base = norm(error(names)), norm(error(()))
    guilty = {n for n in names if fails((n,))}
    rest = tuple(n for n in names if n not in guilty)
    if len(rest) > 1 and fails(rest):  # each harmless alone, not together
        guilty |= set(ddmin(rest, fails))
    found = []
    for swap in plan.swaps:
        harmless = swap.setting not in guilty
        alone = does((swap.setting,)) / noise if noise else math.inf
        gone = 0.0 if harmless else max(0.0, 1.0 - norm(error(guilty - {swap.setting})) / norm(error(guilty)))
        found.append(Swapped(swap, alone, gone, harmless))
    left = base / whole if whole and base > L2_LIMIT * noise else 0.0
    return SwapTest(tuple(sorted(found, key=lambda s: (s.harmless, -s.alone))), left)
