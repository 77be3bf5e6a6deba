"""`parity.hooks.reduce.on_jax` against the numpy definition: traced, concrete, and over a mesh of eight devices."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

import parity  # noqa: E402
from parity.golden.sketch import sketch  # noqa: E402
from parity.hooks.reduce.on_jax import reduce, to_host  # noqa: E402

pytestmark = pytest.mark.slow

SHAPES = [
    (), (7,), (32, 64), (2049,), (1, 12288), (300, 33), (70, 1537), (2049, 3), (5000, 1), (4097, 17), (3, 700, 12),
    (2, 4096, 20), (40000, 64), (2048, 1024), (1, 3, 9, 45, 80),
]  # fmt: skip


def values(shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(np.random.default_rng(0).standard_normal(shape) + 0.3, np.float32)


def agrees(x: jax.Array) -> None:
    moments, got = to_host(reduce(x))
    exact = np.asarray(x).astype(np.float64)
    norm = float(np.linalg.norm(exact))
    assert got.dtype == np.float32
    assert np.linalg.norm(got.astype(np.float64) - sketch(exact)) <= 1e-5 * norm
    assert (moments.count, moments.nan, moments.inf) == (exact.size, 0, 0)
    assert (moments.min, moments.max) == (float(exact.min()), float(exact.max()))
    assert moments.l2 == pytest.approx(norm, rel=1e-5)
    assert moments.mean == pytest.approx(float(exact.mean()), abs=1e-5 * norm / math.sqrt(exact.size))


@pytest.mark.parametrize("shape", [(1, 16, 9, 16, 32), (24, 6, 1, 16, 32), (1, 9, 16, 16, 32)], ids=str)
def test_many_at_once_agree_where_a_slot_has_two_rows(shape: tuple[int, ...]) -> None:
    # XLA on CPUs sums such axes wrongly once they are batched, if it is given them as a reduction.
    x = values((3, *shape))
    found = jax.jit(jax.vmap(reduce))(x)
    for i, one in enumerate(x):
        _, got = to_host({name: each[i] for name, each in found.items()})
        assert np.linalg.norm(got - sketch(one)) <= 1e-5 * np.linalg.norm(one)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_the_definition(shape: tuple[int, ...]) -> None:
    agrees(jnp.asarray(values(shape)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(10, 9), (3000, 40)], ids=str)
def test_dtypes(shape: tuple[int, ...], dtype: str) -> None:
    agrees(jnp.abs(jnp.asarray(values(shape)) * 9).astype(dtype))


def test_traced_and_concrete_agree() -> None:
    """Inside a larger program XLA may fuse it differently: the sums then differ by rounding, the counts not at all."""
    x = jnp.asarray(values((3, 1500, 20)))

    @jax.jit
    def program(x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        y = jnp.swapaxes(x * 2, 0, 1)
        return y, reduce(y)

    y, traced = program(x)
    (a, s), (b, t) = to_host(traced), to_host(reduce(y))
    assert (a.count, a.nan, a.inf, a.min, a.max) == (b.count, b.nan, b.inf, b.min, b.max)
    assert a.l2 == pytest.approx(b.l2, rel=1e-6)
    assert np.linalg.norm(s - t) <= 1e-6 * a.l2
    assert [str(traced[k].dtype) for k in ("sketch", "moments", "counts")] == ["float32", "float32", "int32"]


def test_the_input_stays_and_constants_stay_small() -> None:
    x = jnp.asarray(values((4096, 64)))
    kept = np.array(x)
    reduce(x)
    np.testing.assert_array_equal(np.asarray(x), kept)
    constants = jax.make_jaxpr(reduce)(x).consts
    assert sum(np.size(c) for c in constants) < 64


@pytest.mark.parametrize("shape", [(20, 30), (4096, 60)], ids=str)
def test_nan_and_infinities_are_counted_and_left_out(shape: tuple[int, ...]) -> None:
    x = values(shape)
    flat = x.reshape(-1)
    flat[3], flat[5], flat[-1], flat[-7] = math.nan, math.inf, -math.inf, math.nan
    moments, got = to_host(reduce(jnp.asarray(x)))
    finite = x[np.isfinite(x)].astype(np.float64)
    assert (moments.count, moments.nan, moments.inf) == (x.size, 2, 2)
    assert (moments.min, moments.max) == (float(finite.min()), float(finite.max()))
    assert moments.l2 == pytest.approx(float(np.linalg.norm(finite)), rel=1e-6)
    assert moments.mean == pytest.approx(float(finite.mean()), rel=1e-5)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(sketch(x)))


def test_one_nan_is_seen() -> None:
    """XLA's extrema on CPUs pass over NaN."""
    moments, _ = to_host(reduce(jnp.ones((5000, 16)).at[77, 3].set(jnp.nan)))
    assert (moments.nan, moments.inf, moments.min, moments.max) == (1, 0, 1.0, 1.0)


