"""Reductions by torch and by JAX against the numpy definition, and their promise to do nothing but read."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import parity.hooks.reduce.on_torch as rt
from parity.golden.records import Moments
from parity.golden.sketch import sketch
from parity.hooks.reduce import on_jax

jax = pytest.importorskip("jax")
jnp = jax.numpy

Reduced = tuple[Moments, np.ndarray]


def by_torch(x: np.ndarray, dtype: str = "") -> Reduced:
    y = torch.from_numpy(np.ascontiguousarray(x)).reshape(x.shape)
    return rt.to_host(rt.reduce(y.to(getattr(torch, dtype)) if dtype else y))


def by_jax(x: np.ndarray, dtype: str = "") -> Reduced:
    return on_jax.to_host(on_jax.reduce(jnp.asarray(x, dtype or x.dtype)))


BOTH = pytest.mark.parametrize("reduced", [by_torch, by_jax])
Reduce = Callable[..., Reduced]


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape) + 0.3, np.float32)


def agrees(found: Reduced, exact: np.ndarray, rel: float = 1e-5) -> None:
    """Sketch and moments are those of numpy in float64."""
    moments, got = found
    exact = exact.astype(np.float64)
    norm = float(np.linalg.norm(exact))
    assert got.dtype == np.float32
    assert np.linalg.norm(got.astype(np.float64) - sketch(exact)) <= rel * norm
    assert (moments.count, moments.nan, moments.inf) == (exact.size, 0, 0)
    assert (moments.min, moments.max) == (float(exact.min()), float(exact.max()))
    assert moments.l2 == pytest.approx(norm, rel=rel)
    assert moments.mean == pytest.approx(float(exact.mean()), abs=rel * norm / math.sqrt(exact.size))


# Exact, barely not exact, a short last slot, one row, one channel, several runs, slots that straddle axes.
FEW = [(), (300, 33), (3, 700, 12)]
MORE = [(2049, 3), (7,), (32, 64), (2049,), (1, 12288), (70, 1537), (5000, 1), (4097, 17), (2, 4096, 20), (40000, 64),
        (2048, 1024), (1, 3, 9, 45, 80), (300000, 2)]  # fmt: skip
SHAPES = pytest.mark.parametrize("shape", [*FEW, *(pytest.param(s, marks=pytest.mark.slow) for s in MORE)], ids=str)


@SHAPES
@BOTH
def test_reductions_are_those_of_the_definition(reduced: Reduce, shape: tuple[int, ...]) -> None:
    agrees(reduced(values(shape)), values(shape))


DTYPES = ["bfloat16", "float16", "int32", "uint8", "bool"]


@pytest.mark.parametrize(
    ("reduced", "dtype"),
    [(by_torch, dtype) for dtype in DTYPES]
    + [(by_jax, "bfloat16"), *(pytest.param(by_jax, dtype, marks=pytest.mark.slow) for dtype in DTYPES[1:])],
)
def test_every_dtype_is_reduced_by_value(reduced: Reduce, dtype: str) -> None:
    x = torch.from_numpy(np.abs(values((700, 40)) * 9)).to(getattr(torch, dtype))
    exact = x.double().numpy()
    agrees(reduced(exact.astype(np.float32), dtype), exact)


@pytest.mark.parametrize("shape", [(20, 30), (4096, 60)], ids=str)
@BOTH
def test_numbers_that_are_not_finite_are_counted_and_left_out(reduced: Reduce, shape: tuple[int, ...]) -> None:
    x = values(shape)
    flat = x.reshape(-1)
    flat[3], flat[5], flat[-1], flat[-7] = math.nan, math.inf, -math.inf, math.nan
    moments, got = reduced(x)
    finite = x[np.isfinite(x)].astype(np.float64)
    assert (moments.count, moments.nan, moments.inf) == (x.size, 2, 2)
    assert (moments.min, moments.max) == (float(finite.min()), float(finite.max()))
    assert moments.l2 == pytest.approx(float(np.linalg.norm(finite)), rel=1e-6)
    assert moments.mean == pytest.approx(float(finite.mean()), rel=1e-5)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(sketch(x)))


@BOTH
def test_nothing_finite_zeros_and_nothing_at_all(reduced: Reduce) -> None:
    moments, _ = reduced(np.full((300, 40), math.nan, np.float32))
    assert (moments.nan, moments.min, moments.max, moments.mean, moments.l2) == (12000, 0.0, 0.0, 0.0, 0.0)
    moments, got = reduced(np.zeros((0, 5), np.float32))
    assert (moments.count, moments.l2, got.shape) == (0, 0.0, (0,))
    moments, got = reduced(np.zeros((300, 40), np.float32))
    assert (moments.max, moments.l2, np.count_nonzero(got)) == (0.0, 0.0, 0)


@pytest.mark.parametrize("scale", [float(np.finfo(np.float32).min), 1e30, 1e-30])
@BOTH
def test_squares_beyond_float32_are_no_problem(reduced: Reduce, scale: float) -> None:
    moments, _ = reduced(np.full((300, 40), scale, np.float32))
    assert (moments.l2, moments.mean) == pytest.approx((abs(scale) * math.sqrt(12000), scale), rel=1e-6)


@pytest.mark.slow
@BOTH
def test_long_sums_keep_their_precision(reduced: Reduce) -> None:
    """One float32 accumulator would stand still at 2^24."""
    moments, _ = reduced(np.full((200_000, 100), 1.1, np.float32))
    exact = float(np.float32(1.1))
    assert (moments.mean, moments.l2) == pytest.approx((exact, exact * math.sqrt(2e7)), rel=1e-6)


@BOTH
def test_a_complex_tensor_is_reduced_as_its_real_view(reduced: Reduce) -> None:
    x = (values((3, 500, 7)) + 1j * values((3, 500, 7), 1)).astype(np.complex64)
    agrees((reduced(x)[0], reduced(x)[1]), x.view(np.float32))


# --- torch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(1, 2),
        lambda x: x.permute(3, 1, 0, 2),
        lambda x: x[:, 1:, :, ::2],
        lambda x: x[..., 0],
        lambda x: x[:1, :, :1].expand(3, -1, 9, -1),
        lambda x: x.reshape(-1, 24).T,
    ],
)
@pytest.mark.parametrize("run", [1000, rt._CPU_RUN])
def test_views_that_are_not_contiguous_are_reduced(
    view: Callable[[torch.Tensor], torch.Tensor], run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rt, "_CPU_RUN", run)  # a huge bin is summed in pieces
    x = view(torch.from_numpy(values((2, 130, 30, 24))))
    agrees(rt.to_host(rt.reduce(x)), x.numpy())


def test_torch_results_depend_on_nothing_but_the_tensor() -> None:
    """Not on what was reduced before, on autocast, on inference mode or on others that are fetched with them."""
    x = torch.from_numpy(values((70, 1537)))
    rt._sign_table.cache_clear()
    rt._tile.cache_clear()
    with torch.inference_mode():
        found = [rt.to_host(rt.reduce(x))]
    rt.reduce(torch.full((4096, 600), math.nan))
    found.append(rt.to_host(rt.reduce(x)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found.append(rt.to_host(rt.reduce(x)))
    found += rt.to_host_many([rt.reduce(y) for y in (torch.zeros(0, 3), x, torch.ones(7))])[1:2]
    for moments, got in found:
        assert moments == found[0][0]
        np.testing.assert_array_equal(got, found[0][1])


def test_torch_reductions_do_nothing_but_read() -> None:
    x = torch.from_numpy(values((4096, 40))).requires_grad_()
    y = x * 2
    kept, version = y.detach().clone(), y._version
    state = torch.get_rng_state(), torch.get_default_dtype(), torch.is_grad_enabled()
    r = rt.reduce(y)
    assert torch.equal(y, kept)
    assert (y._version, y.requires_grad, r.sketch.requires_grad) == (version, True, False)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == state[1:]
    small = torch.ones(3)
    r = rt.reduce(small)
    small.zero_()
    assert rt.to_host(r)[1].tolist() == [1.0, 1.0, 1.0]
    for odd in (torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
        with pytest.raises(TypeError, match="dense"):
            rt.reduce(odd)


def test_moments_as_accelerators_compute_them_are_the_same() -> None:
    x = values((60, 50))
    x[3, 4], x[5, 6] = math.nan, -math.inf
    for case in map(torch.from_numpy, (x, values((60, 50), 1), np.full((4, 4), np.nan, np.float32))):
        np.testing.assert_allclose(rt._device_moments(case.view(-1)).numpy(), rt._cpu_moments(case.view(-1)), rtol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_agrees_and_does_not_wait(dtype: torch.dtype) -> None:
    for shape in (*FEW, *MORE):
        x = torch.from_numpy(values(shape)).to("cuda", dtype)
        rt.reduce(x)
        torch.cuda.set_sync_debug_mode("error")
        try:
            r = rt.reduce(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        agrees(rt.to_host(r), x.double().cpu().numpy())


# --- JAX -------------------------------------------------------------------------------------------------------


def test_traced_and_concrete_agree() -> None:
    """Inside a larger program XLA may fuse it differently: the sums then differ by rounding, the counts not at all."""
    x = jnp.asarray(values((3, 1500, 20)))

    @jax.jit
    def program(x: Any) -> Any:
        y = jnp.swapaxes(x * 2, 0, 1)
        return y, on_jax.reduce(y)

    y, traced = program(x)
    (a, s), (b, t) = on_jax.to_host(traced), on_jax.to_host(on_jax.reduce(y))
    assert (a.count, a.nan, a.inf, a.min, a.max) == (b.count, b.nan, b.inf, b.min, b.max)
    assert a.l2 == pytest.approx(b.l2, rel=1e-6)
    assert np.linalg.norm(s - t) <= 1e-6 * a.l2


def test_one_nan_is_seen() -> None:
    """XLA's extrema on CPUs pass over NaN."""
    moments, _ = on_jax.to_host(on_jax.reduce(jnp.ones((5000, 16)).at[77, 3].set(jnp.nan)))
    assert (moments.nan, moments.inf, moments.min, moments.max) == (1, 0, 1.0, 1.0)


