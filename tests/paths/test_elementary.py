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
from parity.paths.reference import torch_scope
from parity.reached import Reached
from parity.settings import parse
from parity.settings.elementary import CHIPS, EPS, LIMITS
from tests.paths.sides import apart, side, walk

pytestmark = pytest.mark.slow


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
    "sin": jnp.sin,
    "rsqrt": lambda x: jax.lax.rsqrt(jnp.abs(x) + 1),
    "log1p": lambda x: jnp.log1p(jnp.abs(x)),
    "erf": jax.scipy.special.erf,
    "pow": lambda x: jnp.power(jnp.full_like(x, 10000.0), x / 8),
    "div": lambda x: 1 / (jnp.abs(x) + 1),
}
X = np.linspace(-5, 5, 4001, dtype=np.float32)


def both(name: str, chip: str, run: Callable[..., Callable[..., jax.Array]] = jax.jit) -> tuple[np.ndarray, np.ndarray]:
    """A function without a chip, and with one; its divisors and bases are not known to be constants."""
    function = FUNCTIONS[name]
    exact = np.asarray(run(function)(X))
    with elementary(chip, CPU):
        return exact, np.asarray(run(function)(X))


@pytest.mark.parametrize("chip", ["v4", "v5e", "v6e"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_errs_within_its_bound_and_by_a_good_part_of_it(name: str, chip: str) -> None:
    exact, found = both(name, chip)
    bound = CHIPS[chip][name]
    allowed = bound.absolute + bound.relative * EPS * np.abs(exact)
    error = np.abs(found.astype(np.float64) - exact)
    assert (error <= allowed + EPS * np.abs(exact)).all()
    assert (error > 0.5 * allowed).mean() > 0.2
    if name in LIMITS:
        assert LIMITS[name][0] <= found.min() <= found.max() <= LIMITS[name][1]


def test_the_same_argument_errs_alike_compiled_and_alone() -> None:
    _, compiled = both("exp", "v6e")
    _, alone = both("exp", "v6e", lambda f: f)
    assert np.array_equal(compiled, alone)
    exact, _ = both("exp", "none")
    assert np.array_equal(exact, np.asarray(jnp.exp(X)))


def test_what_every_chip_computes_alike_is_left_alone() -> None:
    functions: list[Callable[[jax.Array], jax.Array]] = [
        lambda x: x * 3 + 1,
        lambda x: x / 3,  # by a reciprocal that XLA makes
        lambda x: x**2,
        lambda x: jnp.mean(x.reshape(-1, 1), axis=0),
        lambda x: jnp.exp(x.astype(jnp.bfloat16)),
    ]
    for function in functions:
        exact = np.asarray(jax.jit(function)(X).astype(jnp.float32))
        with elementary("v4", CPU):
            assert np.array_equal(np.asarray(jax.jit(function)(X).astype(jnp.float32)), exact)


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


def test_a_candidate_reaches_it_and_a_reference_computes_as_ever() -> None:
    theirs = walk(side("torchax", "tpu=v6e"))
    assert theirs.side.reached.missing == ()
    assert 1e-5 < apart(walk(side("torchax")).noise_pred, theirs.noise_pred) < 3e-3
    ours = walk(side("torch", "tpu=v6e"))
    assert ours.side.reached.missing == ()
    assert np.array_equal(ours.noise_pred, walk(side("torch")).noise_pred)


def test_an_older_jax_that_would_mix_up_its_programs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from parity.paths.jax import elementary as module

    module._erring_on_cpu.cache_clear()
    with monkeypatch.context() as without:
        without.delattr(jax, "make_user_context")
        with pytest.raises(UsageError, match="needs a newer JAX"), elementary("v6e", CPU):
            pass
    with elementary("none", CPU):
        assert float(jnp.exp(1.0)) == pytest.approx(np.e)


def test_a_candidate_in_torch_does_not_claim_a_chip() -> None:
    """Nothing of it errs: floors that allow for the chip would only hide its faults."""
    with (
        pytest.raises(UsageError, match="this one is plain torch"),
        torch_scope(Reached(parse("torchax", ["tpu=v6e"]))),
    ):
        pass
    reference = Reached(parse("torch", ["tpu=v6e"]))
    with torch_scope(reference):
        pass
    assert reference.missing == ()


@pytest.mark.parametrize(
    ("devices", "chip", "verdict", "said"),
    [
        ("cpu x 1", "none", "", ""),
        ("cpu", "v6e", "explained", "within XLA's bounds for a TPU v6e"),
        ("TPU v6 lite x 8", "none", "explained", "no floor allows for: --candidate tpu=v6e"),
        ("TPU v6 lite x 8", "v6e", "pass", "which the floors allow for"),
        ("NVIDIA H200", "none", "", ""),
    ],
)
def test_what_a_chip_is_taken_for_is_said_before_any_number(devices: str, chip: str, verdict: str, said: str) -> None:
    from parity.paths.port.replaced import of_the_chip

    found = of_the_chip((devices,), chip)
    assert [check[1] for check in found] == ([verdict] if verdict else [])
    assert said in "".join(check[2] for check in found)
