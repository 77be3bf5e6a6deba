"""Preflight from hand-made facts: every check passes, fails, and is explained only by the settings that cause it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parity.compare.independent import of_weights
from parity.compare.preflight import (
    SCHEDULE_LIMIT,
    Weights,
    causes_of,
    compare_inputs,
    compare_weights,
    factors_at,
    failed,
    laid_out,
    preflight,
)
from parity.compare.reason import Distance, Reason
from parity.compare.result import Check, Origin
from parity.golden import fingerprint
from parity.golden.fingerprint import weight_print
from parity.records import Array, Facts, Provenance, Schedule
from parity.settings import Difference
from parity.transforms import bfloat16
from tests.support.results import RESULT, site

NAN, INF = float("nan"), float("inf")


def bf16(x: np.ndarray) -> np.ndarray:
    """`x` rounded to bfloat16, to nearest even, as float64."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def schedule(steps: int = 50, shift: float = 7.0) -> Schedule:
    """The flow-match schedule of HunyuanVideo-1.5, in float32."""
    s = np.linspace(1.0, 0.0, steps + 1)
    sigmas = (shift * s / (1 + (shift - 1) * s)).astype(np.float32).astype(np.float64)
    return Schedule((sigmas[:-1] * 1000).astype(np.float32).astype(np.float64), sigmas, None)


def times(timesteps: list[float], sigmas: list[float], end: float = 0.0) -> Facts:
    return facts(schedule=Schedule(np.array(timesteps), np.array(sigmas), None, end))


