"""Joint attention in every kernel and mask, on torch and under torchax, held to numpy in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torchax
from torchax import interop

from parity.models.attention import attend
from parity.paths.safe_attention import use_safe_attention

B, L, H, D = 3, 37, 2, 16
VALID = (29, 37, 0)
"""Valid keys of each batch element: some, all, none."""

Run = Callable[["Tensors", str], np.ndarray]


@dataclass(frozen=True)
class Tensors:
    """float32 query, key, value [B, L, H, D] and bool valid [B, L]."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    valid: np.ndarray


@pytest.fixture(scope="module")
def given() -> Tensors:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((B, L, H, D)).astype(np.float32) for _ in range(3))
    valid = np.zeros((B, L), bool)
    for i, n in enumerate(VALID):
        valid[i, rng.permutation(L)[:n]] = True
    return Tensors(1.5 * q, k, v, valid)


def scores(given: Tensors) -> np.ndarray:
    """Scaled scores [B, H, L, L] in float64."""
    q, k = given.query.astype(np.float64), given.key.astype(np.float64)
    return np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(D)


def weighted(logits: np.ndarray, given: Tensors, weight: np.ndarray) -> np.ndarray:
    """Attention over keys of which each counts `weight` [B, L] (0: masked); rows without any key are 0."""
    w = np.exp(logits) * weight[:, None, None, :]
    total = w.sum(axis=-1, keepdims=True)
    w = np.divide(w, total, out=np.zeros_like(w), where=total > 0)
    return np.einsum("bhqk,bkhd->bqhd", w, given.value.astype(np.float64))


def masked_keys(given: Tensors) -> np.ndarray:
    """Every query over the valid keys."""
    return weighted(scores(given), given, given.valid.astype(float))


def oracle(given: Tensors, mask: str) -> np.ndarray:
    if mask == "exact":
        return masked_keys(given) * given.valid[:, :, None, None]
    if mask == "none":
        return weighted(scores(given), given, np.ones((B, L)))
    if mask == "zero_kv_rescaled":
        return masked_keys(given)
    keep = given.valid[:, None, None, :]
    zeroed = Tensors(given.query, given.key, given.value * given.valid[:, :, None, None], given.valid)
    return weighted(np.where(keep, scores(given), 0.0), zeroed, np.ones((B, L)))


def on_torch(kernel: str) -> Run:
    def run(given: Tensors, mask: str) -> np.ndarray:
        q, k, v, valid = (torch.from_numpy(x) for x in (given.query, given.key, given.value, given.valid))
        with torch.no_grad():
            return attend(q, k, v, valid, kernel=kernel, mask=mask).numpy()

    return run


def on_torchax(jit: bool) -> Run:
    def run(given: Tensors, mask: str) -> np.ndarray:
        env = torchax.default_env()

        def call(*arrays: jax.Array) -> jax.Array:
            with env, torch.no_grad():
                out = attend(*interop.torch_view(arrays), kernel="sdpa", mask=mask)
            return interop.jax_view(out)

        arrays = [jnp.asarray(x) for x in (given.query, given.key, given.value, given.valid)]
        with jax.default_matmul_precision("highest"), use_safe_attention(env):
            return np.asarray((jax.jit(call) if jit else call)(*arrays))

    return run


RUNS: dict[str, Run] = {
    "torch flex": on_torch("flex"),
    "torch sdpa": on_torch("sdpa"),
    "torchax eager": on_torchax(False),
    "torchax jit": on_torchax(True),
}
MASKS = ("exact", "none", "zero_kv", "zero_kv_rescaled")


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest) -> Run:
    return RUNS[request.param]


@pytest.mark.parametrize("mask", MASKS)
def test_every_row_is_what_float64_says(run: Run, given: Tensors, mask: str) -> None:
    some = slice(0, 2)  # the batch element without any key has tests of its own
    found = run(given, mask)
    assert found.shape == (B, L, H, D)
    assert found.dtype == np.float32
    assert found[some] == pytest.approx(oracle(given, mask)[some], abs=2e-6)


def test_the_masks_tell_apart(given: Tensors) -> None:
    """What the tests above rest on: on the valid rows the four are different numbers, but for the rescaled one."""
    rows = given.valid
    exact = oracle(given, "exact")[rows]
    for mask in ("none", "zero_kv"):
        assert np.abs(oracle(given, mask)[rows] - exact).max() > 1e-2
    assert oracle(given, "zero_kv_rescaled")[rows] == pytest.approx(exact, abs=1e-14)


