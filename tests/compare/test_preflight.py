"""Preflight from hand-made facts: every check passes, fails, and is explained by the settings that bring it alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parity.compare.preflight import SCHEDULE_LIMIT, failed, preflight, relative, shared_weights
from parity.compare.result import Check
from parity.golden import fingerprint
from parity.golden.facts import Facts, Schedule

NAN = float("nan")


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


def weight(seed: int, shape: tuple[int, ...] = (4, 4)) -> tuple[tuple[int, ...], str]:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return shape, fingerprint(x)


def facts(**changes: Any) -> Facts:
    draw = np.random.default_rng(0).standard_normal
    mask = np.zeros((1, 8), np.float32)
    mask[:, :5] = 1
    made = Facts(
        weights={"a.weight": weight(1), "a.bias": weight(2, (4,)), "b.weight": weight(3)},
        dtypes={"a.weight": "float32", "a.bias": "float32", "b.weight": "float32"},
        inputs={
            "cond.encoder_hidden_states": draw((1, 8, 4)).astype(np.float32),
            "cond.encoder_attention_mask": mask,
            "uncond.encoder_hidden_states": draw((1, 8, 4)).astype(np.float32),
            "uncond.encoder_attention_mask": mask * 0,
        },
        noise=draw((1, 4, 2, 3, 3)).astype(np.float32),
        tables={"cos": draw((18, 8)), "sin": draw((18, 8))},
        schedule=schedule(),
    )
    return replace(made, **changes)


def checked(candidate: Facts, *differing: str, reference: Facts | None = None) -> dict[str, Check]:
    return {c.check: c for c in preflight(reference or facts(), candidate, differing)}


def verdicts(checks: dict[str, Check]) -> dict[str, str]:
    """Only what does not pass."""
    return {name: c.verdict for name, c in checks.items() if c.verdict != "pass"}


def test_equal_sides_pass_every_check() -> None:
    checks = checked(facts())
    assert verdicts(checks) == {}
    assert set(checks) == {
        "weights", "parameter dtypes", "prompt embeddings", "prompt masks", "initial noise", "reference schedule",
        "candidate schedule", "timesteps", "sigmas", "scheduler state", "rotary tables",
    }  # fmt: skip
    assert failed(list(checks.values())) is None
    assert all(c.detail for c in checks.values())


def test_a_schedule_of_one_step_does_not_fall() -> None:
    alone = facts(schedule=schedule(1))
    assert checked(alone, reference=alone)["candidate schedule"].detail == "1 step, at 1000; dt sums to -1.000000"


def test_failed_names_the_first_that_fails() -> None:
    checks = [Check("a", "pass", ""), Check("b", "explained", ""), Check("c", "fail", "x"), Check("d", "fail", "y")]
    assert failed(checks) == checks[2]


def test_masks_say_how_many_tokens_are_valid() -> None:
    detail = checked(facts())["prompt masks"].detail
    assert "cond.mask 5 of 8" in detail
    assert "uncond.mask 0 of 8" in detail


# --- weights ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"c.weight": weight(4)}, "1 parameters on one side only: 'c.weight'"),
        ({"a.weight": None}, "1 parameters on one side only: 'a.weight'"),
        ({"a.weight": weight(1, (4, 5))}, "'a.weight' has shape (4, 4) against (4, 5)"),
        ({"a.bias": weight(9, (4,)), "b.weight": weight(9)}, "2 of 3 parameters differ in value: 'a.bias', 'b.weight'"),
    ],
)
def test_weights_that_are_missing_misshapen_or_other(change: dict[str, Any], said: str) -> None:
    weights = {n: w for n, w in {**facts().weights, **change}.items() if w is not None}
    check = checked(facts(weights=weights))["weights"]
    assert check.verdict == "fail"
    assert said in check.detail


def test_other_values_are_explained_by_dtype_and_missing_ones_by_nothing() -> None:
    base = dict(facts().weights)
    other = facts(weights={**base, "a.bias": weight(9, (4,))})
    assert checked(other, "dtype")["weights"].verdict == "explained"
    assert checked(other, "attention.mask")["weights"].verdict == "fail"
    base.pop("a.bias")
    assert checked(facts(weights=base), "dtype")["weights"].verdict == "fail"
    misshapen = facts(weights={**facts().weights, "a.bias": weight(2, (5,))})
    assert checked(misshapen, "dtype")["weights"].verdict == "fail"


def test_parameter_dtypes() -> None:
    other = facts(dtypes={**facts().dtypes, "b.weight": "bfloat16"})
    check = checked(other)["parameter dtypes"]
    assert check.verdict == "fail"
    assert "'b.weight' is float32 against bfloat16" in check.detail
    assert checked(other, "dtype")["parameter dtypes"].verdict == "explained"


# --- inputs ----------------------------------------------------------------------------------------------------


def with_input(name: str, x: np.ndarray | None) -> Facts:
    return facts(inputs={n: v for n, v in {**facts().inputs, name: x}.items() if v is not None})


def test_other_embeddings_fail_and_the_worst_is_named() -> None:
    name = "uncond.encoder_hidden_states"
    other = with_input(name, facts().inputs[name] * np.float32(1.001))
    check = checked(other)["prompt embeddings"]
    assert check.verdict == "fail"
    assert "1 of 2 differ" in check.detail
    assert name in check.detail
    assert "1.00e-03" in check.detail
    assert checked(other, "text.byt5_dtype")["prompt embeddings"].verdict == "explained"
    assert checked(other, "rope")["prompt embeddings"].verdict == "fail"


@pytest.mark.parametrize("name", ["cond.encoder_hidden_states", "cond.encoder_attention_mask"])
def test_an_input_that_one_side_lacks_fails(name: str) -> None:
    title = "prompt masks" if "mask" in name else "prompt embeddings"
    lacking = with_input(name, None)
    assert checked(lacking)[title].verdict == "fail"
    assert checked(facts(), reference=lacking)[title].verdict == "fail"


def test_embeddings_of_another_length_fail() -> None:
    name = "cond.encoder_hidden_states"
    check = checked(with_input(name, facts().inputs[name][:, :-1]))["prompt embeddings"]
    assert check.verdict == "fail"


def test_embeddings_that_are_nan_fail() -> None:
    name = "cond.encoder_hidden_states"
    check = checked(with_input(name, np.full_like(facts().inputs[name], NAN)))["prompt embeddings"]
    assert check.verdict == "fail"


@pytest.mark.parametrize("differing", [(), ("dtype",), ("text.byt5_dtype",)])
def test_another_mask_fails_and_no_dtype_explains_it(differing: Sequence[str]) -> None:
    """Ones and zeros are exact in every dtype: a mask that differs is another mask."""
    name = "cond.encoder_attention_mask"
    other = facts().inputs[name].copy()
    other[:, 5] = 1
    assert checked(with_input(name, other), *differing)["prompt masks"].verdict == "fail"


# --- noise -----------------------------------------------------------------------------------------------------


def test_other_noise_fails_with_what_to_do() -> None:
    other = facts(noise=facts().noise[..., ::-1].copy())
    assert checked(other)["initial noise"].verdict == "fail"
    check = checked(other, "noise.device")["initial noise"]
    assert check.verdict == "fail"
    assert "noise.device=cpu" in check.detail


@pytest.mark.parametrize("setting", ["dtype", "latents_dtype"])
def test_noise_rounded_by_a_declared_dtype_is_explained(setting: str) -> None:
    rounded = facts(noise=bf16(facts().noise).astype(np.float32))
    assert checked(rounded, setting)["initial noise"].verdict == "explained"
    assert checked(rounded)["initial noise"].verdict == "fail"


@pytest.mark.parametrize("setting", ["dtype", "latents_dtype"])
def test_other_noise_is_not_explained_by_rounding(setting: str) -> None:
    other = facts(noise=np.random.default_rng(5).standard_normal(facts().noise.shape).astype(np.float32))
    assert checked(other, setting)["initial noise"].verdict == "fail"


def test_noise_of_another_shape_fails() -> None:
    assert checked(facts(noise=facts().noise[:, :, :1]), "dtype")["initial noise"].verdict == "fail"


# --- schedule --------------------------------------------------------------------------------------------------


def rounded_schedule(steps: int = 50) -> Schedule:
    s = schedule(steps)
    return Schedule(bf16(s.timesteps), bf16(s.sigmas), None)


def test_a_schedule_rounded_to_bfloat16_repeats_timesteps_and_they_are_named() -> None:
    candidate = rounded_schedule()
    check = checked(facts(schedule=candidate), "schedule_dtype")["candidate schedule"]
    assert check.verdict == "fail"
    t = candidate.timesteps
    values, counts = np.unique(t, return_counts=True)
    repeated = sorted(values[counts > 1], reverse=True)
    assert repeated  # or this schedule would show nothing
    first = ", ".join(str(i) for i in np.flatnonzero(t == repeated[0]))
    assert f"timesteps repeat: {repeated[0]:g} (steps {first})" in check.detail


def test_many_repeats_are_cut_off_and_counted() -> None:
    t = np.repeat(np.arange(1000.0, 980.0, -1.0), 2)
    sigmas = np.append(np.linspace(1.0, 0.02, t.size), 0.0)
    check = checked(facts(schedule=Schedule(t, sigmas, None)))["candidate schedule"]
    assert "1000 (steps 0, 1)" in check.detail
    assert "993 (steps 14, 15), and 12 more" in check.detail


def test_a_repeating_reference_fails_too() -> None:
    both = facts(schedule=rounded_schedule())
    checks = checked(both, reference=both)
    assert checks["reference schedule"].verdict == "fail"
    assert checks["candidate schedule"].verdict == "fail"


@pytest.mark.parametrize(
    ("timesteps", "sigmas", "said"),
    [
        ([900.0, 950.0, 500.0], [0.9, 0.8, 0.5, 0.0], "timesteps rise from 900 to 950 at step 1"),
        ([900.0, 800.0, 500.0], [0.9, 0.9, 0.5, 0.0], "dt at step 0 is 0"),
        ([900.0, 800.0, 500.0], [0.9, 0.5, 0.8, 0.0], "dt at step 1 is 0.3"),
        ([900.0, 800.0, 500.0], [0.9, 0.8, 0.5, 0.1], "the steps dt sum to -0.800000, not -0.900000"),
        ([900.0, NAN, 500.0], [0.9, 0.8, 0.5, 0.0], "not finite"),
        ([900.0, 800.0, 500.0], [0.9, 0.8, float("inf"), 0.0], "not finite"),
    ],
)
def test_a_schedule_that_cannot_be_walked(timesteps: list[float], sigmas: list[float], said: str) -> None:
    made = Schedule(np.array(timesteps), np.array(sigmas), None)
    check = checked(facts(schedule=made), "schedule_dtype")["candidate schedule"]
    assert check.verdict == "fail"
    assert said in check.detail


def test_the_sum_of_dt_is_told() -> None:
    assert "dt sums to -1.000000" in checked(facts())["candidate schedule"].detail


def test_one_step_is_a_schedule() -> None:
    one = facts(schedule=schedule(1))
    assert verdicts(checked(one, reference=one)) == {}


@pytest.mark.parametrize(("end", "verdict"), [(0.03, "pass"), (0.0, "fail")])
def test_a_schedule_ends_where_its_scheduler_means_it_to(end: float, verdict: str) -> None:
    made = Schedule(np.array([999.0, 500.0, 142.0]), np.array([1.0, 0.9, 0.4, 0.03]), None, end)
    assert checked(facts(schedule=made))["candidate schedule"].verdict == verdict


@pytest.mark.parametrize("field", ["timesteps", "sigmas"])
def test_schedules_apart_by_two_roundings_pass_and_by_more_do_not(field: str) -> None:
    base = schedule()
    near = replace(base, **{field: getattr(base, field) * (1 + 0.9 * SCHEDULE_LIMIT)})
    far = replace(base, **{field: getattr(base, field) * (1 + 10 * SCHEDULE_LIMIT)})
    assert checked(facts(schedule=near))[field].verdict == "pass"
    check = checked(facts(schedule=far))[field]
    assert check.verdict == "fail"
    assert "differ most at" in check.detail
    assert checked(facts(schedule=far), "schedule_dtype")[field].verdict == "explained"


def test_another_number_of_steps_fails_whatever_is_declared() -> None:
    checks = checked(facts(schedule=schedule(40)), "schedule_dtype")
    assert checks["timesteps"].verdict == "fail"
    assert checks["timesteps"].detail == "50 against 40"
    assert checks["sigmas"].verdict == "fail"


@pytest.mark.parametrize("index", [1, 3])
@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_a_scheduler_that_has_stepped_already_fails(index: int, side: str) -> None:
    moved = facts(schedule=replace(schedule(), step_index=index))
    differing = ("scheduler.warmup_steps",)
    checks = checked(moved, *differing) if side == "candidate" else checked(facts(), *differing, reference=moved)
    assert checks["scheduler state"].verdict == "fail"
    assert f"the {side}'s scheduler already stands at step {index}" in checks["scheduler state"].detail


@pytest.mark.parametrize("index", [None, 0])
def test_a_scheduler_before_its_first_step_passes(index: int | None) -> None:
    assert checked(facts(schedule=replace(schedule(), step_index=index)))["scheduler state"].verdict == "pass"


# --- rotary tables ---------------------------------------------------------------------------------------------


def test_tables_apart_by_a_libraries_sine_pass_and_rounded_ones_do_not() -> None:
    tables = facts().tables
    near = facts(tables={n: x * (1 + 1e-6) for n, x in tables.items()})
    rounded = facts(tables={**tables, "sin": bf16(tables["sin"])})
    assert checked(near)["rotary tables"].verdict == "pass"
    check = checked(rounded)["rotary tables"]
    assert check.verdict == "fail"
    assert "'sin'" in check.detail
    assert checked(rounded, "rope_dtype")["rotary tables"].verdict == "explained"


def test_a_model_without_tables_passes() -> None:
    none = facts(tables={})
    assert checked(none, reference=none)["rotary tables"].verdict == "pass"


@pytest.mark.parametrize("lacking", [{}, {"cos": facts().tables["cos"]}])
@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_tables_that_one_side_lacks_fail(lacking: dict[str, np.ndarray], side: str) -> None:
    less = facts(tables=lacking)
    checks = checked(less) if side == "candidate" else checked(facts(), reference=less)
    assert checks["rotary tables"].verdict == "fail"


# --- the measure -----------------------------------------------------------------------------------------------


def test_relative_distance() -> None:
    x = np.array([3.0, 4.0])
    assert relative(x, x * 1.5) == pytest.approx(0.5)
    assert relative(x, x) == 0.0
    assert relative(np.zeros(3), np.zeros(3)) == 0.0
    assert relative(np.zeros(2), x) == float("inf")
    assert relative(x, np.array([3.0, NAN])) == float("inf")
    assert relative(x, np.array([3.0, float("inf")])) == float("inf")
    assert relative(x, np.zeros(3)) == float("inf")


def test_a_port_with_names_of_its_own_is_compared_where_both_have_the_name() -> None:
    ours: Any = {"a.weight": ((2, 2), "1"), "b.weight": ((2,), "2")}
    for theirs, verdict, detail in (
        ({**ours, "fused": ((4,), "3")}, "pass", "2 parameters of the same names equal; 1 on one side only"),
        ({"a.weight": ((2, 2), "9"), "c": ((1,), "3")}, "explained", "1 of 1 parameters of the same names differ"),
        ({"a.weight": ((4,), "1")}, "pass", "not compared: the port names its parameters otherwise"),
    ):
        found = shared_weights(ours, theirs)
        assert (found.verdict, found.detail.startswith(detail)) == (verdict, True), found
