"""Counterfactuals: the candidate run again with some of its differing settings as the reference has them.

Each setting alone wrong, and each alone swapped back, tells what it does. One that does no harm alone, and none
together with the other harmless ones, is harmless: its number is given, its share 0. The guilty ones share the error.

Shares. With e(S) the error of noise_pred where the settings S are wrong and g = e(guilty), the value of S is
v(S) = <e(S), g> / <g, g>: how much of g is there, 1 for all of them. The share of a setting is its Shapley value
(1953): what it adds, averaged over all orders. For up to `EXACT` guilty settings all subsets are run; for more, what it
adds first and what it adds last are averaged, which is the same value where no three act on one another, and the shares
need not add up to 1 then. They add up to 1 - v(none): what is wrong with no setting swapped is nobody's. One that
turns the error, at right angles to it, has a share of 0 and is guilty all the same.

Interval. Each run's noise_pred is known up to its floor n. A share is linear in the e(S) with weights w(S), so that to
first order it moves by at most n / |g| * (sum of |w(S)| + |sum of w(S) e(S)| / |g|), S = guilty apart (whose value is 1
by itself): a bound, not a spread.

Cost: a run of the candidate, unobserved, for each subset; two for each setting, or 2^n where that is more.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from parity.bisect.ddmin import ddmin
from parity.bisect.swaps import Plan, Swap
from parity.causes.decompose import shapley, subsets
from parity.compare.judge import L2_LIMIT
from parity.settings import Settings

Run = Callable[[Settings], np.ndarray]
"""The candidate's error vector with these settings (`parity.causes.regress.error_vector`)."""

EXACT = 4
"""Guilty settings of which every subset is run."""

Subset = frozenset[str]


@dataclass(frozen=True, slots=True)
class Share:
    """One differing setting.

    Attributes:
        swap: its two values. share: of the error, 0 where it is harmless. half: how far the floor can move it.
        alone: the norm of the error when it alone is wrong, as a multiple of what rounding gives.
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
    known: dict[Subset, np.ndarray] = {}

    def error(subset: Subset) -> np.ndarray:
        if subset not in known:
            known[subset] = run(plan.with_only(tuple(n for n in names if n in subset)))
        return known[subset]

    def norm(subset: Subset) -> float:
        return float(np.linalg.norm(error(subset)))

    def fails(subset: tuple[str, ...]) -> bool:
        return norm(frozenset(subset)) > L2_LIMIT * noise

    error(frozenset(names))
    guilty = {n for n in names if fails((n,))}
    rest = tuple(n for n in names if n not in guilty)
    if len(rest) > 1 and fails(rest):  # each harmless alone, not together
        guilty |= set(ddmin(rest, fails))
    found = []
    every = frozenset(guilty)
    for swap in plan.swaps:
        name = swap.setting
        alone = norm(frozenset({name})) / noise if noise else math.inf
        if name not in guilty or not norm(every):
            half = min(1.0, L2_LIMIT * noise / norm(frozenset(names))) if norm(frozenset(names)) else 1.0
            found.append(Share(swap, 0.0, half, alone, 0.0, True))
            continue
        share, half = valued(_weights(name, every), error, every, noise)
        found.append(Share(swap, share, half, alone, 1.0 - norm(every - {name}) / norm(every), False))
    return tuple(sorted(found, key=lambda s: (-s.share, s.harmless, names.index(s.swap.setting))))


def _weights(name: str, guilty: Subset) -> Mapping[Subset, float]:
    """What each subset's value counts in the share of a setting."""
    found: defaultdict[Subset, float] = defaultdict(float)
    if len(guilty) <= EXACT:
        players = sorted(guilty)
        for subset in (frozenset[str](), *subsets(players)):
            found[subset] = shapley(players, lambda s, at=subset: float(s == at))[name]  # type: ignore[misc]
        return found
    for subset, sign in ((frozenset({name}), 1), (frozenset[str](), -1), (guilty, 1), (guilty - {name}, -1)):
        found[subset] += sign / 2
    return found


def valued(
    weights: Mapping[Subset, float], error: Callable[[Subset], np.ndarray], guilty: Subset, noise: float
) -> tuple[float, float]:
    """The weighted sum of the subsets' values, and how far errors moved by `noise` can move it."""
    whole = error(guilty)
    square = float(whole @ whole)
    others = {s: w for s, w in weights.items() if s != guilty and w}
    moved = sum((w * error(s) for s, w in others.items()), np.zeros_like(whole))
    share = weights.get(guilty, 0.0) + float(moved @ whole) / square
    size = math.sqrt(square)
    half = noise / size * (sum(map(abs, others.values())) + float(np.linalg.norm(moved)) / size)
    return min(1.0, max(0.0, share)), min(1.0, half)