@pytest.mark.parametrize("bad", [False, True])
def test_a_batch_is_reduced_one_by_one(bad: bool) -> None:
    x = values((5, 400, 30))
    if bad:
        x[1, 2, 3] = math.nan
    many = jax.device_get(jax.jit(jax.vmap(reduce))(jnp.asarray(x)))
    for i in range(5):
        moments, got = to_host({k: v[i] for k, v in many.items()})
        one, alone = to_host(reduce(jnp.asarray(x[i])))
        assert (moments.nan, moments.min, moments.max) == (one.nan, one.min, one.max)
        assert moments.nan == int(bad and i == 1)
        assert moments.l2 == pytest.approx(one.l2, rel=1e-6)
        np.testing.assert_allclose(got, alone, atol=1e-4)
    program = str(jax.make_jaxpr(jax.vmap(reduce))(jnp.asarray(x)))
    assert "cond[" in program, "without a condition of its own, every batch would pay for NaNs"


@pytest.mark.parametrize("shape", [(128, 512), (1, 176, 512), (1, 176, 4, 128), (8, 2048), (300, 90), (1, 2048, 35)])
def test_a_stack_of_larger_ones_has_the_sketch_of_each(shape: tuple[int, ...]) -> None:
    """One after the other on a CPU, and laid out once where a bin is short; a NaN marks its own member alone."""
    x = np.stack([values(shape) * (i + 1) for i in range(5)])
    x[3].reshape(-1)[1234] = np.nan
    many = jax.device_get(jax.jit(jax.vmap(reduce))(jnp.asarray(x)))
    for i, each in enumerate(x):
        exact = sketch(each)
        bad = np.isnan(exact)
        assert np.isnan(many["sketch"][i][bad]).all()
        assert np.isnan(many["sketch"][i]).sum() == bad.sum()
        assert np.linalg.norm((many["sketch"][i] - exact)[~bad]) <= 1e-6 * np.linalg.norm(each[np.isfinite(each)])


def test_nothing_finite_and_nothing_at_all() -> None:
    moments, _ = to_host(reduce(jnp.full((300, 40), jnp.nan)))
    assert (moments.nan, moments.min, moments.max, moments.mean, moments.l2) == (12000, 0.0, 0.0, 0.0, 0.0)
    moments, got = to_host(reduce(jnp.zeros((0, 5))))
    assert (moments.count, moments.l2, got.shape) == (0, 0.0, (0,))
    moments, got = to_host(reduce(jnp.zeros((300, 40))))
    assert (moments.max, moments.l2, np.count_nonzero(got)) == (0.0, 0.0, 0)


@pytest.mark.parametrize("scale", [float(np.finfo(np.float32).min), 1e30, 1e-30])
def test_moments_beyond_float32s_squares(scale: float) -> None:
    moments, _ = to_host(reduce(jnp.full((300, 40), scale, jnp.float32)))
    assert moments.l2 == pytest.approx(abs(scale) * math.sqrt(12000), rel=1e-6)
    assert moments.mean == pytest.approx(scale, rel=1e-6)


