"""Fits of an error to known ones: coefficients, shares and intervals; what is unknown stays unknown."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.bisect.swaps import plan
from parity.causes.decompose import decompose, explained, subsets
from parity.causes.regress import common_keys, error_vector, fit, noise_norm, search
from parity.causes.shares import shares
from parity.golden import Floor, Key, StepRecords
from parity.settings import Settings, parse
from tests.support.made import tensor

FEW = settings(max_examples=25)


def draw(seed: int, size: int = 4096) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size)


# --- one known error -------------------------------------------------------------------------------------------


@given(scale=st.floats(0.1, 10), seed=st.integers(0, 99))
@FEW
def test_a_multiple_is_found_with_its_coefficient(scale: float, seed: int) -> None:
    found = fit(scale * draw(seed), draw(seed))
    assert (found.coefficient, found.r2) == pytest.approx((scale, 1.0))


def test_noise_widens_the_interval_and_unrelated_errors_explain_nothing() -> None:
    error = draw(0) + 0.1 * draw(1)
    found = fit(error, draw(0), noise=1.0)
    assert abs(found.coefficient - 1.0) < found.half < 0.5
    assert found.half > fit(error, draw(0)).half
    assert fit(draw(0), draw(1)).r2 < 0.01
    assert fit(draw(0), np.zeros(4096)).coefficient == 0.0


def test_error_vectors_are_relative_and_skip_what_is_absent() -> None:
    x, y = draw(0).reshape(1, 64, 64), 100.0 * draw(1).reshape(1, 64, 64)
    ours = StepRecords(0, (tensor("a:out", x), tensor("b:out", y), tensor("a:in.x", x)))
    theirs = StepRecords(0, (tensor("a:out", 1.1 * x), tensor("b:out", 1.1 * y)))
    keys = common_keys(ours, theirs)
    assert [k.site for k in keys] == ["a:out", "b:out"]
    vector = error_vector(ours, theirs, keys)
    assert np.linalg.norm(vector) == pytest.approx(0.1 * np.sqrt(2), rel=0.05)
    assert np.linalg.norm(error_vector(ours, StepRecords(0, theirs.records[:1]), keys)) == pytest.approx(0.1, rel=0.05)
    floors = {Key("transformer", 0, "cond", "a:out"): Floor(float(np.linalg.norm(x)) * 1e-6)}
    assert noise_norm(StepRecords(0, ours.records, floors), keys) == pytest.approx(1e-6, rel=0.05)


# --- a search among known errors -------------------------------------------------------------------------------

FAULTS = {f"s{i}=x": draw(10 + i) for i in range(8)} | {"s0=y": draw(50), "quiet=x": np.zeros(4096)}
# They share a part in which they cancel, so that each alone leaves nearly all.
CANCEL = {"p=x": draw(1) + 0.9 * draw(3), "q=x": draw(2) - 0.9 * draw(3), "r=x": draw(4)}


def joint(names: frozenset[str]) -> np.ndarray:
    """Errors that do not simply add up; the quiet one counts only with `s1=x`."""
    out = sum((({**FAULTS, **CANCEL})[n] for n in names), np.zeros(4096))
    if {"quiet=x", "s1=x"} <= names:
        out = out + 0.5 * draw(99)
    if len(names - {"quiet=x"}) > 1 and not names & CANCEL.keys():
        out = out + 0.2 * draw(98)
    return out


@pytest.mark.parametrize(
    ("names", "faults"),
    [({"s3=x"}, FAULTS), ({"s0=y"}, FAULTS), ({"s2=x", "s5=x"}, FAULTS), ({"s1=x", "quiet=x"}, FAULTS),
     ({"s1=x", "s6=x", "s7=x"}, FAULTS), ({"p=x", "q=x"}, CANCEL)],
)  # fmt: skip
def test_the_faults_of_a_run_are_named(names: set[str], faults: dict[str, np.ndarray]) -> None:
    found = search(joint(frozenset(names)) + 1e-3 / 64 * draw(5), faults, joint, 1e-3)
    assert set(found.names) == names
    assert found.residual < 1e-3


def test_an_unknown_error_and_faults_that_cannot_be_run_are_not_named() -> None:
    found = search(draw(77), FAULTS, joint, 1e-3)
    assert (found.names, found.residual) == ((), pytest.approx(1.0))
    found = search(joint(frozenset({"s2=x", "s5=x"})), FAULTS, lambda names: None, 1e-3)
    assert len(found.names) <= 1


# --- the shares of several known errors ------------------------------------------------------------------------

SIZES = [40] * 12
N = sum(SIZES)


@given(
    count=st.integers(1, 4), seed=st.integers(0, 50), together=st.floats(0, 2), noise=st.floats(0, 3),
    weights=st.lists(st.floats(-2, 2), min_size=4, max_size=4),
)  # fmt: skip
@FEW
def test_shares_are_never_negative_and_add_up_to_what_all_explain(
    count: int, seed: int, together: float, noise: float, weights: list[float]
) -> None:
    """`together` is how much two faults act on one another."""
    names = tuple("abcd"[:count])
    single = {name: draw(seed + i, N) for i, name in enumerate(names)}
    runs = {
        some: sum(single[n] for n in sorted(some)) + (together * draw(seed + 100 + i, N) if len(some) > 1 else 0.0)
        for i, some in enumerate(subsets(names))
    }
    error = sum(w * x for w, x in zip(weights, runs.values(), strict=False)) + noise * draw(999, N)
    found = [part.share for part in decompose(error, runs, names, SIZES).values()]
    assert all(share >= -1e-9 for share in found)
    columns = np.stack([*runs.values(), error])
    # Summed over sites as the parts are: of runs that are nearly alike, another order of sums catches another share.
    bounds = itertools.pairwise(np.cumsum([0, *SIZES]))
    products = sum(columns[:, a:b] @ columns[:, a:b].T for a, b in bounds)
    of_all = explained(products, range(len(runs))) if error.any() else 0.0
    assert sum(found) == pytest.approx(of_all, abs=1e-9)
    assert sum(found) <= 1 + 1e-9


@given(seed=st.integers(0, 200), count=st.integers(1, 6), twins=st.booleans())
@FEW
def test_a_fault_more_never_explains_less(seed: int, count: int, twins: bool) -> None:
    vectors = [draw(seed + i, N) for i in range(count)]
    if twins:
        vectors[-1] = 3.0 * vectors[0]
    columns = np.stack([*vectors, vectors[0] + draw(seed + 300, N)])
    values = [explained(columns @ columns.T, range(k)) for k in range(count + 1)]
    assert values[0] == 0.0
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(values))
    assert values[-1] <= 1.0


@given(sizes=st.lists(st.floats(0.1, 3), min_size=1, max_size=3), left=st.floats(0, 1))
@FEW
def test_orthogonal_errors_have_their_own_squares(sizes: list[float], left: float) -> None:
    names = tuple("abc"[: len(sizes)])
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((N, 4)))[0].T
    runs = {
        some: np.sum([sizes[names.index(n)] * basis[names.index(n)] for n in some], axis=0) for some in subsets(names)
    }
    parts = decompose(runs[frozenset(names)] + left * basis[3], runs, names, SIZES)
    whole = sum(s * s for s in sizes) + left * left
    for name, size in zip(names, sizes, strict=True):
        assert (parts[name].share, parts[name].coefficient) == pytest.approx((size * size / whole, 1.0))


def test_equal_faults_have_equal_shares() -> None:
    x = draw(1, N)
    parts = decompose(x, {frozenset("a"): x, frozenset("b"): x, frozenset("ab"): x}, ("a", "b"), SIZES)
    assert parts["a"].share == pytest.approx(parts["b"].share) == pytest.approx(0.5)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """The coefficient of a fault whose error is buried in noise that each site shares."""
    rng = np.random.default_rng(5)
    known, inside = draw(0, N), 0
    for _ in range(200):
        noise = rng.standard_normal(N) * np.repeat(rng.uniform(0.2, 1.0, len(SIZES)), SIZES)
        (part,) = decompose(known + noise, {frozenset("a"): known}, ("a",), SIZES).values()
        inside += abs(part.coefficient - 1.0) <= part.coefficient_half
    assert 0.85 <= inside / 200 <= 0.99
    (part,) = decompose(known, {frozenset("a"): known}, ("a",), [N]).values()  # no sites to leave out
    assert part.share_half == part.coefficient_half == np.inf
    assert decompose(np.zeros(N), {frozenset("a"): known}, ("a",), [N]) == {}


# --- the shares of differing settings --------------------------------------------------------------------------

A, B, C = (draw(i, 2000) / 45 for i in range(3))
GIVEN = ("attention.mask=none", "vision_states=none", "text.reorder=concatenate")
PLAN = plan(parse("torch"), parse("torchax", GIVEN))
Error = Callable[[bool, bool, bool], np.ndarray]


def runner(error: Error) -> Callable[[Settings], np.ndarray]:
    """A candidate whose error depends on which of the three settings it has wrong."""
    return lambda settings: error(*(settings.changed(g.partition("=")[0]) for g in GIVEN))


@pytest.mark.parametrize(
    ("error", "expected"),
    [  # shares of the mask, the vision states and the order; None is harmless
        # Confounded: with the dropped mask the vision states change the error; alone they change nothing.
        (lambda m, v, r: m * A + (m and v) * 0.3 * B + v * 1e-6 * C, (1.0, None, None)),
        (lambda m, v, r: 3.0 * m * A + v * B, (0.9, 0.1, None)),
        (lambda m, v, r: (v and r) * A, (None, 0.5, 0.5)),  # two that act only together
        (lambda m, v, r: m * A + 5.0 * r * B, (1 / 26, None, 25 / 26)),
    ],
)
def test_differing_settings_have_their_shares(error: Error, expected: tuple[float | None, ...]) -> None:
    found = shares(PLAN, runner(error), 1e-5)
    assert [s.share for s in found] == sorted((s.share for s in found), reverse=True)
    by_name = {s.swap.setting: s for s in found}
    for given_, share in zip(GIVEN, expected, strict=True):
        got = by_name[given_.partition("=")[0]]
        assert (got.share, got.harmless) == (pytest.approx(share or 0.0, abs=0.02), share is None)


def test_shares_of_settings_that_act_on_one_another_add_up() -> None:
    found = shares(PLAN, runner(lambda m, v, r: m * A + v * B + r * C + (m and v and r) * (A + B)), 1e-5)
    assert sum(s.share for s in found) == pytest.approx(1.0)
    assert not any(s.harmless for s in found)


@given(size=st.floats(1e-4, 1e-1), seed=st.integers(0, 99))
@FEW
def test_the_floor_cannot_move_a_share_out_of_its_interval(size: float, seed: int) -> None:
    """Each run moved by the floor, up or down the error itself; a little slack for the second order."""
    rng = np.random.default_rng(seed)

    def exact(m: bool, v: bool, r: bool) -> np.ndarray:
        return m * A + 0.5 * v * B + 0.4 * (m and v) * C

    def moved(m: bool, v: bool, r: bool) -> np.ndarray:
        by = exact(True, True, True) * rng.choice([-1.0, 1.0])
        return exact(m, v, r) + by * (size / np.linalg.norm(by))

    truth = {s.swap.setting: s.share for s in shares(PLAN, runner(exact), size)}
    for share in shares(PLAN, runner(moved), size):
        assert abs(share.share - truth[share.swap.setting]) <= 1.1 * share.half + size**2