@pytest.mark.parametrize(
    "shape",
    [(400, 30), *(pytest.param(s, marks=pytest.mark.slow) for s in (
        (128, 512), (1, 176, 512), (1, 176, 4, 128), (8, 2048), (300, 90), (1, 2048, 35),
        # A slot of two rows: XLA on CPUs sums such axes wrongly once they are batched, if given as a reduction.
        (1, 16, 9, 16, 32), (24, 6, 1, 16, 32), (1, 9, 16, 16, 32)))],
    ids=str,
)  # fmt: skip
def test_a_batch_has_the_sketch_of_each_and_a_nan_marks_its_member_alone(shape: tuple[int, ...]) -> None:
    x = np.stack([values(shape) * (i + 1) for i in range(4)])
    x[3].reshape(-1)[1234] = np.nan
    many = jax.device_get(jax.jit(jax.vmap(on_jax.reduce))(jnp.asarray(x)))
    for i, each in enumerate(x):
        moments, got = on_jax.to_host({name: found[i] for name, found in many.items()})
        exact = sketch(each)
        bad = np.isnan(exact)
        assert moments.nan == (i == 3)
        np.testing.assert_array_equal(np.isnan(got), bad)
        assert np.linalg.norm((got - exact)[~bad]) <= 1e-5 * np.linalg.norm(each[np.isfinite(each)])
    program = str(jax.make_jaxpr(jax.vmap(on_jax.reduce))(jnp.asarray(x)))
    assert "cond[" in program  # otherwise every batch would pay for NaNs


