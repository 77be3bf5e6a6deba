"""Each transform is named in the direction in which it was done, and another value is never taken for one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from parity.transforms import TRANSFORMS, Made, bfloat16, done

X = 300 * np.random.default_rng(0).standard_normal((4, 6, 6))
OTHER = np.random.default_rng(1).standard_normal(X.shape)
TIMES = np.array([999.0, 750.5, 502.25, 251.125, 0.75])


BACK = {
    "times 1000": "divided by 1000", "divided by 1000": "times 1000", "negated": "negated",
    "subtracted from 1": "subtracted from 1", "subtracted from 1000": "subtracted from 1000",
}  # fmt: skip


def rows(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    y[0, :3] = 0.0
    return y


@pytest.mark.parametrize("words", TRANSFORMS)
@pytest.mark.parametrize("inverse", [False, True])
def test_what_gives_every_value_is_named_in_its_direction(words: str, inverse: bool) -> None:
    made = TRANSFORMS[words](X)
    found = done(made, X) if inverse else done(X, made)
    assert found is not None
    # What can be taken back looks like that from the reference.
    back = BACK.get(words)
    assert (found.words, found.inverse) == ((back, False) if inverse and back else (words, inverse))


@pytest.mark.parametrize(
    ("x", "make", "words"),
    [
        (X, np.zeros_like, "set to zero"),
        (X, rows, "with 3 of its 24 rows zero"),
        (
            X[None],
            lambda x: rows(x[0])[None] * (1 + 1e-4),
            "with 3 of its 24 rows zero",
        ),  # and no other scale of channels
        (
            X * (1 - 1e-12 * (rows(X) == 0)) * np.where(rows(X) == 0, 1e-11, 1),
            lambda x: rows(x) + OTHER * (rows(x) != 0),
            None,
        ),
        (X, lambda x: x.clip(-100, 100), "clipped to at least -100 and at most 100"),
        (X, lambda x: np.maximum(x, 0), "clipped to at least 0"),
        (np.sign(X), lambda x: 0.5 * x, "times 0.5"),  # nothing lies within
        (X, lambda x: 0.8 * x, "times 0.8"),
        (X, lambda x: 1.000002 * x, "times 1.000002"),
        (X, lambda x: 0.8 * x + 2, "times 0.8 plus 2"),
        (X, lambda x: x + 20, "plus 20"),
        (X, lambda x: x.swapaxes(-1, -2), "transposed"),
        (X, lambda x: np.flip(x, 1), "from last to first along axis 1"),
        (X, lambda x: np.roll(x, 3, 2) * (1 + 1e-4), "with its halves along axis 2 swapped"),  # up to rounding
        (X, lambda x: x.ravel()[np.random.default_rng(2).permutation(x.size)].reshape(x.shape), "in another order"),
        (TIMES, lambda x: np.append(x[1:], 0.0), "a step ahead"),
        (TIMES, lambda x: np.append(1000.0, x[:-1]), "a step late"),
        (TIMES, lambda x: x[::-1], "from last to first"),
        (TIMES, np.floor, "rounded down to integers"),
        (TIMES[:1], lambda x: 0.5 * x, None),  # one number is a multiple of any other
        (TIMES[:1], lambda x: x - 0.3, None),  # and the other one rounded
        (np.array([250.0, 700.0]), lambda x: np.float32(0.999) * x, "times 0.999"),  # and 699.3 rounded to bfloat16
        (np.array([0.0, 249.6]), np.round, "rounded to integers"),  # one number that is not zero
        (TIMES[:1] - 0.3, np.round, "rounded to integers"),
        (X, lambda x: x + OTHER, None),
        (X, lambda x: X.std() * OTHER, None),
        (X, lambda x: np.full_like(x, np.nan), None),
        (X, lambda x: x * (1 + 1e-8), None),  # the same
        (X, lambda x: x[:2], None),
    ],
)
def test_what_was_done_is_named_or_nothing_is(x: np.ndarray, make: Made, words: str | None) -> None:
    found = done(x, make(x))
    assert (found and found.words) == words


@given(seed=st.integers(0, 10_000), size=st.integers(4, 400), apart=st.sampled_from([1e-4, 1e-2, 1.0]))
def test_noise_is_no_transform(seed: int, size: int, apart: float) -> None:
    x, noise = np.random.default_rng(seed).standard_normal((2, size))
    found = done(x, x + apart * noise)
    assert found is None


def test_rounding_is_read_off_either_side() -> None:
    narrow = bfloat16(X)
    assert str(done(X, narrow)) == "the candidate's is the reference's rounded to bfloat16"
    assert str(done(narrow, X)) == "the reference's is the candidate's rounded to bfloat16"
