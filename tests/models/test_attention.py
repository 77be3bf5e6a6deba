"""Joint attention in every kernel and mask, on torch and under torchax, held to numpy in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention
import torchax
from torchax import interop

from parity.models.attention import AttentionSettings, Mark, Visible, attend, in_chunks, sdpa, splash_block
from parity.paths.jax.mended import mended

B, L, H, D = 3, 37, 2, 16
VALID = (29, 37, 0)
"""Valid keys of each batch element: some, all, none."""

Run = Callable[..., np.ndarray]
"""run(given, mask, mark=None, **settings of the attention)."""


@dataclass(frozen=True)
class Tensors:
    """float32 query, key, value [B, L, H, D] and bool valid [B, L]."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    valid: np.ndarray


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flex attention as a reference calls it (`parity.paths.reference.torch_scope`)."""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


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


def weighted(logits: np.ndarray, values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Attention over keys of which each counts `weight` [B, L or 1, keys] (0: masked); rows without any key are 0."""
    w = np.exp(logits - logits.max(axis=-1, keepdims=True)) * weight[:, None]
    total = w.sum(axis=-1, keepdims=True)
    w = np.divide(w, total, out=np.zeros_like(w), where=total > 0)
    return np.einsum("bhqk,bkhd->bqhd", w, values.astype(np.float64))


def masked_keys(given: Tensors) -> np.ndarray:
    """Every query over the valid keys."""
    return weighted(scores(given), given.value, given.valid[:, None].astype(float))


def smoothing(given: Tensors, mask: str) -> np.ndarray:
    """What smoothing takes from every logit of a query, [B, H, L, 1]: its product with the mean of the keys it gets."""
    keep = given.valid[:, :, None, None] if mask.startswith("zero_kv") else 1.0
    mean = (given.key * keep).astype(np.float64).mean(axis=1)
    return np.einsum("bqhd,bhd->bhq", given.query.astype(np.float64), mean)[..., None] / np.sqrt(D)


def oracle(given: Tensors, mask: str, *, added: int = 0, smooth: bool = False) -> np.ndarray:
    """The definition, in float64.

    Args:
        added: keys of an unmasked filling. smooth: whether the mean key is subtracted, which only they can tell.
    """
    ids = np.broadcast_to(given.valid[:1], (B, L)) if mask == "segment_ids_first_row" else given.valid
    logits, values = scores(given), given.value
    weight, of_added = np.ones((B, L, L)), np.ones((B, L, added))
    if mask in ("exact", "zero_kv_rescaled"):
        weight = weight * ids[:, None]
    elif mask == "zero_kv":
        logits, values = np.where(ids[:, None, None], logits, 0.0), values * ids[:, :, None, None]
    elif mask != "none":
        weight, of_added = ids[:, :, None] == ids[:, None], of_added * ids[:, :, None]
    if smooth:
        logits = logits - smoothing(given, mask)
    logits = np.pad(logits, ((0, 0), (0, 0), (0, 0), (0, added)))
    values = np.pad(values, ((0, 0), (0, added), (0, 0), (0, 0)))
    out = weighted(logits, values, np.concatenate([weight, of_added], axis=-1))
    return out * ids[:, :, None, None] if mask == "exact" else out


def ignore(name: str) -> None:
    pass


def on_torch(kernel: str) -> Run:
    def run(given: Tensors, mask: str, mark: Mark = ignore, **more: Any) -> np.ndarray:
        q, k, v, valid = (torch.from_numpy(x) for x in (given.query, given.key, given.value, given.valid))
        with torch.no_grad():
            return attend(q, k, v, valid, AttentionSettings(kernel, mask, **more), mark).numpy()

    return run


def on_torchax(kernel: str, jit: bool) -> Run:
    def run(given: Tensors, mask: str, mark: Mark = ignore, **more: Any) -> np.ndarray:
        env = torchax.default_env()

        def call(*arrays: jax.Array) -> jax.Array:
            with env, torch.no_grad():
                out = attend(*interop.torch_view(arrays), AttentionSettings(kernel, mask, **more), mark)
            return interop.jax_view(out)

        arrays = [jnp.asarray(x) for x in (given.query, given.key, given.value, given.valid)]
        with jax.default_matmul_precision("highest"), mended(env):
            return np.asarray((jax.jit(call) if jit else call)(*arrays))

    return run


def once(run: Run) -> Run:
    """The same, each question answered once: compiling takes longer than all else here."""
    answers: dict[Any, tuple[Tensors, np.ndarray]] = {}

    def known(given: Tensors, mask: str, mark: Mark | None = None, **more: Any) -> np.ndarray:
        if mark is not None:
            return run(given, mask, mark, **more)
        key = id(given), mask, tuple(sorted(more.items()))
        if key not in answers:
            answers[key] = given, run(given, mask, **more)
        return answers[key][1]

    return known


