"""Phantom keys are counted exactly, and only where there are any."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from parity.compare.detect.phantoms import count_phantoms
from parity.golden import Record
from tests.support.made import tensor

MODULE = "blocks.0.attn.attention"
IMAGE, TEXT, HEADS, DIM = 40, 24, 3, 16


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, phantoms: int = 0) -> np.ndarray:
    z = np.exp(np.einsum("qhd,khd->hqk", q, k) / np.sqrt(DIM))
    return np.einsum("hqk,khd->qhd", z / (z.sum(-1, keepdims=True) + phantoms), v)


def records(valid: int, phantoms: int, seed: int = 0) -> tuple[list[Record], list[Record]]:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((IMAGE + TEXT, HEADS, DIM)) for _ in range(3))
    keep = np.arange(IMAGE + TEXT) < IMAGE + valid
    q, k, v = (x * keep[:, None, None] for x in (q, k, v))
    ref = attention(q, k[keep], v[keep]) * keep[:, None, None]
    out = attention(q, k[keep], v[keep], phantoms) * keep[:, None, None]

    def parts(port: str, x: np.ndarray) -> list[Record]:
        cut = {"image": x[None, :IMAGE], "text": x[None, IMAGE:]}
        return [tensor(f"{MODULE}:{port}@{name}", y.astype(np.float32), held=True) for name, y in cut.items()]

    return [*parts("in.query", q), *parts("in.key", k), *parts("out", ref)], parts("out", out)


@pytest.mark.parametrize(("valid", "phantoms"), [(10, 14), (1, 23), (24, 64), (24, 1)])
def test_the_count_is_exact(valid: int, phantoms: int) -> None:
    (found,) = count_phantoms(*records(valid, phantoms), MODULE)
    assert found.is_certain
    assert found.count == pytest.approx(phantoms, rel=1e-3)
    assert found.padded == TEXT - valid


def test_the_count_is_matched_with_padding_and_blocks() -> None:
    (padded,) = count_phantoms(*records(10, 14), MODULE)
    assert padded.meaning() == "its 14 padded text tokens"
    assert padded.block is None
    (block,) = count_phantoms(*records(24, 64), MODULE)
    assert block.meaning() == "what fills 64 tokens to blocks of 128"
    (odd,) = count_phantoms(*records(24, 5), MODULE)
    assert "no count that is known" in odd.meaning()


def test_keys_that_were_smoothed_before_they_were_padded() -> None:
    """K-smooth subtracts the keys' mean: no softmax sees that, but the phantoms' logit of 0 is another among them."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((IMAGE, HEADS, DIM)) + shift for shift in (1.0, 1.0, 0.0))
    out = attention(q, k - k.mean(axis=0), v, 88)
    reference = [tensor(f"{MODULE}:{port}", x[None].astype(np.float32), held=True)
                 for port, x in (("in.query", q), ("in.key", k), ("out", attention(q, k, v)))]  # fmt: skip
    candidate = [tensor(f"{MODULE}:out", out[None].astype(np.float32), held=True)]
    (found,) = count_phantoms(reference, candidate, MODULE)
    assert (found.is_certain, round(found.count), found.smooth) == (True, 88, True)
    assert found.meaning() == "what fills 40 tokens to blocks of 128, with the keys' mean subtracted"


def test_zeroed_text_and_what_fills_a_block_are_counted_together_of_the_candidates_own_tokens() -> None:
    """58 tokens of its own, 6 of them padded, filled up to 128: 6 + 70."""
    reference, candidate = records(12, 6 + 70)
    shorter = [dataclasses.replace(r, shape=(1, 58, HEADS, DIM)) for r in candidate]
    (found,) = count_phantoms(reference, shorter, MODULE)
    assert (found.is_certain, round(found.count), found.padded, found.tokens) == (True, 76, 6, 58)
    assert found.meaning() == "its 6 padded text tokens and the 70 that fill 58 tokens to blocks of 128"
    assert found.block == 128
    joined = tensor(f"{MODULE}:out", np.concatenate([np.asarray(r.value) for r in candidate], axis=1), held=True)
    (same,) = count_phantoms(reference, [joined], MODULE)
    assert (same.is_certain, round(same.count)) == (True, 76)


def test_zeroed_keys_whose_mean_is_subtracted_are_counted_beside_what_fills_a_block() -> None:
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((IMAGE + TEXT, HEADS, DIM)) + shift for shift in (0.5, 0.5, 0.0))
    keep = np.arange(IMAGE + TEXT) < IMAGE + 18
    zeroed, gone = k * keep[:, None, None], v * keep[:, None, None]
    smooth = zeroed - zeroed.mean(axis=0)
    filled = [np.concatenate([x, np.zeros((64, HEADS, DIM))]) for x in (smooth, gone)]
    made = {"in.query": q, "in.key": zeroed, "out": attention(q, k[keep], v[keep])}
    reference = [tensor(f"{MODULE}:{port}", x[None].astype(np.float32), held=True) for port, x in made.items()]
    out = tensor(f"{MODULE}:out", attention(q, *filled)[None].astype(np.float32), held=True)
    (found,) = count_phantoms(reference, [out], MODULE)
    assert (found.is_certain, round(found.count), found.smooth) == (True, 70, True)
    assert "its 6 padded text tokens and the 64 that fill 64 tokens to blocks of 128" in found.meaning()


