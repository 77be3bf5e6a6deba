"""A candidate on a CPU errs in its elementary functions as a TPU may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parity.errors import UsageError
from parity.paths.jax.elementary import elementary
from parity.paths.jax.mesh import Devices
from parity.settings.elementary import CHIPS, EPS, LIMITS
from tests.paths.sides import apart, side, walk


@dataclass(frozen=True)
class Somewhere:
    """Devices that are not here."""

    platform: str
    kind: str


def somewhere(platform: str, kind: str) -> Devices:
    return cast(Devices, Somewhere(platform, kind))


CPU = somewhere("cpu", "cpu")

FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "logistic": jax.nn.sigmoid,
    "pow": lambda x: jnp.power(jnp.full_like(x, 10000.0), x / 8),
    "div": lambda x: 1 / (jnp.abs(x) + 1),
}
X = np.linspace(-5, 5, 4001, dtype=np.float32)


@pytest.mark.parametrize("chip", ["v4", "v6e"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_errs_within_its_bound_and_by_a_good_part_of_it(name: str, chip: str) -> None:
    exact = np.asarray(jax.jit(FUNCTIONS[name])(X))
    with elementary(chip, CPU):
        found = np.asarray(jax.jit(FUNCTIONS[name])(X))
    bound = CHIPS[chip][name]
    allowed = bound.absolute + bound.relative * EPS * np.abs(exact)
    error = np.abs(found.astype(np.float64) - exact)
    assert (error <= allowed + EPS * np.abs(exact)).all()
    assert (error > 0.5 * allowed).mean() > 0.2
    if name in LIMITS:
        assert LIMITS[name][0] <= found.min() <= found.max() <= LIMITS[name][1]


def test_infinities_and_zeros_of_a_mask_stay() -> None:
    x = jnp.array([[1.0, 2.0, -jnp.inf], [0.5, -jnp.inf, -jnp.inf]])
    with elementary("v5e", CPU):
        weights = np.asarray(jax.jit(jax.nn.softmax)(x))
        large = np.asarray(jax.jit(jnp.exp)(jnp.array([100.0, -jnp.inf, jnp.nan])))
    assert np.array_equal(weights == 0, np.isneginf(np.asarray(x)))
    assert np.isposinf(large[0])
    assert large[1] == 0
    assert np.isnan(large[2])


def test_a_chip_has_its_own_functions_and_another_device_is_refused() -> None:
    exact = np.asarray(jnp.exp(X))
    with elementary("v6e", somewhere("tpu", "TPU v6 lite")):
        assert np.array_equal(np.asarray(jnp.exp(X)), exact)
    for elsewhere in (somewhere("tpu", "TPU v5"), somewhere("gpu", "NVIDIA H200")):
        refused = pytest.raises(UsageError, match=f"JAX runs on '{elsewhere.kind}'")
        with refused, elementary("v6e", elsewhere):
            pass


@pytest.mark.slow
def test_a_candidate_reaches_it_and_a_reference_computes_as_ever() -> None:
    theirs = walk(side("torchax", "tpu=v6e"))
    assert theirs.side.reached.missing == ()
    assert 1e-5 < apart(walk(side("torchax")).noise_pred, theirs.noise_pred) < 3e-3
    ours = walk(side("torch", "tpu=v6e"))
    assert ours.side.reached.missing == ()
    assert np.array_equal(ours.noise_pred, walk(side("torch")).noise_pred)