RUNS: dict[str, Run] = {
    "torch flex": on_torch("flex"),
    "torch sdpa": on_torch("sdpa"),
    "torchax eager": once(on_torchax("sdpa", False)),
    "torchax jit": once(on_torchax("sdpa", True)),
    "splash": once(on_torchax("splash", True)),
}
MASKS = ("exact", "none", "zero_kv", "zero_kv_rescaled", "segment_ids", "segment_ids_first_row")
SOME = slice(0, 2)
"""Batch elements that have a valid key."""


def every(*fast: str, but: str = "") -> pytest.MarkDecorator:
    """Each run; only these in the fast tier, because compiling takes longer than all else here."""
    runs = [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in RUNS if n != but]
    return pytest.mark.parametrize("name", runs)


@every("torch flex", "torch sdpa", "torchax jit", "splash")
@pytest.mark.parametrize("mask", MASKS)
def test_every_row_is_that_of_float64(name: str, given: Tensors, mask: str) -> None:
    found = RUNS[name](given, mask)
    assert (found.shape, found.dtype) == ((B, L, H, D), np.float32)
    assert found[SOME] == pytest.approx(oracle(given, mask)[SOME], abs=2e-6)
    if mask in ("exact", "zero_kv", "zero_kv_rescaled"):
        assert (found[2] == 0.0).all()  # rows without any key are zero, not NaN
    if mask == "exact":
        assert ((found == 0.0) == ~given.valid[:, :, None, None]).all()  # padded queries are exactly zero


def test_the_oracle_distinguishes_the_masks(given: Tensors) -> None:
    """What the test above rests on: on valid rows faults are different numbers, and what is no fault is the same."""
    rows = given.valid
    exact = oracle(given, "exact")[rows]
    for mask in ("none", "zero_kv", "segment_ids_first_row"):
        assert np.abs(oracle(given, mask)[rows] - exact).max() > 1e-2
    for mask in ("zero_kv_rescaled", "segment_ids"):
        assert oracle(given, mask)[rows] == pytest.approx(exact, abs=1e-14)
    for mask in MASKS[:-1]:  # without padding every mask is the same
        assert oracle(given, mask)[1] == pytest.approx(oracle(given, "none")[1], abs=1e-14)
    # With gain g of the output and Z the sum of exp(score) over the valid keys, zero_kv has Z (1 / g - 1) phantom keys.
    found, whole = oracle(given, "zero_kv")[0], masked_keys(given)[0]
    gain = (found * whole).sum(axis=-1) / (whole * whole).sum(axis=-1)  # [L, H]
    z = (np.exp(scores(given)[0]) * given.valid[0]).sum(axis=-1).T
    assert z * (1 / gain - 1) == pytest.approx(np.full((L, H), L - VALID[0]), rel=1e-4)


def test_another_mask_is_not_mistaken_for_the_last(given: Tensors) -> None:
    """Block masks are cached: a mask written to, or one that took a freed one's place, must not get its blocks."""
    q, k, v = (torch.from_numpy(x) for x in (given.query, given.key, given.value))
    for count, is_new in ((5, True), (11, True), (23, False)):
        if is_new:
            valid = torch.ones(B, L, dtype=torch.bool)
        valid[:, count:] = False
        valid[:, :count] = True
        other = Tensors(given.query, given.key, given.value, valid.numpy())
        found = attend(q, k, v, valid, AttentionSettings("flex", "exact")).numpy()
        assert found == pytest.approx(oracle(other, "exact"), abs=2e-6)