def test_long_sums_keep_their_precision() -> None:
    """One float32 accumulator would stand still at 2^24."""
    moments, _ = to_host(reduce(jnp.full((20_000_000,), 1.1, jnp.float32).reshape(-1, 100)))
    assert moments.mean == pytest.approx(float(np.float32(1.1)), rel=1e-6)
    assert moments.l2 == pytest.approx(float(np.float32(1.1)) * math.sqrt(2e7), rel=1e-6)


def test_counts_beyond_int32() -> None:
    shape = jax.eval_shape(reduce, jax.ShapeDtypeStruct((3, 2**30), jnp.bfloat16))
    assert shape["counts"].shape == (4,)
    made = {"sketch": np.zeros(1), "moments": np.float32([0, 1, 4, 4, 1]), "counts": np.int32([1, 2**30, 5, 0])}
    assert to_host(made)[0].count == 3 * 2**30


@pytest.mark.parametrize("shape", [(4096, 65536), (3, 2**27)])
def test_wide_rows_trace_to_few_operations(shape: tuple[int, int]) -> None:
    """A fold slice by slice of 65,536 channels was 9,500 lines, of 2^27 minutes of tracing."""
    traced = jax.make_jaxpr(reduce)(jax.ShapeDtypeStruct(shape, jnp.bfloat16))
    assert len(str(traced).splitlines()) < 1000


def test_complex_counts_as_its_real_view() -> None:
    x = values((3, 500, 7)) + 1j * values((3, 500, 7))[::-1]
    real = np.ascontiguousarray(x.astype(np.complex64)).view(np.float32)
    got = to_host(reduce(jnp.asarray(x, jnp.complex64)))[1]
    assert np.linalg.norm(got - sketch(real)) <= 1e-5 * np.linalg.norm(real)


MESH = """
import re
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from parity.golden.sketch import sketch
from parity.hooks.reduce.on_jax import reduce, to_host

assert jax.device_count() == 8
mesh = Mesh(np.array(jax.devices()), ("a",))
for shape in [(8, 4096, 64), (1, 16384, 64), (2, 1024, 64), (1, 4104, 48), (2, 4104, 48), (8, 16, 8)]:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    plain, whole = to_host(reduce(jax.device_put(x)))
    for axis in (a for a in range(3) if shape[a] % 8 == 0):
        spec = PartitionSpec(*("a" if a == axis else None for a in range(3)))
        sharded = jax.device_put(x, NamedSharding(mesh, spec))
        moments, got = to_host(reduce(sharded))
        norm = np.linalg.norm(x)
        assert np.linalg.norm(got - sketch(x)) <= 1e-5 * norm, (shape, axis)
        assert np.linalg.norm(got - whole) <= 1e-5 * norm, (shape, axis)
        assert (moments.min, moments.max, moments.count) == (plain.min, plain.max, plain.count)
        assert abs(moments.l2 - plain.l2) <= 1e-5 * norm
        if shape in [(8, 4096, 64), (1, 16384, 64)]:
            # Slots do not straddle axes here: only what is left after summing them may move between devices.
            program = jax.jit(reduce).lower(sharded).compile().as_text()
            moved = re.findall(r"= \\w+\\[([\\d,]+)\\]\\S* (?:all-gather|all-to-all|collective-permute)", program)
            largest = max((int(np.prod([int(n) for n in m.split(",")])) for m in moved), default=0)
            assert largest <= x.size // 4, (shape, axis, moved)
print("sharded ok")
"""


def test_a_sharded_array_has_the_sketch_of_the_whole() -> None:
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    root = os.path.dirname(os.path.dirname(parity.__file__))
    env["PYTHONPATH"] = os.pathsep.join(p for p in (root, env.get("PYTHONPATH", "")) if p)
    done = subprocess.run([sys.executable, "-c", MESH], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("sharded ok")