@pytest.mark.parametrize("shape", [(4096, 64), (4096, 65536), (3, 2**27)])
def test_programs_stay_small_however_wide_the_rows(shape: tuple[int, int]) -> None:
    """A fold slice by slice of 65,536 channels was 9,500 lines, of 2^27 minutes of tracing."""
    traced = jax.make_jaxpr(on_jax.reduce)(jax.ShapeDtypeStruct(shape, jnp.bfloat16))
    assert len(str(traced).splitlines()) < 1000
    assert sum(np.size(c) for c in traced.consts) < 64


def test_counts_beyond_int32() -> None:
    shape = jax.eval_shape(on_jax.reduce, jax.ShapeDtypeStruct((3, 2**30), jnp.bfloat16))
    assert shape["counts"].shape == (4,)
    made = {"sketch": np.zeros(1), "moments": np.float32([0, 1, 4, 4, 1]), "counts": np.int32([1, 2**30, 5, 0])}
    assert on_jax.to_host(made)[0].count == 3 * 2**30


def over_devices() -> None:
    """Run in a process with eight devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("a",))
    assert len(mesh.devices) == 8
    for shape in [(8, 4096, 64), (1, 4104, 48), (8, 16, 8)]:
        x = values(shape)
        for axis in (a for a in range(3) if shape[a] % 8 == 0):
            spec = jax.sharding.PartitionSpec(*("a" if a == axis else None for a in range(3)))
            sharded = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
            agrees(on_jax.to_host(on_jax.reduce(sharded)), x)


@pytest.mark.slow
def test_a_sharded_array_has_the_sketch_of_the_whole() -> None:
    root = Path(__file__).parents[2]
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)}
    ran = subprocess.run(
        [sys.executable, __file__], env=os.environ | flags, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


if __name__ == "__main__":
    over_devices()
