"""Gauges at the origin: a gain, another order, None against a tensor, and silence for everything else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.causes.gauges import measured, working_dtype
from parity.causes.witnesses.dtype import dtype
from parity.causes.witnesses.values_at_origin import values_at_origin
from parity.causes.witnesses.values_reordered import values_reordered
from parity.compare.result import Cause
from parity.golden import Key, Record
from parity.golden.records import PORT
from tests.support.made import ORIGIN, evidence, tensor

X = np.random.default_rng(0).standard_normal((1, 96, 64))


def told(theirs: np.ndarray) -> list[str]:
    found = values_at_origin(evidence([tensor("m:out", X)], [tensor("m:out", theirs)]))
    return [cause.cause for cause in found]


def elsewhere(ours: list[Record], theirs: list[Record], origin: Key = ORIGIN) -> list[Cause]:
    """What is told to be in another order away from the origin."""
    return list(values_reordered(evidence(ours, theirs, origin=origin)))


@pytest.mark.parametrize("gain", [0.9, 1.001, 2.0, -1.0])
def test_a_gain(gain: float) -> None:
    (said,) = told(gain * X)
    assert f"times {gain:.5g}" in said


def test_where_keys_were_counted_the_gain_that_they_cause_is_not_told_beside() -> None:
    known = evidence([tensor("m:out", X)], [tensor("m:out", 0.0737 * X)])
    assert len(list(values_at_origin(known))) == 1
    counted = measured("2736.00 phantom keys on cond = what fills 80 tokens", 2736.0, "at 100 % of the queries")
    assert list(values_at_origin(replace(known, found=replace(known.found, causes=(counted,))))) == []


@pytest.mark.parametrize("order", [X[:, ::-1], np.roll(X, 1, 1), X.transpose(0, 2, 1).reshape(X.shape)])
def test_another_order(order: np.ndarray) -> None:
    (said,) = told(np.ascontiguousarray(order))
    assert "in another order" in said


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (range(16), "lets another number of keys through: 16 a row on the candidate, 12 on the reference"),
        (range(12, 16), "lets another number of keys through: 4 a row on the candidate, 12 on the reference"),
        (range(2, 14), "lets 12 keys a row through, as the reference's, others"),
    ],
)
def test_another_mask(additive: bool, keys: range, said: str) -> None:
    def mask(through: range) -> Record:
        x = np.zeros((1, 1, 16), np.float32)
        x[..., list(through)] = 1.0
        return tensor("m:in.attention_mask", (1.0 - x) * -10000.0 if additive else x)

    ours, theirs = mask(range(12)), mask(keys)
    (cause,) = values_at_origin(evidence([ours], [theirs], origin=ours.key))
    assert cause.cause == f"the mask m:in.attention_mask {said}"


def test_other_faults_are_neither() -> None:
    assert told(X + np.random.default_rng(1).standard_normal(X.shape)) == []
    assert told(np.where(X > 2, 0.0, X)) == []


def test_a_port_s_attention_with_its_heads_before_its_tokens_is_no_order() -> None:
    """Where it stands otherwise inside an attention of the port's own, what is made of it decides."""
    x = np.random.default_rng(3).standard_normal((1, 48, 2, 32))
    ours, theirs = [tensor("attn:out", x)], [tensor("attn:out", np.ascontiguousarray(x.swapaxes(1, 2)))]
    assert len(elsewhere(ours, theirs)) == 1
    found = evidence(ours, theirs)
    assert list(values_reordered(replace(found, declared=replace(found.declared, backend=PORT)))) == []


def test_none_against_a_tensor() -> None:
    (cause,) = values_at_origin(evidence([tensor("m:out", X)], [Record(ORIGIN, "none")]))
    assert "only the reference has a value" in cause.cause


@pytest.mark.parametrize("apart", [2e-3, 1e-2, 0.1, 0.5])
def test_noise_of_any_size_is_never_taken_for_another_order(apart: float) -> None:
    rng = np.random.default_rng(7)
    noisy = [X + apart * rng.standard_normal(X.shape) for _ in range(200)]
    pairs = [([tensor("m:out", X)], [tensor("m:out", y)]) for y in noisy]
    assert [c for a, b in pairs for c in elsewhere(a, b)] == []


def test_another_order_is_found_away_from_the_origin() -> None:
    ours = [tensor("m:out", X), tensor("n:out", X[0]), tensor("n:out", X[0], branch="uncond")]
    theirs = [tensor("m:out", 1.1 * X), tensor("n:out", X[0][::-1]), tensor("n:out", X[0][::-1], branch="uncond")]
    (cause,) = elsewhere(ours, theirs)
    assert cause.cause.startswith("n:out holds the same values in another order")
    assert "1 sites, branches cond, uncond, step 0" in cause.witnesses[0].detail
    assert elsewhere(ours, theirs[:1]) == []
    assert elsewhere(ours[1:], theirs[1:], ours[1].key) == []  # told at the origin already


def test_what_a_norm_makes_of_rows_that_differ_is_in_no_other_order() -> None:
    """Unit rows of another prompt beside rows that agree: minimum, maximum, mean and norm are as near as rounding."""
    rng = np.random.default_rng(3)
    text = rng.standard_normal((1, 8, 64)) * 0.1
    turned = text + 0.02 * rng.standard_normal(text.shape)
    centred = [x - x.mean(-1, keepdims=True) for x in (text, turned)]
    unit = [6 * x / np.linalg.norm(x, axis=-1, keepdims=True) for x in centred]
    joint = [np.concatenate([x, X], 1) for x in unit]
    ours = [tensor("m:out", X), tensor("n:in.text", text), tensor("n:in.query", joint[0])]
    theirs = [tensor("m:out", X), tensor("n:in.text", 1.5 * text), tensor("n:in.query", joint[1])]
    assert elsewhere(ours[2:], theirs[2:]) != [], "by its moments alone it is in another order"
    assert elsewhere(ours, theirs) == []


def test_the_working_dtype_is_that_of_most_module_outputs() -> None:
    sites = [f"m{i}:out" for i in range(5)]
    ours = [tensor(site, X) for site in sites]
    theirs = [replace(tensor(site, X), dtype="bfloat16" if i < 3 else "float64") for i, site in enumerate(sites)]
    loop = [replace(tensor(f"loop:{i}", X), dtype="float16") for i in range(9)]
    assert working_dtype(ours, theirs) is None  # float64 on one side is no working dtype
    ours = [replace(r, dtype="float32") for r in ours]
    assert working_dtype(ours, theirs) == ("float32", "bfloat16")
    (cause,) = dtype(evidence([*ours, *loop], [*theirs, *loop]))
    assert (cause.setting, cause.reference, cause.candidate) == ("dtype", "float32", "bfloat16")
    assert list(dtype(evidence(ours, [*theirs[:1], *ours[1:]]))) == []
    assert list(dtype(evidence(ours, []))) == []


def test_tensors_of_zeros_are_in_no_order() -> None:
    zeros = [tensor("m:out", np.zeros((1, 96, 64)))]
    assert elsewhere(zeros, zeros) == []
