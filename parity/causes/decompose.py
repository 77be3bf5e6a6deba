"""How several known errors share one that was observed: shares that add up, coefficients, and their intervals.

Problem. Known faults run together do not simply add their errors up, and their errors are alike in part, so that each
one's own R2 counts what they have in common more than once.

How. The value of a set S of faults is the share of the observed error's square that lies in the span of the errors of
all joint runs of faults of S. It is 0 for none, never falls when a fault is added, and is at most 1. The share of a
fault is its Shapley value (Shapley 1953; for regression: Lindeman, Merenda, Gold 1980, "LMG"): what it adds to the
value, averaged over all orders in which the faults can be added. So shares are never negative and add up to the value
of all, their R2; what is left to 1 is unexplained. Where errors are orthogonal and add up, a share is that error's own
square over the whole.

The coefficients are those of least squares on what each fault adds to those taken before it: 1 where it is the very
fault.

Intervals are of the delete-one jackknife over sites (Tukey 1958): how far the number moves with which sites were looked
at, times 1.96. Counters of one site share their errors and are no independent draws, so that a site is what is left
out. All of it is computed from one small matrix of inner products for each site. numpy only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Vector = np.ndarray
"""float64 [counters]: the errors of several sites, one after another (`parity.causes.regress.error_vector`)."""

ALONE = 1e-9
"""A direction that keeps less than this of its square beside the others is theirs."""


@dataclass(frozen=True, slots=True)
class Part:
    """One fault's part in an error; each number with the half width of its 95 % interval, inf where it has none.

    Attributes:
        share: of the error's square, 0 to 1. coefficient: 1 where it is the very fault.
    """

    share: float
    share_half: float
    coefficient: float
    coefficient_half: float


def subsets(names: Sequence[str]) -> tuple[frozenset[str], ...]:
    """Every set of some of these names, but for the empty one, the smaller first."""
    every = range(1, len(names) + 1)
    return tuple(frozenset(some) for size in every for some in itertools.combinations(names, size))


def decompose(
    error: Vector, runs: Mapping[frozenset[str], Vector], names: Sequence[str], sizes: Sequence[int]
) -> dict[str, Part]:
    """The part of each known fault in an error.

    Args:
        runs: the errors of the joint runs, those of `subsets(names)`; one that could not be run may be missing, but not
            those of the first, the first two, ... of `names`.
        names: the faults, in the order in which they were taken. sizes: counters of each site.
    """
    sets = [s for s in subsets(names) if s in runs]
    if not sets or not float(error @ error):
        return {}
    columns = np.stack([*(runs[s] for s in sets), error])
    bounds = np.cumsum([0, *sizes])
    products = np.stack([columns[:, a:b] @ columns[:, a:b].T for a, b in itertools.pairwise(bounds)])
    inside = {s: [i for i, run in enumerate(sets) if run <= s] for s in (frozenset[str](), *subsets(names))}
    order = [sets.index(frozenset(names[: k + 1])) for k in range(len(names))]

    def numbers(product: np.ndarray) -> np.ndarray:
        value = {s: explained(product, columns) for s, columns in inside.items()}
        return np.array([*shapley(names, lambda s: value[s]).values(), *_coefficients(product, order)])

    whole = numbers(products.sum(axis=0))
    halves = _jackknife(products, numbers)
    n = len(names)
    return {
        name: Part(float(whole[k]), float(halves[k]), float(whole[n + k]), float(halves[n + k]))
        for k, name in enumerate(names)
    }


def explained(product: np.ndarray, columns: Sequence[int]) -> float:
    """The share of the last vector's square that lies in the span of these columns.

    Args:
        product: inner products of all vectors, [n + 1, n + 1].
    """
    whole, caught = float(product[-1, -1]), 0.0
    if whole <= 0.0:
        return 0.0
    # Gram and Schmidt on the inner products, so that more columns never catch less.
    left = product.copy()
    for i in columns:
        square = left[i, i]
        if square <= ALONE * product[i, i] or square <= 0.0:
            continue
        caught += float(left[i, -1]) ** 2 / square
        left = left - np.outer(left[:, i], left[i]) / square
    return min(1.0, caught / whole)


def shapley(names: Sequence[str], value: Callable[[frozenset[str]], float]) -> dict[str, float]:
    """What each adds to the value, averaged over all orders; their sum is value(all) - value(none)."""
    n = len(names)
    found = {}
    for name in names:
        others = [other for other in names if other != name]
        total = 0.0
        for size in range(n):
            weight = math.factorial(size) * math.factorial(n - 1 - size) / math.factorial(n)
            for some in itertools.combinations(others, size):
                total += weight * (value(frozenset((*some, name))) - value(frozenset(some)))
        found[name] = total
    return found


def _coefficients(product: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Least squares of the last vector on the differences between successive joint runs."""
    steps = np.zeros((len(order), len(product)))
    for k, run in enumerate(order):
        steps[k, run] = 1.0
        if k:
            steps[k, order[k - 1]] = -1.0
    found: np.ndarray = np.linalg.pinv(steps @ product @ steps.T, hermitian=True) @ (steps @ product[:, -1])
    return found


def _jackknife(products: np.ndarray, numbers: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Half widths of the 95 % intervals of numbers that are computed from the sum over sites."""
    whole = products.sum(axis=0)
    sites = [p for p in products if p[-1, -1] > 0.0]
    n = len(sites)
    if n < 3:
        return np.full_like(numbers(whole), np.inf)
    left = np.stack([numbers(whole - p) for p in sites])
    half: np.ndarray = 1.96 * np.sqrt((n - 1) / n * np.square(left - left.mean(axis=0)).sum(axis=0))
    return half