def test_long_queries_are_taken_in_chunks(given: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.models.attention.QUERY_CHUNK", 8)
    found = RUNS["torch sdpa"](given, "zero_kv_rescaled")[SOME]
    assert found == pytest.approx(oracle(given, "zero_kv_rescaled")[SOME], abs=2e-6)


@pytest.mark.parametrize("chunk", [8, 64])
@pytest.mark.parametrize("segments", [False, True], ids=["keys", "segments"])
def test_attention_in_chunks_is_attention(
    given: Tensors, chunk: int, segments: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU is given in float64, of which it has no fused kernel."""
    monkeypatch.setattr("parity.models.attention.QUERY_CHUNK", chunk)
    q, k, v = (torch.from_numpy(x).double().transpose(1, 2) for x in (given.query, given.key, given.value))
    valid = torch.from_numpy(given.valid)
    visible = Visible(valid, valid, segments)
    whole = sdpa(q, k, v, visible)
    torch.testing.assert_close(in_chunks(q, k, v, visible), whole, rtol=0, atol=1e-12)


# --- blocks, smoothing, the softmax's dtype ------------------------------------------------------------------------


@every("torch flex")
@pytest.mark.parametrize(
    ("mask", "smooth"),
    [("exact", False), ("none", True), ("segment_ids", False), ("zero_kv", False), ("zero_kv_rescaled", True)],
)
def test_an_unmasked_filling_adds_keys_of_logit_zero(name: str, given: Tensors, mask: str, smooth: bool) -> None:
    found = RUNS[name](given, mask, block_kv=128, block_padding="unmasked", k_smooth=smooth)
    assert found[SOME] == pytest.approx(oracle(given, mask, added=128 - L, smooth=smooth)[SOME], abs=2e-6)


@pytest.mark.parametrize(("block", "added"), [(16, 11), (37, 0), (1, 0), (50, 13)])
def test_the_filling_is_up_to_whole_blocks(given: Tensors, block: int, added: int) -> None:
    found = RUNS["torch sdpa"](given, "exact", block_kv=block, block_padding="unmasked")
    assert found == pytest.approx(oracle(given, "exact", added=added), abs=2e-6)


@every("torch sdpa")
@pytest.mark.parametrize("mask", ["exact", "zero_kv", "zero_kv_rescaled"])
def test_softmax_does_not_see_a_smoothed_key(name: str, given: Tensors, mask: str) -> None:
    offset = Tensors(given.query, given.key + np.float32(0.3), given.value, given.valid)
    assert RUNS[name](offset, mask, k_smooth=True)[SOME] == pytest.approx(oracle(offset, mask)[SOME], abs=5e-6)


@pytest.mark.parametrize("name", ["torch sdpa", pytest.param("splash", marks=pytest.mark.slow)])
def test_smoothing_is_what_keeps_large_keys_precise(given: Tensors, name: str) -> None:
    """Or the test above would hold for a setting that does nothing."""
    large = Tensors(given.query, given.key + np.float32(1000.0), given.value, given.valid)
    true = oracle(large, "none")
    errors = [np.abs(RUNS[name](large, "none", k_smooth=smooth) - true).max() for smooth in (False, True)]
    assert errors[1] < errors[0] / 2


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(jnp.bfloat16).astype(np.float64)


@every("torch flex", "torch sdpa", but="splash")
@pytest.mark.parametrize("mask", ["exact", "zero_kv_rescaled"])
def test_a_softmax_in_bfloat16_rounds_scores_and_weights(given: Tensors, name: str, mask: str) -> None:
    valid = given.valid[SOME]
    s, values = scores(given)[SOME], given.value[SOME].astype(np.float64)
    if mask == "zero_kv_rescaled":
        s, values = rounded(np.where(valid[:, None, None], s, 0.0)), values * valid[:, :, None, None]
    else:
        s = np.where(valid[:, None, None, :], rounded(s), -np.inf)
    top = s.max(axis=-1, keepdims=True)
    w = np.exp(s - top)
    total = w.sum(axis=-1, keepdims=True)
    out = np.einsum("bhqk,bkhd->bqhd", rounded(w / total), values)
    if mask == "zero_kv_rescaled":
        share = 1.0 - (~valid).sum(axis=1)[:, None, None] * np.exp(-(top + np.log(total)))[..., 0]
        out = out / share.transpose(0, 2, 1)[..., None]
    found = RUNS[name](given, mask, softmax_dtype="bfloat16")[SOME]
    # A score that stands between two bfloat16 numbers may fall to either side; few do.
    assert np.median(np.abs(found - out)[valid]) < 1e-7
    assert np.abs(found - out)[valid].max() < 1e-2
    assert 5e-4 < np.abs(oracle(given, mask)[SOME] - out)[valid].mean() < 1e-2


# --- splash alone --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long() -> Tensors:
    """More rows than a block, and no whole number of blocks."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((B, 300, H, D)).astype(np.float32) for _ in range(3))
    return Tensors(1.5 * q, k, v, rng.random((B, 300)) < 0.7)


@pytest.mark.slow
@pytest.mark.parametrize(("block_q", "block_kv"), [(0, 0), (64, 256), (304, 384)])
@pytest.mark.parametrize("mask", ["none", "zero_kv_rescaled"])
def test_blocks_change_nothing(long: Tensors, mask: str, block_q: int, block_kv: int) -> None:
    expected = RUNS["torch sdpa"](long, mask)
    found = RUNS["splash"](long, mask, block_q=block_q, block_kv=block_kv)
    assert found == pytest.approx(expected, abs=3e-6)


@pytest.mark.slow
def test_splash_on_a_mesh_is_splash_on_one_device() -> None:
    """Batch, heads and queries over the devices, where they divide and where they do not."""
    program = Path(__file__).with_name("splash_on_meshes.py")
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["ok"] * 2), done.stderr


@pytest.mark.parametrize(("tokens", "block"), [(1, 128), (32768, 128), (32769, 256), (113585, 512)])
def test_splash_s_own_blocks_follow_from_the_sequence(tokens: int, block: int) -> None:
    assert splash_block(tokens) == block
    filled = AttentionSettings("splash", block_padding="unmasked").added_keys(tokens) + tokens
    assert filled % block == 0
    assert splash_block(filled) == block
