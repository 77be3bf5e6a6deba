"""A mistake with an attention mask is named from values alone, and only the one that was made."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.detect.masks import mask_cause
from parity.compare.detect.phantoms import mask_causes
from tests.support.made import tensor

MODULE = "blocks.0.attn2.attention"
ROWS, KEYS, HEADS, DIM = 48, 24, 3, 16


def attention(call: dict[str, np.ndarray], bias: np.ndarray | float) -> np.ndarray:
    logits = np.einsum("qhd,khd->qhk", call["in.query"], call["in.key"]) / np.sqrt(DIM) + bias
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("qhk,khd->qhd", weights / weights.sum(-1, keepdims=True), call["in.value"])


def only(reads: np.ndarray) -> np.ndarray:
    return np.where(reads, 0.0, -1e9)


def made(reads: np.ndarray, rows: int = ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    """A call under a mask, in float32 as it is held."""
    rng = np.random.default_rng(seed)
    keys = len(reads)
    shapes = {"in.query": (rows, HEADS, DIM), "in.key": (keys, HEADS, DIM), "in.value": (keys, HEADS, DIM)}
    call = {port: rng.standard_normal(shape).astype(np.float32).astype(np.float64) for port, shape in shapes.items()}
    return call | {"out": attention(call, only(reads)).astype(np.float32).astype(np.float64)}


READS = np.arange(KEYS) % 3 != 1
MISTAKES = {
    "none": 0.0,
    "added": READS.astype(np.float64),
    "inverted": only(~READS),
    "first": only(np.arange(KEYS) < READS.sum()),
    "last": only(np.arange(KEYS) >= KEYS - READS.sum()),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_named(mistake: str) -> None:
    call = made(READS)
    found = mask_cause(call, attention(call, MISTAKES[mistake]).astype(np.float32), MODULE)
    assert found is not None
    assert (found.setting, found.reference, found.candidate) == ("attention.mask", "exact", mistake)


def test_attention_that_is_causal_is_no_mask_of_keys() -> None:
    call = made(np.ones(KEYS, dtype=bool), rows=KEYS)
    found = mask_cause(call, attention(call, only(np.tri(KEYS, dtype=bool))[:, None]), MODULE)
    assert found is not None
    assert found.setting == ""
    assert "causal" in found.cause


def test_a_causal_reference_shows_what_was_lost() -> None:
    reads = np.arange(KEYS) < KEYS - 5
    call = made(reads, rows=KEYS)
    causal = only(np.tri(KEYS, dtype=bool))[:, None]
    call["out"] = attention(call, np.maximum(causal + only(reads), -1e9))
    told = [mask_cause(call, attention(call, bias), MODULE) for bias in (0.0, only(reads))]
    assert [(c.setting, c.candidate) for c in told if c is not None] == [("attention.mask", "none"), ("", "")]


def test_a_mask_of_little_effect_explains_no_other_error() -> None:
    call = made(READS)
    call["in.query"] *= 8
    call["in.query"][:, :, 0], call["in.key"][:, :, 0] = 40, np.where(READS, 4, 0)[:, None]  # the masked weigh nothing
    call["out"] = attention(call, only(READS))
    assert mask_cause(call, 1.0005 * call["out"], MODULE) is None


@pytest.mark.parametrize(
    "other",
    [
        only(np.arange(KEYS) % 5 != 2),  # some other mask
        np.random.default_rng(1).standard_normal(KEYS),  # some other bias
    ],
)
def test_another_error_is_not_named(other: np.ndarray) -> None:
    call = made(READS)
    assert mask_cause(call, attention(call, other), MODULE) is None
    assert mask_cause(call, 1.01 * call["out"], MODULE) is None


def test_a_reference_that_is_no_attention_under_one_mask_names_nothing() -> None:
    call = made(READS)
    scaled = {**call, "out": attention({**call, "in.query": 2 * call["in.query"]}, only(READS))}
    assert mask_cause(scaled, attention(call, 0.0), MODULE) is None
    by_head = only(np.stack([READS, ~READS, READS]))
    assert mask_cause({**call, "out": attention(call, by_head)}, attention(call, 0.0), MODULE) is None


def test_values_that_are_not_finite_or_do_not_fit_name_nothing() -> None:
    call = made(READS)
    assert mask_cause({**call, "in.key": call["in.key"] * np.nan}, call["out"], MODULE) is None
    assert mask_cause(call, call["out"][:-1], MODULE) is None


def test_it_is_read_from_records_and_grouped_keys_are_repeated() -> None:
    call = made(READS)
    few = {port: call[port][:, :1] for port in ("in.key", "in.value")}
    whole = {**call, **{port: np.repeat(x, HEADS, axis=1) for port, x in few.items()}}
    outputs = [attention(whole, only(READS)), attention(whole, 0.0)]
    held = {"in.query": call["in.query"], **few, "out": outputs[0]}
    reference = [tensor(f"{MODULE}:{port}", x[None].astype(np.float32), held=True) for port, x in held.items()]
    candidate = [tensor(f"{MODULE}:out", outputs[1][None].astype(np.float32), held=True)]
    (found,) = mask_causes(reference, candidate, MODULE)
    assert found.candidate == "none"