def weight(seed: int, shape: tuple[int, ...] = (4, 4)) -> tuple[tuple[int, ...], str]:
    return shape, fingerprint(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def given(x: np.ndarray) -> Array:
    return Array(x.astype(np.float32), "float32")


def facts(**changes: Any) -> Facts:
    draw = np.random.default_rng(0).standard_normal
    mask = np.zeros((1, 8), np.float32)
    mask[:, :5] = 1
    made = Facts(
        weights={"a.weight": weight(1), "a.bias": weight(2, (4,)), "b.weight": weight(3)},
        dtypes={"a.weight": "float32", "a.bias": "float32", "b.weight": "float32"},
        inputs={
            "cond.encoder_hidden_states": given(draw((1, 8, 4))),
            "cond.encoder_attention_mask": given(mask),
            "uncond.encoder_hidden_states": given(draw((1, 8, 4))),
            "uncond.encoder_attention_mask": given(mask * 0),
        },
        noise=draw((1, 4, 2, 3, 3)).astype(np.float32),
        tables={"cos": draw((18, 8)), "sin": draw((18, 8))},
        provenance=Provenance("reference", "torch", "tiny", {}, seed=0, steps=1),
        schedule=schedule(),
    )
    return replace(made, **changes)


BASE = facts()
STATES, MASK = "cond.encoder_hidden_states", "cond.encoder_attention_mask"


def changed(field: str, **items: Any) -> Facts:
    """Some items of a mapping replaced; None removes one. `__` in a name is a dot."""
    merged = {**getattr(BASE, field), **{name.replace("__", "."): x for name, x in items.items()}}
    return facts(**{field: {name: x for name, x in merged.items() if x is not None}})


def with_input(name: str, x: np.ndarray | None) -> Facts:
    return changed("inputs", **{name: None if x is None else given(x)})


def checked(candidate: Facts, *differing: str, reference: Facts = BASE) -> dict[str, Check]:
    return {c.check: c for c in preflight(reference, candidate, differing)}


def test_equal_sides_pass_every_check() -> None:
    for both in (
        BASE,
        facts(schedule=schedule(1)),
        facts(tables={}),
        facts(schedule=replace(schedule(), step_index=0)),
        changed("dtypes", a__ids="int64"),
    ):
        checks = checked(both, reference=both)
        assert {c.verdict for c in checks.values()} == {"pass"}
        assert all(c.detail for c in checks.values())
        assert failed(list(checks.values())) is None
    # JAX has no integers of 64 bits unless told otherwise; what they are is compared as the others' values are.
    narrow, wide = changed("dtypes", a__ids="int32"), changed("dtypes", a__ids="int64")
    assert checked(narrow, reference=wide)["parameter dtypes"].verdict == "pass"
    assert set(checked(BASE)) == {
        "weights", "parameter dtypes", "prompt embeddings", "prompt masks", "initial noise", "reference schedule",
        "candidate schedule", "timesteps", "sigmas", "scheduler state", "rotary tables",
    }  # fmt: skip


def other_mask() -> np.ndarray:
    mask = BASE.inputs[MASK].values.copy()
    mask[:, 5] = 1
    return mask


FLIPPED = BASE.noise[..., ::-1].copy()
ROUNDED_NOISE = facts(noise=bf16(BASE.noise).astype(np.float32))
OTHER_NOISE = facts(noise=np.random.default_rng(5).standard_normal(BASE.noise.shape).astype(np.float32))
SCALED = with_input(STATES, BASE.inputs[STATES].values * np.float32(1.001))
REPEATING = facts(schedule=Schedule(bf16(schedule().timesteps), bf16(schedule().sigmas), None))
TWICE = np.repeat(np.arange(1000.0, 980.0, -1.0), 2)
NEAR = {n: x * (1 + 1e-6) for n, x in BASE.tables.items()}

# Check, candidate, words of the detail, the settings that explain it, some that do not.
ROWS: list[tuple[str, Facts, str, str, str]] = [
    ("weights", changed("weights", c__weight=weight(4)), "1 parameters on one side only: 'c.weight'", "", "dtype"),
    ("weights", changed("weights", a__weight=None), "'a.weight'", "", "dtype"),
    ("weights", changed("weights", a__weight=weight(1, (4, 5))), "(4, 4) against (4, 5)", "", "dtype"),
    ("weights", changed("weights", a__bias=weight(9, (4,)), b__weight=weight(9)), "2 of 3 parameters differ in value",
     "dtype", "attention.mask"),
    ("parameter dtypes", changed("dtypes", b__weight="bfloat16"), "'b.weight' is float32", "dtype", ""),
    ("prompt embeddings", SCALED, STATES, "text.byt5_dtype", "rope"),
    ("prompt embeddings", SCALED, "1.00e-03", "text.byt5_dtype", "rope"),
    ("prompt embeddings", with_input(STATES, None), "", "", ""),
    ("prompt embeddings", with_input(STATES, BASE.inputs[STATES].values[:, :-1]), "", "", ""),
    ("prompt embeddings", with_input(STATES, np.full_like(BASE.inputs[STATES].values, NAN)), "", "", ""),
    # Ones and zeros are exact in every dtype: a mask that differs is another mask.
    ("prompt masks", with_input(MASK, other_mask()), "5 of 8 valid tokens against 6 of 8", "", "dtype text.byt5_dtype"),
    ("prompt masks", with_input(MASK, BASE.inputs[MASK].values[..., ::-1]), "by 1.10e+00 relative L2", "", "dtype"),
    ("prompt masks", with_input(MASK, None), "", "", "dtype"),
    ("initial noise", facts(noise=FLIPPED), "", "", "dtype latents_dtype"),
    ("initial noise", ROUNDED_NOISE, "", "dtype", "rope"),
    ("initial noise", ROUNDED_NOISE, "", "latents_dtype", "rope"),
    ("initial noise", OTHER_NOISE, "", "", "dtype latents_dtype"),
    ("initial noise", facts(noise=BASE.noise[:, :, :1]), "", "", "dtype"),
    ("candidate schedule", REPEATING, "timesteps repeat: ", "", "schedule_dtype"),
    ("candidate schedule", times(list(TWICE), [*np.linspace(1.0, 0.02, 40), 0.0]), "1000 (steps 0, 1)", "", ""),
    ("candidate schedule", times([900, 950, 500], [0.9, 0.8, 0.5, 0]), "timesteps do not fall", "", "schedule_dtype"),
    ("candidate schedule", times([900, 800, 500], [0.9, 0.9, 0.5, 0]), "fall from 0.9 to 0.9", "", "schedule_dtype"),
    ("candidate schedule", times([900, 800, 500], [0.9, 0.5, 0.8, 0]), "fall from 0.5 to 0.8", "", "schedule_dtype"),
    ("candidate schedule", times([900, 800, 500], [0.9, 0.8, 0.5, 0.1]), "sum to -0.800000", "", "schedule_dtype"),
    ("candidate schedule", times([900, NAN, 500], [0.9, 0.8, 0.5, 0]), "not finite", "", "schedule_dtype"),
    ("candidate schedule", times([900, 800, 500], [0.9, 0.8, INF, 0]), "not finite", "", "schedule_dtype"),
    ("candidate schedule", times([999, 500, 142], [1.0, 0.9, 0.4, 0.03]), "", "", ""),
    ("timesteps", facts(schedule=replace(schedule(), timesteps=schedule().timesteps * (1 + 10 * SCHEDULE_LIMIT))),
     "differ most at", "schedule_dtype", "rope"),
    ("sigmas", facts(schedule=replace(schedule(), sigmas=schedule().sigmas * (1 + 10 * SCHEDULE_LIMIT))),
     "differ most at", "schedule_dtype", "rope"),
    ("sigmas", facts(schedule=schedule(shift=14.0)), "the candidate's is the reference's shifted once more, by 2:",
     "schedule_dtype", "rope"),
    ("timesteps", facts(schedule=schedule(40)), "50 against 40", "", "schedule_dtype"),
    ("scheduler state", facts(schedule=replace(schedule(), step_index=1)), "step 1", "", "scheduler.warmup_steps"),
    ("rotary tables", changed("tables", sin=bf16(BASE.tables["sin"])), "'sin'", "rope_dtype", "dtype"),
    ("rotary tables", changed("tables", sin=None), "", "", "rope_dtype"),
    ("rotary tables", facts(tables={}), "", "", "rope_dtype"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{row[0]}" for i, row in enumerate(ROWS)])
def test_a_difference_fails_its_check_unless_a_setting_explains_it(row: tuple[str, Facts, str, str, str]) -> None:
    check, candidate, words, explains, others = row
    found = checked(candidate)[check]
    assert (found.verdict, words in found.detail) == ("fail", True)
    for setting in others.split():
        assert checked(candidate, setting)[check].verdict == "fail"
    for setting in explains.split():
        assert checked(candidate, setting)[check].verdict == "explained"
    if not check.endswith("schedule") and candidate.schedule.step_index is None:  # whichever side differs
        assert checked(BASE, reference=candidate)[check].verdict == "fail"


@pytest.mark.parametrize(
    ("check", "candidate"),
    [
        ("timesteps", facts(schedule=replace(schedule(), timesteps=schedule().timesteps * (1 + 0.9 * SCHEDULE_LIMIT)))),
        ("timesteps", facts(schedule=replace(schedule(), timesteps=schedule().timesteps + 900 * SCHEDULE_LIMIT))),
        ("sigmas", facts(schedule=replace(schedule(), sigmas=schedule().sigmas * (1 + 0.9 * SCHEDULE_LIMIT)))),
        ("candidate schedule", times([999, 500, 142], [1.0, 0.9, 0.4, 0.03], end=0.03)),
        ("rotary tables", facts(tables=NEAR)),  # a library's sine
    ],
)
def test_a_difference_of_rounding_passes(check: str, candidate: Facts) -> None:
    assert checked(candidate)[check].verdict == "pass"


@pytest.mark.parametrize(
    ("candidate", "setting", "fix"),
    [
        (REPEATING, "schedule_dtype", "keep the schedule in float32"),
        (REPEATING, "rope_dtype", ""),
        (times([900, 950, 500], [0.9, 0.8, 0.5, 0]), "schedule_dtype", ""),  # no rounding makes it rise
        (facts(schedule=replace(schedule(), step_index=1)), "scheduler.warmup_steps", "reset the scheduler"),
    ],
)
def test_a_declared_setting_that_a_failing_check_comes_from_is_its_cause(
    candidate: Facts, setting: str, fix: str
) -> None:
    bad = next(check for check in checked(candidate, setting).values() if check.verdict == "fail")
    causes = causes_of(bad, [Difference(setting, "here", "there")])
    assert [cause.fix.startswith(fix) for cause in causes] == ([True] if fix else [])


def test_a_reference_that_cannot_be_walked_fails_too() -> None:
    checks = checked(REPEATING, reference=REPEATING)
    assert (checks["reference schedule"].verdict, checks["candidate schedule"].verdict) == ("fail", "fail")
    stepped = facts(schedule=replace(schedule(), step_index=3))
    assert "the reference's scheduler" in checked(BASE, reference=stepped)["scheduler state"].detail


A, B = np.random.default_rng(5).standard_normal((2, 40, 40)).astype(np.float32)
ONE = np.eye(1, 1600, 127, dtype=np.float32).reshape(40, 40)


def rounded(x: np.ndarray) -> np.ndarray:
    return bfloat16(x).astype(np.float32)


def held(a: np.ndarray, b: np.ndarray) -> Weights:
    return {name: (x.shape, weight_print(np.ascontiguousarray(x))) for name, x in (("a.weight", a), ("b.weight", b))}


UNCHANGED = {"b.weight": held(A, B)["b.weight"]}


@pytest.mark.parametrize(
    ("theirs", "own", "verdict", "words"),
    [
        (held(A, B), False, "pass", "2 parameters equal"),
        (held(A * np.float32(1 + 1e-6), B), False, "explained", "1 of 2 parameters are nearly equal, 9.6e-07"),
        (held(8 * A, 8 * B), False, "fail", "2 of 2 parameters are the reference's times 8: 'a.weight', 'b.weight'"),
        (held(A + B, B), True, "fail", "1 of 2 parameters have other values, 'a.weight' by"),
        (held(A + 0.2 * ONE, B), True, "fail", "'a.weight' by 0.5% in a few places"),
        (held(A + 1e-3 * ONE, B), False, "explained", "1 of 2 parameters are nearly equal, by no cast to 16 bits"),
        (held(rounded(A), rounded(B)), False, "explained", "are the reference's rounded to bfloat16, 1.9e-03 relative"),
        (held(A.astype(np.float16).astype(np.float32), B), True, "explained", "are the reference's rounded to float16"),
        (held(A.T, B), False, "fail", "1 of 2 parameters hold the reference's values in another order: 'a.weight'"),
        (held(B, B), True, "fail", "1 of 2 parameters hold others of the reference's, 'a.weight' those of 'b.weight'"),
        (held(B, A), False, "fail", "'a.weight' those of 'b.weight': 'a.weight', 'b.weight'"),
        (held(A.T, B), True, "explained", "hold the reference's values in another layout: 'a.weight'"),
        (held(A[:, None], B), True, "explained", "in another layout"),
        ({"a.weight": (A.shape, weight_print(A[:, None])), **UNCHANGED}, True, "explained", "in another layout"),
        (held(A + np.float32(np.nan) * ONE, B), True, "fail", "1 of 2 parameters hold NaN or infinities"),
        (held(0.125 * A, B), True, "explained", "1 of 2 parameters are the reference's times 0.125"),  # perhaps folded
        (held(0 * A, B), True, "fail", "are zeros: 'a.weight'"),  # folded into nothing
        (
            held(0 * A, rounded(B)),
            True,
            "fail",
            "are zeros: 'a.weight'; 1 more are the reference's rounded to bfloat16, 1.9e-03 relative apart at most: 'b",
        ),
        (
            held(A.T, rounded(B)),
            True,
            "explained",
            "1 of 2 parameters hold the reference's values in another layout: 'a.weight'; 1 more are the reference's",
        ),
        (
            held(0 * A, A),
            True,
            "fail",
            "1 of 2 parameters are zeros: 'a.weight'; 1 more hold others of the reference's, 'b.weight' those of 'a",
        ),
        (held(A[:20], B), False, "fail", "'a.weight' has shape (40, 40) against (20, 40)"),
        (held(A[:20], B), True, "explained", "1 parameters on one side only: 'a.weight'"),  # padded, for a kernel
    ],
)
def test_weights_that_are_not_equal_are_told_by_how(theirs: Weights, own: bool, verdict: str, words: str) -> None:
    found = compare_weights(held(A, B), theirs, (), own=own)
    assert (found.verdict, words in found.detail) == (verdict, True), found
    assert found.computed == (verdict == "fail" and "shape" not in words)


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        (held(A + B, B), "explained"),  # a norm's scale may be folded into them, which has no parameters then
        (held(B, B), "fail"),
    ],
)
def test_weights_of_a_port_with_others_too_are_its_own_unless_they_are_mixed_up(theirs: Weights, verdict: str) -> None:
    ours = {**held(A, B), "norm.weight": ((40,), weight_print(A[0]))}
    assert compare_weights(ours, theirs, (), own=True, mapped=True).verdict == verdict


@pytest.mark.parametrize(
    ("theirs", "factors"),
    [
        (held(A * np.float32(1 + 1e-6), B), {}),  # rounded
        (held(A + B, 8 * B), {"b": {8.0}}),
        (held(A.T, B[::-1]), {"a": {1.0}, "b": {1.0}}),
        (held(A[:, None], 0.125 * B), {"a": {1.0}, "b": {0.125}}),
        (held(0 * A, B), {}),
    ],
)
def test_parameters_that_lie_otherwise_are_known_by_module(theirs: Weights, factors: dict[str, set[float]]) -> None:
    found = laid_out(held(A, B), theirs)
    assert {module: {round(x, 4) for x in own} for module, own in found.items()} == factors


@pytest.mark.parametrize(
    ("scale", "verdict", "said"),
    [
        (A, "pass", "2 parameters equal"),
        (A - 1, "explained", "1 equal; 2 parameters on one side only"),
        (B, "fail", "hold others of the reference's, 'a.weight' those of 'b.weight'"),
    ],
)
def test_a_norm_s_scale_is_its_weight_where_it_holds_that(scale: Any, verdict: str, said: str) -> None:
    theirs = {"a.scale": (A.shape, weight_print(scale)), "b.weight": (B.shape, weight_print(B))}
    found = compare_weights(held(A, B), theirs, (), own=True)
    assert (found.verdict, said in found.detail) == (verdict, True), found.detail


def test_parameters_of_a_module_that_is_no_block_are_its_own() -> None:
    ours = {name: (A.shape, weight_print(A)) for name in ("patch_embed.table", "patch_embed.proj.weight")}
    found = laid_out(ours, {**ours, "patch_embed.table": (A.shape, weight_print(A[::-1].copy()))})
    assert factors_at("patch_embed", found) == {1.0}


def test_a_block_s_own_table_in_another_order_reaches_what_is_inside_it() -> None:
    names = ("blocks.0.table", "blocks.0.norm.weight", "blocks.1.table", "blocks.1.norm.weight")
    ours = {name: (A.shape, weight_print(A)) for name in names}
    found = laid_out(ours, {**ours, "blocks.0.table": (A.shape, weight_print(A[::-1].copy()))})
    reached = {m: bool(factors_at(m, found)) for m in ("blocks.0.norm", "blocks.0", "blocks.1.norm", "blocks.1")}
    assert reached == {"blocks.0.norm": True, "blocks.0": False, "blocks.1.norm": False, "blocks.1": False}


@pytest.mark.parametrize(("blocks", "named"), [((1,), True), ((0, 1), False)])
def test_a_scaled_block_is_a_cause_where_it_differs(blocks: Sequence[int], named: bool) -> None:
    rng = np.random.default_rng(0)
    names = [f"blocks.{i}.layer{j}.weight" for i in range(2) for j in range(9)]
    ours = {name: rng.standard_normal((40, 40)).astype(np.float32) for name in names}
    theirs = {n: x * np.float32(2) if int(n[7]) in blocks else x for n, x in ours.items()}
    sides = [{n: (x.shape, weight_print(x)) for n, x in side.items()} for side in (ours, {**theirs, "fused": A})]
    at = site("blocks.1.layer0:out", 1e4, "fail", birth="module")
    check = compare_weights(*sides, (), own=True)
    result = replace(RESULT, sites=(at,), origin=Origin(at.key, "module"), preflight=(check,))
    said = "blocks.1.layer0: weights that are not the reference's: 1 of 18 parameters are the reference's times 2: "
    assert [cause.at for cause in of_weights(result)] == ["blocks.1.layer0:out"] * named
    assert all(cause.cause.startswith(f"{said}'blocks.1.layer0.weight'") for cause in of_weights(result))
    agreeing = (replace(at, verdict="pass", birth=None), replace(at, key=replace(at.key, site="blocks.1.layer1:in.x")))
    result = replace(result, sites=agreeing, shown=("blocks.1.layer0",), origin=Origin(agreeing[1].key, "input"))
    assert not any("'blocks.1.layer0.weight'" in cause.cause for cause in of_weights(result))


def test_a_parameter_that_is_nearly_equal_is_no_cause_beside_one_in_another_layout() -> None:
    at = site("b:out", 1e4, "fail", birth="module")
    check = compare_weights(held(A, B), held(A.T, B * np.float32(1 + 1e-6)), (), own=True)
    result = replace(RESULT, sites=(at,), origin=Origin(at.key, "module"), preflight=(check,))
    assert (check.at, list(of_weights(result))) == (("b.weight",), [])


@pytest.mark.parametrize(("moved", "far", "named"), [(1e-3, 1e-3, True), (1e-3, 0.5, False), (1e-7, 1e-3, False)])
def test_weights_of_another_training_step_are_a_cause_of_what_is_as_near(moved: float, far: float, named: bool) -> None:
    rng = np.random.default_rng(0)
    ours, noise = rng.standard_normal((2, 20, 40, 40)).astype(np.float32)
    sides = [
        {f"blocks.{i}.weight": (x.shape, weight_print(x)) for i, x in enumerate(side)}
        for side in (ours, ours + moved * noise)
    ]
    at, why = (
        site("blocks.1:out", 1e4, "fail", birth="module"),
        Reason(kind="preflight", distance=Distance(far, 0.0, 1e9)),
    )
    origin, check = Origin(at.key, "module"), compare_weights(*sides, ())
    result = replace(RESULT, verdict="fail", sites=(at,), why=why, origin=origin, preflight=(check,))
    assert [cause.at for cause in of_weights(result)] == ["blocks.1:out"] * named


@pytest.mark.parametrize(("scale", "verdict"), [(1.1, "pass"), (1.0, "fail"), (0.1, "explained")])
def test_a_norm_s_scale_is_the_weight_of_the_reference_or_what_it_was_made_with(scale: float, verdict: str) -> None:
    weight = np.linspace(1.0, 1.2, 64, dtype=np.float32)
    held = weight if scale == 1.1 else np.full(64, scale, np.float32)
    sides = [{f"norm.{name}": (x.shape, weight_print(x))} for name, x in (("weight", weight), ("scale", held))]
    assert compare_weights(*sides, (), own=True).verdict == verdict


INSIDE = ("a.out", "late.out", "seen", "b.unseen", "b.norm_q")


@pytest.mark.parametrize(
    ("turned", "origin", "named"),
    [
        ("blocks.1.a.out", "blocks.1.b.attention:in.query", True),  # made of what is not observed, somewhere before it
        ("blocks.1.a.out", "blocks.1.b.attention:out", False),
        ("blocks.1.a.out", "blocks.0.b.attention:in.query", False),
        ("blocks.1.a.out", "blocks.1:out", True),
        ("alone", "alone:out", False),  # a layout of its own
        ("blocks.1.b.norm_q", "blocks.1.b.to_q:out", False),
        ("blocks.1", "blocks.1.b.attention:in.query", True),  # a table of the block's
        ("blocks.1", "blocks.1.given:out", False),
        ("blocks.0", "blocks.1.b.to_q:out", False),
    ],
)
def test_weights_in_another_layout_in_one_block_alone_are_a_cause(turned: str, origin: str, named: bool) -> None:
    modules = [f"blocks.{i}.{name}" for i in range(2) for name in INSIDE] + ["blocks.0", "blocks.1", "alone"]
    rng = np.random.default_rng(0)
    ours = {f"{m}.weight": rng.standard_normal((40, 40)).astype(np.float32) for m in modules}
    theirs = {**ours, f"{turned}.weight": np.ascontiguousarray(ours[f"{turned}.weight"].T)}
    sides = [{n: (x.shape, weight_print(x)) for n, x in side.items()} for side in (ours, theirs)]
    first, late = site(origin, 1e4, "fail", birth="input"), "blocks.1.late.attention:out"
    behind = (site("blocks.1.b.norm_q:out"), site(late, 1e4, "fail", birth="propagated"))
    sites = (site("blocks.1.seen:out"), site("blocks.1.given:in.x"), first, *behind)
    result = replace(
        RESULT, sites=sites, origin=Origin(first.key, "input"), preflight=(compare_weights(*sides, (), own=True),)
    )
    assert [f"{turned}.weight" in cause.cause for cause in of_weights(result)] == [True] * named
    before = site("before:out", 1e4, "fail", birth="module")  # another difference, with which the divergence starts
    result = replace(result, sites=(before, *sites), origin=Origin(before.key, "module"))
    assert [cause.at for cause in of_weights(result)] == [origin] * named


@pytest.mark.parametrize(
    ("theirs", "verdict", "words"),
    [
        ({**held(A, B), "fused": ((4,), "3")}, "explained", "2 equal; 1 parameters on one side only: 'fused'"),
        ({"a.weight": ((4,), "1"), "b.weight": held(A, B)["b.weight"]}, "explained", "1 equal; 1 parameters on one"),
        ({"b.weight": held(A, B)["b.weight"]}, "explained", "1 equal; 1 parameters on one side only: 'a.weight'"),
        ({"c": held(B, A)["a.weight"]}, "explained", "0 equal; 3 parameters on one side only"),
    ],
)
def test_port_is_compared_where_both_have_the_name(theirs: dict[str, Any], verdict: str, words: str) -> None:
    found = compare_weights(held(A, B), theirs, (), mapped=True, own=True)
    assert (found.verdict, words in found.detail) == (verdict, True), found


@pytest.mark.parametrize(
    ("theirs", "verdict", "words"),
    [
        ({"text_hidden_states": "1"}, "explained", "1 tensors equal under other names"),
        ({"text_hidden_states": "2"}, "fail", "2 of 2 differ"),
        ({"encoder_hidden_states": "2"}, "fail", "differs (1 against 2)"),
    ],
)
def test_inputs_of_which_fingerprints_are_known_may_have_other_names(
    theirs: dict[str, str], verdict: str, words: str
) -> None:
    (check,) = compare_inputs({"encoder_hidden_states": "1"}, theirs, ())
    assert (check.verdict, words in check.detail) == (verdict, True), check
