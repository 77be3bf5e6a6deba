"""Reductions by torch, by JAX and for TPUs against the numpy definition, and their promise to do nothing but read."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import parity.hooks.reduce.on_torch as rt
from parity.hooks.reduce import on_jax
from parity.hooks.reduce.on_tpu import reduce_on_mesh
from parity.records import Moments
from parity.sketch import sketch

jax = pytest.importorskip("jax")
jnp = jax.numpy

Reduced = tuple[Moments, np.ndarray]


def by_torch(x: np.ndarray, dtype: str = "") -> Reduced:
    y = torch.from_numpy(np.ascontiguousarray(x)).reshape(x.shape)
    return rt.to_host_many([rt.reduce(y.to(getattr(torch, dtype)) if dtype else y)])[0]


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


def test_an_expanded_tensor_is_read_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rt, "_WHOLE", 0)
    x = torch.from_numpy(values((2, 1, 1, 96)))
    wide = x.expand(2, 3, 700, 96)
    turned = torch.from_numpy(values((2, 3, 300, 40))).transpose(1, 2)
    for given in (wide, turned):
        agrees(rt.to_host_many([rt.reduce(given)])[0], given.contiguous().numpy())


# Exact, a short last slot, slots that straddle axes, one row, several runs.
FEW = [(), (300, 33), (3, 700, 12)]
MORE = [(1, 12288), (40000, 64)]
SHAPES = pytest.mark.parametrize("shape", [*FEW, *(pytest.param(s, marks=pytest.mark.slow) for s in MORE)], ids=str)


@SHAPES
@BOTH
def test_reductions_are_those_of_the_definition(reduced: Reduce, shape: tuple[int, ...]) -> None:
    agrees(reduced(values(shape)), values(shape))


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("int32", marks=pytest.mark.slow)])
@BOTH
def test_other_dtypes_are_reduced_by_value(reduced: Reduce, dtype: str) -> None:
    x = torch.from_numpy(np.abs(values((700, 40)) * 9)).to(getattr(torch, dtype))
    exact = x.double().numpy()
    agrees(reduced(exact.astype(np.float32), dtype), exact)


@BOTH
def test_numbers_that_are_not_finite_are_counted_and_left_out(reduced: Reduce) -> None:
    x = values((4096, 60))
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


@pytest.mark.parametrize("scale", [float(np.finfo(np.float32).min), 1e-30])
@BOTH
def test_squares_beyond_float32_are_no_problem(reduced: Reduce, scale: float) -> None:
    moments, _ = reduced(np.full((300, 40), scale, np.float32))
    assert (moments.l2, moments.mean) == pytest.approx((abs(scale) * math.sqrt(12000), scale), rel=1e-6)


@BOTH
def test_a_complex_tensor_is_reduced_as_its_real_view(reduced: Reduce) -> None:
    x = (values((3, 500, 7)) + 1j * values((3, 500, 7), 1)).astype(np.complex64)
    agrees((reduced(x)[0], reduced(x)[1]), x.view(np.float32))


# --- torch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["SR", "RS", "SS", "S0 S1"])
def test_blocks_of_a_tensor_that_is_split_over_processes_add_up(split: str) -> None:
    """Of a mesh of two by two, and of 7 rows, which it cuts into unequal blocks: on both axes into 2, 2, 2 and 1."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    along: dict[str, tuple[Placement, Placement]] = {
        "SR": (Shard(0), Replicate()),
        "RS": (Replicate(), Shard(0)),
        "SS": (Shard(0), Shard(0)),
        "S0 S1": (Shard(0), Shard(1)),
    }
    x, blocks = torch.from_numpy(values((7, 600))), []
    for rank in range(4):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            local = x
            for placement, place in zip(along[split], divmod(rank, 2), strict=True):
                local = local.chunk(2, placement.dim)[place] if isinstance(placement, Shard) else local
            mesh = init_device_mesh("cpu", (2, 2))
            whole = DTensor.from_local(local, mesh, along[split], shape=x.shape, stride=x.stride())
            blocks.append(rt.to_host_many([rt.reduce_block(whole)])[0])
        finally:
            torch.distributed.destroy_process_group()
    assert sum(moments.count for moments, _ in blocks) == x.numel()
    assert np.allclose(sum(sketched for _, sketched in blocks), sketch(x.numpy()), atol=1e-4)


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
    assert rt.to_host_many([r])[0][1].tolist() == [1.0, 1.0, 1.0]
    for odd in (torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
        with pytest.raises(TypeError, match="dense"):
            rt.reduce(odd)


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
        agrees(rt.to_host_many([r])[0], x.double().cpu().numpy())


# --- JAX -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    # A slot of two rows: XLA on CPUs sums such axes wrongly once they are batched, if given as a reduction.
    [(400, 30), pytest.param((1, 16, 9, 16, 32), marks=pytest.mark.slow)],
    ids=str,
)
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


# --- The reduction for TPUs against the numpy definition, its kernel interpreted on one device


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
