"""Which keys an attention call reads, from its queries, keys, values and output: masks that were dropped or mistaken.

Problem. A mask is no value of a module: where one is lost, every input of the attention call agrees and its output does
not, whatever the model.

How. A mask of keys, the same for every query and head, gives each key i a weight m_i beside its softmax, so that
sum_i m_i exp(l_i) (v_i - out) = 0 for every query and head. The least eigenvector of that system is the reference's
mask, alone or with a causal one; it counts only where attention under it gives the reference's output. The candidate's
output is then compared with attention under each mistake that is made with such a mask; the one that gives it is named.
What none gives is not named. numpy only.

Cost. K x K sums for K keys over as many queries as determine them; calls of more than `MOST` keys are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from parity.compare.result import Cause, measured

MOST = 1024
"""Keys at most: the system is of their square."""
EXACT = 1e-3
"""Relative residual up to which attention under a mask is the output; float32 leaves 1e-6, bfloat16 some 3e-3."""

EXPLAINED = 0.05
"""Share of the two outputs' difference that a mistake may leave: one of little effect is no explanation of another."""

Call = Mapping[str, np.ndarray]
"""`in.query`, `in.key`, `in.value` and `out` of one call: float64 [rows, heads, head dim]."""


def mask_cause(reference: Call, candidate: np.ndarray, module: str) -> Cause | None:
    """The mistake with a mask of keys that gives the candidate's output; None where none does, or there is no mask.

    Args:
        reference: the call's values. candidate: its output on the other side. module: the call's site.
    """
    if not _fits(reference, candidate):
        return None
    logits = np.einsum("qhd,khd->qhk", reference["in.query"], reference["in.key"])
    logits /= math.sqrt(reference["in.key"].shape[-1])
    value, out = reference["in.value"], reference["out"]
    asks = np.abs(out).sum(axis=(1, 2)) > 0  # padded queries may read nothing
    found = _reads(logits, value, out, asks)
    if found is None:
        return None
    most = min(EXACT, EXPLAINED * _apart(candidate[asks], out[asks]))
    for what, setting, mistaken, bias in _mistakes(*found, logits.shape[0]):
        left = _apart(_attention(logits + bias, value)[asks], candidate[asks])
        if left <= most:
            detail = f"attention under it leaves {left:.1e} of the candidate's output at {module}"
            exact = "exact" if setting else ""
            return measured(what, setting, exact, mistaken, left, detail=detail)
    return None


def _fits(call: Call, candidate: np.ndarray) -> bool:
    query, key, value, out = (call[port] for port in ("in.query", "in.key", "in.value", "out"))
    whole = all(np.isfinite(x).all() for x in (*call.values(), candidate))
    heads = query.shape[1:] == key.shape[1:] and query.shape[:2] == out.shape[:2] and value.shape[:2] == key.shape[:2]
    return whole and heads and value.shape[2] == out.shape[2] and out.shape == candidate.shape and len(key) <= MOST


def _reads(logits: np.ndarray, value: np.ndarray, out: np.ndarray, asks: np.ndarray) -> tuple[np.ndarray, bool] | None:
    """Which keys the reference reads, and whether only those up to the query's own; None where neither is its way."""
    reads = _mask(logits[asks], value, out[asks])
    if reads is not None:
        return reads, False
    if logits.shape[0] != logits.shape[2]:
        return None
    reads = _mask((logits + _causal(len(logits)))[asks], value, out[asks])
    return None if reads is None else (reads, True)


def _mask(logits: np.ndarray, value: np.ndarray, out: np.ndarray) -> np.ndarray | None:
    """Which keys the reference reads; None where its output is no attention under one mask for all."""
    rows, heads, keys = logits.shape
    every = np.ones(keys, dtype=bool)
    if _apart(_attention(logits, value), out) <= EXACT:
        return every
    system = np.zeros((keys, keys))
    enough = max(1, math.ceil(8 * keys / (heads * value.shape[-1])))
    for row in np.unique(np.linspace(0, rows - 1, min(rows, enough)).astype(int)):
        weights = np.exp(logits[row] - logits[row].max(axis=-1, keepdims=True))
        for head in range(heads):
            part = weights[head][:, None] * (value[:, head] - out[row, head])
            system += part @ part.T
    least = np.linalg.eigh(system)[1][:, 0]
    reads = least / least[np.argmax(np.abs(least))] > 0.5
    agrees = _apart(_attention(np.where(reads, logits, -np.inf), value), out) <= EXACT
    return reads if agrees else None


def _mistakes(reads: np.ndarray, causal: bool, rows: int) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """(what it is, setting, its value, what it adds to the logits) of each mistake with a mask."""
    keys, valid = len(reads), int(reads.sum())
    place, mask = np.arange(keys), "attention.mask"
    before = _causal(keys) if causal else np.zeros(keys)
    if causal:
        yield "the attention is neither causal nor masked, and the reference's is", mask, "none", np.zeros(keys)
        yield "the attention is not causal, and the reference's is", "", "", _only(reads)
    if valid < keys:
        out_of = f"{keys - valid} of {keys} keys that the reference masks are read: the mask is not applied"
        yield out_of, mask, "none", before
        added = "the mask is added to the logits as ones and zeros: make it boolean, or zero and minus infinity"
        yield added, mask, "added", before + reads
        inverted = "the mask is inverted: only the keys that the reference masks are read"
        yield inverted, mask, "inverted", before + _only(~reads)
        for which, others in (("first", place < valid), ("last", place >= keys - valid)):
            text = f"the {which} {valid} keys are read, whichever the mask lets through"
            yield text, mask, which, before + _only(others)
    if rows == keys and not causal:
        text = "the attention is causal: each query reads only the keys up to its own"
        yield text, "", "", _causal(keys) + _only(reads)


def _causal(keys: int) -> np.ndarray:
    return _only(np.tri(keys, dtype=bool))[:, None, :]


def _only(reads: np.ndarray) -> np.ndarray:
    return np.where(reads, 0.0, -np.inf)


def _attention(logits: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Softmax over keys, times values; rows without a key are 0."""
    top = logits.max(axis=-1, keepdims=True)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    return np.einsum("qhk,khd->qhd", weights / np.where(total > 0, total, 1.0), value)


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    size = float(np.linalg.norm(b))
    return float(np.linalg.norm(a - b)) / size if size > 0 else math.inf
