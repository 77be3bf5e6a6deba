"""A mistake with an attention mask, and phantom keys, are named from values alone, and only those that were made."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from parity.compare.detect.masks import mask_cause
from parity.compare.detect.phantoms import Phantoms, count_phantoms, mask_causes
from parity.golden import Record
from tests.support.made import tensor

MODULE = "blocks.0.attn.attention"
ROWS, KEYS, HEADS, DIM = 48, 24, 3, 16
Call = dict[str, np.ndarray]


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray | float = 0.0, extra: int = 0
) -> np.ndarray:
    """Attention of [rows, heads, dim] with `extra` keys of zeros, whose values are zeros."""
    logits = np.einsum("qhd,khd->qhk", q, k) / np.sqrt(q.shape[-1]) + bias
    top = np.maximum(logits.max(-1, keepdims=True), 0.0)
    weights = np.exp(logits - top)
    return np.einsum("qhk,khd->qhd", weights / (weights.sum(-1, keepdims=True) + extra * np.exp(-top)), v)


def draw(*shapes: tuple[int, int], seed: int = 0, shift: float = 0.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((rows, heads, DIM)) + shift for rows, heads in shapes]


def held(**named: np.ndarray) -> list[Record]:
    """Records of a call; `query`, `key` and `value` are inputs."""
    ports = {name: f"{'in.' if name != 'out' else ''}{name}" for name in named}
    return [tensor(f"{MODULE}:{ports[n]}", x[None].astype(np.float32), held=True) for n, x in named.items()]


# --- masks -----------------------------------------------------------------------------------------------------


def only(reads: np.ndarray) -> np.ndarray:
    return np.where(reads, 0.0, -1e9)


def call_of(reads: np.ndarray, rows: int = ROWS) -> Call:
    """A call under a mask, in float32 as it is stored."""
    keys = len(reads)
    q, k, v = (x.astype(np.float32).astype(np.float64) for x in draw((rows, HEADS), (keys, HEADS), (keys, HEADS)))
    return {"in.query": q, "in.key": k, "in.value": v, "out": attention(q, k, v, only(reads))}


def again(call: Call, bias: np.ndarray | float) -> np.ndarray:
    return attention(call["in.query"], call["in.key"], call["in.value"], bias)


READS = np.arange(KEYS) % 3 != 1
TAIL = np.arange(KEYS) < KEYS - 5
CAUSAL = only(np.tri(KEYS, dtype=bool))[:, None]
CALL, SQUARE = call_of(READS), call_of(np.ones(KEYS, bool), rows=KEYS)
UNDER_CAUSAL = {**SQUARE, "out": again(SQUARE, np.maximum(CAUSAL + only(TAIL), -1e9))}
LITTLE = {**CALL, "in.query": CALL["in.query"] * 8, "in.key": CALL["in.key"].copy()}  # the masked keys weigh nothing
LITTLE["in.query"][:, :, 0], LITTLE["in.key"][:, :, 0] = 40, np.where(READS, 4, 0)[:, None]
LITTLE["out"] = again(LITTLE, only(READS))
DOUBLE = {**CALL, "out": again({**CALL, "in.query": 2 * CALL["in.query"]}, only(READS))}
BY_HEAD = {**CALL, "out": again(CALL, only(np.stack([READS, ~READS, READS])))}


@pytest.mark.parametrize(
    ("call", "out", "candidate"),
    [
        (CALL, again(CALL, 0.0), "none"),
        (CALL, again(CALL, READS.astype(np.float64)), "added"),
        (CALL, again(CALL, only(~READS)), "inverted"),
        (CALL, again(CALL, only(np.arange(KEYS) < READS.sum())), "first"),
        (CALL, again(CALL, only(np.arange(KEYS) >= KEYS - READS.sum())), "last"),
        (SQUARE, again(SQUARE, CAUSAL), ""),  # causal is no mask of keys
        (UNDER_CAUSAL, again(UNDER_CAUSAL, 0.0), "none"),
        (UNDER_CAUSAL, again(UNDER_CAUSAL, only(TAIL)), ""),
        (LITTLE, 1.0005 * LITTLE["out"], None),  # a mask of little effect explains no other error
        (CALL, again(CALL, only(np.arange(KEYS) % 5 != 2)), None),  # some other mask, bias, scale
        (CALL, again(CALL, np.random.default_rng(1).standard_normal(KEYS)), None),
        (CALL, 1.01 * CALL["out"], None),
        (DOUBLE, again(CALL, 0.0), None),  # references that are no attention under one mask
        (BY_HEAD, again(CALL, 0.0), None),
        ({**CALL, "in.key": CALL["in.key"] * np.nan}, CALL["out"], None),
        (CALL, CALL["out"][:-1], None),
    ],
)
def test_a_mistaken_mask_is_named(call: Call, out: np.ndarray, candidate: str | None) -> None:
    found = mask_cause(call, out.astype(np.float32), MODULE)
    assert (None if found is None else found.candidate) == candidate
    assert found is None or found.setting == ("attention.mask" if candidate else "")


def test_a_mask_is_read_from_records_with_grouped_keys() -> None:
    q, k, v = draw((ROWS, HEADS), (KEYS, 1), (KEYS, 1))
    wide = [np.repeat(x, HEADS, axis=1) for x in (k, v)]
    reference = held(query=q, key=k, value=v, out=attention(q, *wide, only(READS)))
    (found,) = mask_causes(reference, held(out=attention(q, *wide)), MODULE)
    assert found.candidate == "none"


# --- phantom keys ----------------------------------------------------------------------------------------------

IMAGE, TEXT = 40, 24


def counted(reference: list[Record], candidate: list[Record]) -> tuple[Phantoms, ...]:
    return count_phantoms(reference, candidate, MODULE)


def joint(valid: int, phantoms: int, seed: int = 0) -> tuple[list[Record], list[Record]]:
    """A joint attention in parts, whose text is padded to TEXT tokens of zeros."""
    q, k, v = draw(*[(IMAGE + TEXT, HEADS)] * 3, seed=seed)
    keep = np.arange(IMAGE + TEXT) < IMAGE + valid
    q, k, v = (x * keep[:, None, None] for x in (q, k, v))
    ref, out = (attention(q, k[keep], v[keep], extra=n) * keep[:, None, None] for n in (0, phantoms))

    def parts(port: str, x: np.ndarray) -> list[Record]:
        cut = {"image": x[None, :IMAGE], "text": x[None, IMAGE:]}
        return [tensor(f"{MODULE}:{port}@{name}", y.astype(np.float32), held=True) for name, y in cut.items()]

    return [*parts("in.query", q), *parts("in.key", k), *parts("out", ref)], parts("out", out)


@pytest.mark.parametrize(
    ("valid", "phantoms", "meaning", "block"),
    [
        (10, 14, "its 14 padded text tokens", None),
        (1, 23, "its 23 padded text tokens", None),
        (24, 64, "what fills 64 tokens to blocks of 128", 128),
        (24, 5, "no count that is known", None),
    ],
)
def test_phantom_keys_are_counted_exactly_and_explained(valid: int, phantoms: int, meaning: str, block: int) -> None:
    (found,) = counted(*joint(valid, phantoms))
    assert (found.is_certain, found.padded, found.block) == (True, TEXT - valid, block)
    assert found.count == pytest.approx(phantoms, rel=1e-3)
    assert meaning in found.meaning()


def test_another_fault_is_no_phantom_key() -> None:
    reference, same = joint(10, 0)
    scaled = [tensor(r.key.site, np.asarray(r.value) * 0.99, held=True) for r in reference if r.key.port[:3] == "out"]
    for candidate in (same, joint(10, 14, seed=1)[1], scaled):  # none, another draw, half a key
        (found,) = counted(reference, candidate)
        assert not found.is_certain
    q, k = draw((IMAGE, 4), (IMAGE, 3))
    misfit = held(query=q, key=k, out=q)
    assert counted([], []) == counted(misfit, misfit) == ()


def test_tokens_of_the_candidate_count_if_it_has_other_rows() -> None:
    """58 tokens of its own, 6 of them padded, filled up to 128: 6 + 70."""
    reference, candidate = joint(12, 6 + 70)
    (found,) = counted(reference, [dataclasses.replace(r, shape=(1, 58, HEADS, DIM)) for r in candidate])
    assert (found.is_certain, round(found.count), found.padded, found.tokens) == (True, 76, 6, 58)
    assert found.meaning() == "its 6 padded text tokens and the 70 that fill 58 tokens to blocks of 128"
    joined = tensor(f"{MODULE}:out", np.concatenate([np.asarray(r.value) for r in candidate], axis=1), held=True)
    (same,) = counted(reference, [joined])
    assert (same.is_certain, round(same.count)) == (True, 76)


def test_keys_whose_mean_was_subtracted_are_counted_with_their_phantoms() -> None:
    """K-smooth subtracts the keys' mean: no softmax sees that, but the phantoms' logit of 0 is another among them."""
    q, k = draw((IMAGE, HEADS), (IMAGE, HEADS), seed=3, shift=1.0)
    (v,) = draw((IMAGE, HEADS), seed=4)
    out = attention(q, k - k.mean(axis=0), v, extra=88)
    (found,) = counted(held(query=q, key=k, out=attention(q, k, v)), held(out=out))
    assert (found.is_certain, round(found.count), found.smooth) == (True, 88, True)
    # Zeroed keys too.
    q, k, v = draw(*[(IMAGE + TEXT, HEADS)] * 3, seed=4, shift=0.5)
    keep = np.arange(IMAGE + TEXT) < IMAGE + 18
    zeroed = k * keep[:, None, None]
    out = attention(q, zeroed - zeroed.mean(axis=0), v * keep[:, None, None], extra=64)
    (found,) = counted(held(query=q, key=zeroed, out=attention(q, k[keep], v[keep])), held(out=out))
    assert (found.is_certain, round(found.count), found.smooth) == (True, 70, True)
    assert "its 6 padded text tokens and the 64 that fill" in found.meaning()


def test_padded_keys_of_a_recording_are_known_by_their_queries() -> None:
    """A recording keeps them as the model has them; the reference's output of a query without a key is zero."""
    q, k, v = draw(*[(IMAGE + TEXT, HEADS)] * 3, seed=5)
    keep = np.arange(IMAGE + TEXT) < IMAGE + 18
    ref, out = attention(q, k[keep], v[keep]) * keep[:, None, None], attention(q, k[keep], v[keep], extra=6)
    (found,) = counted(held(query=q, key=k, out=ref), held(out=out))
    assert (found.is_certain, round(found.count), found.padded) == (True, 6, 6)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_recording_with_other_rows_is_read_by_its_queries(missing: int) -> None:
    """The reference keeps a stream of padding that the candidate leaves out, whose text stands in another order."""
    q, k, v = draw(*[(IMAGE + TEXT, HEADS)] * 3, seed=5)
    valid = np.arange(IMAGE + TEXT) < IMAGE + 10
    ref = attention(q, k[valid], v[valid]) * valid[:, None, None]
    out = attention(q, k[valid], v[valid], extra=6 + 72)
    # 56 tokens of its own, 6 of them padded, filled up to 128; valid text rows in reverse.
    order = np.concatenate([np.arange(IMAGE), np.arange(IMAGE, IMAGE + 10)[::-1], IMAGE + 10 + np.arange(6)])[missing:]
    noisy = q[order] * (1 + 1e-3 * draw((len(order), HEADS), seed=6)[0])
    reference = held(query=q, key=k, out=ref)
    found = counted(reference, held(query=noisy, out=out[order]))
    assert counted(reference, held(out=out[order])) == ()
    if missing:
        assert found == ()  # a row that the reference computes has no counterpart
    else:
        assert [(f.is_certain, round(f.count), f.padded, f.tokens) for f in found] == [(True, 78, 6, 56)]


def test_keys_of_grouped_attention_are_those_that_each_head_reads() -> None:
    q, k, v = draw((IMAGE, 4), (IMAGE, 2), (IMAGE, 2), seed=5)
    wide = [np.repeat(x, 2, axis=1) for x in (k, v)]
    reference = held(query=q, key=k, out=attention(q, *wide))
    (found,) = counted(reference, held(out=attention(q, *wide, extra=24)))
    assert (found.is_certain, round(found.count)) == (True, 24)
