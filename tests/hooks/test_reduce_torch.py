"""`parity.hooks.reduce.on_torch` against the numpy definition, and its promise to do nothing but read."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import parity.hooks.reduce.on_torch as rt
from parity.golden.sketch import sketch
from parity.hooks.reduce.on_torch import reduce, to_host, to_host_many

# Exact, barely not exact, a short last slot, one row, one channel, several runs, slots that straddle axes.
SHAPES = [
    (), (7,), (32, 64), (2049,), (1, 12288), (300, 33), (70, 1537), (2049, 3), (5000, 1), (4097, 17), (3, 700, 12),
    (40000, 64), (2048, 1024), (1, 3, 9, 45, 80), (300000, 2),
]  # fmt: skip


def values(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.3


def agrees(x: torch.Tensor) -> None:
    """Sketch and moments of `x` are those of numpy in float64."""
    moments, got = to_host(reduce(x))
    exact = x.detach().to(torch.float64).numpy()
    norm = float(np.linalg.norm(exact))
    assert got.dtype == np.float32
    assert np.linalg.norm(got.astype(np.float64) - sketch(exact)) <= 1e-5 * norm
    assert (moments.count, moments.nan, moments.inf) == (exact.size, 0, 0)
    assert (moments.min, moments.max) == (float(exact.min()), float(exact.max()))
    assert moments.l2 == pytest.approx(norm, rel=1e-5)
    assert moments.mean == pytest.approx(float(exact.mean()), abs=1e-5 * norm / math.sqrt(exact.size))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_the_definition(shape: tuple[int, ...]) -> None:
    agrees(values(shape))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(10, 9), (3000, 40)], ids=str)
def test_dtypes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    agrees(values(shape).mul(9).abs().to(dtype))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(1, 2),
        lambda x: x.permute(3, 1, 0, 2),
        lambda x: x[:, 1:, :, ::2],
        lambda x: x[..., 0],
        lambda x: x[1:2, :, 3:, 5:20],
        lambda x: x[:1, :, :1].expand(3, -1, 9, -1),
        lambda x: x.reshape(-1, 24).T,
    ],
)
def test_views_that_are_not_contiguous(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    agrees(view(values((2, 130, 30, 24))))


def test_a_huge_bin_is_summed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rt, "_CPU_RUN", 1000)
    for shape in ((40001, 6), (3, 5000, 7), (900, 50)):
        agrees(values(shape))
        agrees(values((*shape[:-1], 2 * shape[-1]))[..., ::2])


def test_results_do_not_depend_on_what_was_reduced_before() -> None:
    """Scratch is reused: what an earlier, larger tensor left there must not show."""
    x = values((70, 1537))
    before = to_host(reduce(x))
    to_host(reduce(torch.full((4096, 600), math.nan)))
    after = to_host(reduce(x))
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])


@pytest.mark.parametrize("shape", [(20, 30), (4096, 600)], ids=str)
def test_nan_and_infinities_are_counted_and_left_out(shape: tuple[int, ...]) -> None:
    x = values(shape)
    flat = x.view(-1)
    flat[3], flat[5], flat[-1], flat[-7] = math.nan, math.inf, -math.inf, math.nan
    moments, got = to_host(reduce(x))
    finite = x[x.isfinite()].double()
    assert (moments.count, moments.nan, moments.inf) == (x.numel(), 2, 2)
    assert (moments.min, moments.max) == (float(finite.min()), float(finite.max()))
    assert moments.l2 == pytest.approx(float(finite.norm()), rel=1e-6)
    assert moments.mean == pytest.approx(float(finite.mean()), rel=1e-5)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(sketch(x.numpy())))


def test_nothing_finite_and_nothing_at_all() -> None:
    moments, _ = to_host(reduce(torch.full((300, 40), math.nan)))
    assert (moments.nan, moments.min, moments.max, moments.mean, moments.l2) == (12000, 0.0, 0.0, 0.0, 0.0)
    moments, got = to_host(reduce(torch.zeros(0, 5)))
    assert (moments.count, moments.l2, got.shape) == (0, 0.0, (0,))
    moments, got = to_host(reduce(torch.zeros(300, 40)))
    assert (moments.max, moments.l2, np.count_nonzero(got)) == (0.0, 0.0, 0)


@pytest.mark.parametrize("scale", [torch.finfo(torch.float32).min, 1e30, 1e-30])
def test_moments_beyond_float32s_squares(scale: float) -> None:
    x = torch.ones(300, 40) * scale
    moments, _ = to_host(reduce(x))
    assert moments.l2 == pytest.approx(abs(scale) * math.sqrt(x.numel()), rel=1e-6)
    assert moments.mean == pytest.approx(scale, rel=1e-6)


def test_long_sums_keep_their_precision() -> None:
    moments, _ = to_host(reduce(torch.full((200_000, 100), 1.1)))
    assert moments.mean == pytest.approx(float(np.float32(1.1)), rel=1e-6)
    assert moments.l2 == pytest.approx(float(np.float32(1.1)) * math.sqrt(2e7), rel=1e-6)


def test_the_masking_of_accelerators_gives_the_same_moments() -> None:
    x = values((60, 50))
    x[3, 4], x[5, 6] = math.nan, -math.inf
    for case in (x, values((60, 50), 1), torch.full((4, 4), math.nan)):
        np.testing.assert_allclose(rt._device_moments(case.view(-1)).numpy(), rt._cpu_moments(case.view(-1)), rtol=1e-6)


def test_complex_counts_as_its_real_view() -> None:
    x = torch.complex(values((3, 500, 7)), values((3, 500, 7), 1))
    for case in (x, x.conj(), x.transpose(0, 1), x[0, 0, 0]):
        real = torch.view_as_real(case.resolve_conj()).contiguous().reshape(*case.shape[:-1], -1)
        r = reduce(case)
        assert r.shape == tuple(real.shape)
        np.testing.assert_array_equal(to_host(r)[1], to_host(reduce(real))[1])


def test_nothing_but_reading() -> None:
    x = values((4096, 40)).requires_grad_()
    y = x * 2
    kept, version = y.detach().clone(), y._version
    state = torch.get_rng_state(), torch.get_default_dtype(), torch.is_grad_enabled()
    r = reduce(y)
    assert torch.equal(y, kept)
    assert y._version == version
    assert y.requires_grad
    assert not r.sketch.requires_grad
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == state[1:]
    y.sum().backward()
    assert x.grad is not None
    small = torch.ones(3)
    r = reduce(small)
    small.zero_()
    assert to_host(r)[1].tolist() == [1.0, 1.0, 1.0]


def test_autocast_and_matmul_precision_change_nothing() -> None:
    x = values((8192, 64))
    plain = to_host(reduce(x))
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            other = to_host(reduce(x))
    finally:
        torch.set_float32_matmul_precision(precision)
    assert plain[0] == other[0]
    np.testing.assert_array_equal(plain[1], other[1])


def test_inference_mode_may_fill_the_caches() -> None:
    rt._sign_table.cache_clear()
    rt._tile.cache_clear()
    rt._held.__dict__.clear()
    with torch.inference_mode():
        reduce(values((3000, 41)))
    agrees(values((3000, 41)))


def test_many_at_once_in_order() -> None:
    xs = [values(shape, i) for i, shape in enumerate(SHAPES)] + [torch.zeros(0, 3)]
    many = to_host_many([reduce(x) for x in xs])
    for x, (moments, got) in zip(xs, many, strict=True):
        one = to_host(reduce(x))
        assert moments == one[0]
        np.testing.assert_array_equal(got, one[1])
    assert to_host_many([]) == []


def test_no_table_is_as_large_as_the_tensor() -> None:
    cpu = torch.device("cpu")
    for rows in (5000, 300000, 10**7):
        held = rt._row_signs(rows - 100, rows, cpu, torch.float32)
        assert held.untyped_storage().nbytes() <= 4 * max(rt._SIGN_ROWS, 100)
    assert rt._tile(500, 32, cpu, torch.float32).shape == (64, 500)
    assert rt._tile(12288, 1, cpu, torch.float32).shape == (1, 12288)


def test_what_cannot_be_walked_is_refused() -> None:
    for x in (torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
        with pytest.raises(TypeError, match="dense"):
            reduce(x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_agrees_and_does_not_wait(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x = values(shape).to("cuda", dtype)
        reduce(x)
        torch.cuda.set_sync_debug_mode("error")
        try:
            r = reduce(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        exact = x.double().cpu().numpy()
        moments, got = to_host(r)
        assert np.linalg.norm(got - sketch(exact)) <= 1e-5 * np.linalg.norm(exact)
        assert moments.l2 == pytest.approx(float(np.linalg.norm(exact)), rel=1e-5)