def test_padded_keys_of_a_recording_are_known_by_their_queries() -> None:
    """A recording keeps them as the model has them; the reference's output of a query without a key is zero."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((IMAGE + TEXT, HEADS, DIM)) for _ in range(3))
    keep = np.arange(IMAGE + TEXT) < IMAGE + 18
    ref, out = attention(q, k[keep], v[keep]) * keep[:, None, None], attention(q, k[keep], v[keep], 6)
    made = {"in.query": q, "in.key": k, "out": ref}
    reference = [tensor(f"{MODULE}:{port}", x[None].astype(np.float32), held=True) for port, x in made.items()]
    (found,) = count_phantoms(reference, [tensor(f"{MODULE}:out", out[None].astype(np.float32), held=True)], MODULE)
    assert (found.is_certain, round(found.count), found.padded) == (True, 6, 6)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_recording_with_other_rows_is_read_by_its_queries(missing: int) -> None:
    """The reference keeps a stream of padding that the candidate leaves out, whose text stands in another order."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((IMAGE + TEXT, HEADS, DIM)) for _ in range(3))
    valid = np.arange(IMAGE + TEXT) < IMAGE + 10
    ref = attention(q, k[valid], v[valid]) * valid[:, None, None]
    out = attention(q, k[valid], v[valid], 6 + 72)
    # 56 tokens of its own, 6 of them padded, filled up to 128; valid text rows in reverse.
    order = np.concatenate([np.arange(IMAGE), np.arange(IMAGE, IMAGE + 10)[::-1], IMAGE + 10 + np.arange(6)])[missing:]
    noisy = q[order] * (1 + 1e-3 * rng.standard_normal((len(order), HEADS, DIM)))

    def held(named: dict[str, np.ndarray]) -> list[Record]:
        return [tensor(f"{MODULE}:{port}", x[None].astype(np.float32), held=True) for port, x in named.items()]

    reference = held({"in.query": q, "in.key": k, "out": ref})
    found = count_phantoms(reference, held({"in.query": noisy, "out": out[order]}), MODULE)
    if missing:
        assert found == (), "a row that the reference computes has no counterpart"
        return
    (counted,) = found
    assert (counted.is_certain, round(counted.count), counted.padded, counted.tokens) == (True, 78, 6, 56)
    assert counted.meaning() == "its 6 padded text tokens and the 72 that fill 56 tokens to blocks of 128"
    assert count_phantoms(reference, held({"out": out[order]}), MODULE) == ()


def test_no_phantoms_where_there_are_none_or_where_it_is_another_fault() -> None:
    reference, same = records(10, 0)
    (none,) = count_phantoms(reference, same, MODULE)
    assert not none.is_certain
    _, other = records(10, 14, seed=1)
    (wrong,) = count_phantoms(reference, other, MODULE)
    assert not wrong.is_certain


def test_a_half_key_is_no_key() -> None:
    reference, _ = records(24, 0)
    scaled = [tensor(r.key.site, np.asarray(r.value) * 0.99, held=True) for r in reference if r.key.port[:3] == "out"]
    (found,) = count_phantoms(reference, scaled, MODULE)
    assert not found.is_certain


def test_nothing_without_values() -> None:
    assert count_phantoms([], [], MODULE) == ()


def test_keys_of_grouped_attention_are_those_that_each_head_reads() -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((IMAGE, heads, DIM)) for heads in (4, 2, 2))
    wide = [np.repeat(x, 2, axis=1) for x in (k, v)]
    values = {"in.query": q, "in.key": k, "out": attention(q, *wide)}
    reference = [tensor(f"{MODULE}:{port}", x[None].astype(np.float32), held=True) for port, x in values.items()]
    candidate = [tensor(f"{MODULE}:out", attention(q, *wide, 24)[None].astype(np.float32), held=True)]
    (found,) = count_phantoms(reference, candidate, MODULE)
    assert (found.is_certain, round(found.count)) == (True, 24)


def test_keys_that_fit_no_head_are_not_counted() -> None:
    q, k = np.ones((IMAGE, 4, DIM)), np.ones((IMAGE, 3, DIM))
    values = {"in.query": q, "in.key": k, "out": q}
    records = [tensor(f"{MODULE}:{port}", x[None].astype(np.float32), held=True) for port, x in values.items()]
    assert count_phantoms(records, records, MODULE) == ()