def test_padded_queries_are_exactly_zero_under_the_exact_mask(run: Run, given: Tensors) -> None:
    found = run(given, "exact")
    assert (found[~given.valid] == 0.0).all()
    assert (found[given.valid] != 0.0).all()


@pytest.mark.parametrize("mask", MASKS)
def test_a_sequence_without_padding_is_the_same_under_every_mask(run: Run, given: Tensors, mask: str) -> None:
    assert run(given, mask)[1] == pytest.approx(oracle(given, "none")[1], abs=2e-6)


def test_zero_kv_takes_as_many_phantom_keys_as_there_are_padded(run: Run, given: Tensors) -> None:
    """With gain g of the output and Z the sum of exp(score) over the valid keys, n = Z (1 / g - 1)."""
    exact = masked_keys(given)[0]
    found = run(given, "zero_kv")[0].astype(np.float64)
    gain = (found * exact).sum(axis=-1) / (exact * exact).sum(axis=-1)  # [L, H]
    z = (np.exp(scores(given)[0]) * given.valid[0]).sum(axis=-1).T  # [L, H]
    assert z * (1 / gain - 1) == pytest.approx(np.full((L, H), L - VALID[0]), rel=1e-4)


def test_rescaling_restores_the_exact_mask(run: Run, given: Tensors) -> None:
    found = run(given, "zero_kv_rescaled")[:2]
    rows = given.valid[:2]
    assert found[rows] == pytest.approx(run(given, "exact")[:2][rows], abs=1e-6)


@pytest.mark.parametrize("mask", ["exact", "zero_kv", "zero_kv_rescaled"])
def test_a_row_without_any_key_is_zero_and_not_nan(run: Run, given: Tensors, mask: str) -> None:
    assert (run(given, mask)[2] == 0.0).all()


@pytest.mark.parametrize("mask", MASKS)
def test_both_programs_agree(given: Tensors, mask: str) -> None:
    rows = slice(0, 2)
    flex = RUNS["torch flex"](given, mask)[rows]
    for name in ("torch sdpa", "torchax eager", "torchax jit"):
        assert RUNS[name](given, mask)[rows] == pytest.approx(flex, abs=3e-6), name


@pytest.mark.parametrize("kernel", ["flex", "sdpa"])
@pytest.mark.parametrize("mask", MASKS)
def test_bfloat16_stays_bfloat16(given: Tensors, kernel: str, mask: str) -> None:
    q, k, v = (torch.from_numpy(x).bfloat16() for x in (given.query, given.key, given.value))
    out = attend(q, k, v, torch.from_numpy(given.valid), kernel=kernel, mask=mask)
    assert out.dtype == torch.bfloat16
    assert out[:2].float().numpy() == pytest.approx(oracle(given, mask)[:2], abs=5e-2)


def test_another_mask_of_the_same_shape_is_not_mistaken_for_the_last(given: Tensors) -> None:
    """Block masks are kept between calls: a mask that took a freed one's place must not get its blocks."""
    for count in (5, 11, 23):
        valid = np.zeros((B, L), bool)
        valid[:, :count] = True
        other = Tensors(given.query, given.key, given.value, valid)
        assert RUNS["torch flex"](other, "exact") == pytest.approx(oracle(other, "exact"), abs=2e-6)


def test_a_mask_written_to_in_place_is_seen(given: Tensors) -> None:
    q, k, v = (torch.from_numpy(x) for x in (given.query, given.key, given.value))
    valid = torch.ones(B, L, dtype=torch.bool)
    attend(q, k, v, valid, kernel="flex", mask="exact")
    valid[:, 20:] = False
    found = attend(q, k, v, valid, kernel="flex", mask="exact").numpy()
    other = Tensors(given.query, given.key, given.value, valid.numpy())
    assert found == pytest.approx(oracle(other, "exact"), abs=2e-6)


def test_long_queries_are_taken_in_chunks(given: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.models.attention.QUERY_CHUNK", 8)
    found = RUNS["torch sdpa"](given, "zero_kv_rescaled")[:2]
    assert found == pytest.approx(oracle(given, "zero_kv_rescaled")[:2], abs=2e-6)
