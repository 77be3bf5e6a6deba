"""The reduction for TPUs against the numpy definition, its kernel interpreted on one device."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from parity.golden.sketch import sketch  # noqa: E402
from parity.hooks.reduce import on_jax  # noqa: E402
from parity.hooks.reduce.on_tpu import reduce_on_mesh  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(), (226, 1501)], ids=["whole", "a range of the tokens"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(2, 1501, 4, 64), (1, 1985, 192)], ids=str)
def test_the_kernel_agrees_with_the_definition(shape: tuple[int, ...], dtype: str, rows: tuple[int, ...]) -> None:
    """Each item of a batch."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal(shape) + 0.1, jnp.float32).astype(dtype)
    auto = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh((1, 1, 1), ("dp", "sp", "tp"), axis_types=auto, devices=jax.devices()[:1])
    found = jax.jit(lambda x: reduce_on_mesh(x, *rows, mesh=mesh, items=len(x), interpret=True))(x)
    assert found is not None
    whole = np.asarray((x[:, slice(*rows)] if rows else x).astype(jnp.float32))
    for exact, each in zip(np.split(whole, len(whole)), found, strict=True):
        moments, got = on_jax.to_host(each)
        norm = float(np.linalg.norm(exact.astype(np.float64)))
        assert np.linalg.norm(got.astype(np.float64) - sketch(exact)) <= 1e-6 * norm
        assert (moments.count, moments.nan, moments.inf) == (exact.size, 0, 0)
        assert (moments.min, moments.max) == (exact.min(), exact.max())
        assert moments.l2 == pytest.approx(norm, rel=1e-6)
        assert moments.mean == pytest.approx(float(exact.mean(dtype=np.float64)), rel=1e-5)
