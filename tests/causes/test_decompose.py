"""Shares of several known errors in one: they add up, never fall, and are exact where errors are orthogonal."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.causes.decompose import decompose, explained, shapley, subsets

SITES, EACH = 12, 40
SIZES = [EACH] * SITES
N = SITES * EACH


def draw(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(N)


def made(names: tuple[str, ...], seed: int, together: float) -> dict[frozenset[str], np.ndarray]:
    """Errors of the joint runs; `together` is how much two faults act on one another."""
    single = {name: draw(seed + i) for i, name in enumerate(names)}
    runs = {}
    for number, some in enumerate(subsets(names)):
        both = together * draw(seed + 100 + number) if len(some) > 1 else 0.0
        runs[some] = sum(single[n] for n in sorted(some)) + both
    return runs


@given(
    count=st.integers(1, 4), seed=st.integers(0, 50), together=st.floats(0, 2), noise=st.floats(0, 3),
    weights=st.lists(st.floats(-2, 2), min_size=4, max_size=4),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_shares_are_never_negative_and_add_up_to_what_all_explain(
    count: int, seed: int, together: float, noise: float, weights: list[float]
) -> None:
    names = tuple("abcd"[:count])
    runs = made(names, seed, together)
    error = sum(w * x for w, x in zip(weights, runs.values(), strict=False)) + noise * draw(999)
    parts = decompose(error, runs, names, SIZES)
    found = [p.share for p in parts.values()]
    assert all(share >= -1e-9 for share in found)
    columns = np.stack([*runs.values(), error])
    # Summed over sites as the parts are: of runs that are nearly alike, another order of sums catches another share.
    bounds = np.cumsum([0, *SIZES])
    products = sum(columns[:, a:b] @ columns[:, a:b].T for a, b in itertools.pairwise(bounds))
    of_all = explained(products, range(len(runs))) if error.any() else 0.0
    assert sum(found) == pytest.approx(of_all, abs=1e-9)
    assert sum(found) <= 1 + 1e-9


@given(seed=st.integers(0, 200), count=st.integers(1, 6), twins=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_fault_more_never_explains_less(seed: int, count: int, twins: bool) -> None:
    vectors = [draw(seed + i) for i in range(count)]
    if twins:
        vectors[-1] = 3.0 * vectors[0]
    columns = np.stack([*vectors, vectors[0] + draw(seed + 300)])
    product = columns @ columns.T
    values = [explained(product, range(k)) for k in range(count + 1)]
    assert values[0] == 0.0
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(values))
    assert values[-1] <= 1.0


@given(sizes=st.lists(st.floats(0.1, 3), min_size=1, max_size=3), left=st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_orthogonal_errors_that_add_up_have_their_own_squares(sizes: list[float], left: float) -> None:
    names = tuple("abc"[: len(sizes)])
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((N, 4)))[0].T
    single = {n: s * basis[i] for i, (n, s) in enumerate(zip(names, sizes, strict=True))}
    runs = {some: np.sum([single[n] for n in some], axis=0) for some in subsets(names)}
    error = runs[frozenset(names)] + left * basis[3]
    parts = decompose(error, runs, names, SIZES)
    whole = sum(s * s for s in sizes) + left * left
    for name, size in zip(names, sizes, strict=True):
        assert parts[name].share == pytest.approx(size * size / whole)
        assert parts[name].coefficient == pytest.approx(1.0)


def test_equal_faults_share_alike_and_an_absent_one_has_nothing() -> None:
    x, y = draw(1), draw(2)
    runs = {frozenset("a"): x, frozenset("b"): x, frozenset("ab"): x}
    parts = decompose(x, runs, ("a", "b"), SIZES)
    assert parts["a"].share == pytest.approx(parts["b"].share) == pytest.approx(0.5)
    runs = {frozenset("a"): x, frozenset("b"): y, frozenset("ab"): x + y}
    basis = x - (x @ y) / (y @ y) * y
    assert decompose(basis, runs, ("a", "b"), SIZES)["b"].coefficient == pytest.approx(-(x @ y) / (y @ y), abs=0.2)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """The coefficient of a fault whose error is buried in noise that each site shares."""
    rng = np.random.default_rng(5)
    known, inside = draw(0), 0
    for _ in range(200):
        noise = rng.standard_normal(N) * np.repeat(rng.uniform(0.2, 1.0, SITES), EACH)
        (part,) = decompose(known + noise, {frozenset("a"): known}, ("a",), SIZES).values()
        inside += abs(part.coefficient - 1.0) <= part.coefficient_half
    assert 0.85 <= inside / 200 <= 0.99


def test_without_sites_to_leave_out_there_is_no_interval() -> None:
    (part,) = decompose(draw(0), {frozenset("a"): draw(0)}, ("a",), [N]).values()
    assert part.share == pytest.approx(1.0)
    assert part.share_half == part.coefficient_half == np.inf
    assert decompose(np.zeros(N), {frozenset("a"): draw(0)}, ("a",), [N]) == {}


@given(st.lists(st.floats(-3, 3), min_size=8, max_size=8))
def test_shapley_values_add_up_to_the_value_of_all(values: list[float]) -> None:
    names = ("a", "b", "c")
    table = dict(zip([frozenset[str](), *subsets(names)], values, strict=True))
    assert sum(shapley(names, table.__getitem__).values()) == pytest.approx(values[-1] - values[0], abs=1e-9)
