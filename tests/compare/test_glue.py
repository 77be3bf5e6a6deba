"""The glue's detectors look at what a stranger's golden holds: arrays for numbers, NaN, nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from parity.compare.detect.glue import Glue, bfloat16
from parity.golden.records import LOOP, Key, StepRecords
from parity.golden.values import value_record

SIZE = 32


def step(**values: np.ndarray) -> StepRecords:
    branches = {"cond": "cond", "uncond": "uncond", "guided": ""}
    records = []
    for name, x in values.items():
        port = "noise_pred" if name in branches else name
        key = Key("transformer", 0, branches.get(name, ""), f"{LOOP}:{port}")
        records.append(value_record(key, np.asarray(x, np.float32), "float32"))
    return StepRecords(0, tuple(records))


def causes(
    ours: StepRecords, theirs: StepRecords, settings: tuple[dict[str, str], dict[str, str]] = ({}, {})
) -> list[str]:
    glue = Glue(settings)
    glue.add(ours, theirs)
    return [cause.setting for cause in glue.found]


def test_a_scheduler_one_step_late_is_named() -> None:
    assert causes(step(step_index=np.array(1)), step(step_index=np.array(2))) == ["scheduler.step_index"]


@pytest.mark.parametrize("other", [np.array([1, 2]), np.array(np.nan), np.zeros((2, 3)), np.zeros(0)])
def test_an_index_that_is_no_number_names_nothing(other: np.ndarray) -> None:
    assert causes(step(step_index=np.array(1)), step(step_index=other)) == []
    assert causes(step(step_index=other), step(step_index=np.array(1))) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("broken", ["cond", "uncond", "guided"])
def test_predictions_that_are_not_finite_name_no_guidance(broken: str, bad: float) -> None:
    cond, uncond = np.random.default_rng(0).normal(size=(2, SIZE))
    whole = {"cond": cond, "uncond": uncond, "guided": uncond + 6 * (cond - uncond)}
    lost = whole | {"guided": cond}
    assert causes(step(**whole), step(**lost)) == ["guidance"]
    spoilt = whole | {broken: np.where(np.arange(SIZE) == 3, bad, whole[broken])}
    assert "guidance" not in causes(step(**whole), step(**spoilt))
    assert "guidance" not in causes(step(**spoilt), step(**whole))


def test_a_guidance_that_is_lost_with_its_branch_is_named() -> None:
    cond, uncond = np.random.default_rng(1).normal(size=(2, SIZE))
    whole = {"cond": cond, "uncond": uncond, "guided": uncond + 6 * (cond - uncond)}
    assert causes(step(**whole), step(cond=cond, guided=cond)) == ["guidance"]
    assert causes(step(**whole), step(cond=cond, guided=1.1 * cond)) == []


def sigmas(shift: float, steps: int = 8) -> StepRecords:
    """As FlowMatchEuler sets them: spaced down to a least sigma that is itself shifted."""

    def shifted(x: np.ndarray) -> np.ndarray:
        return shift * x / (1 + (shift - 1) * x)

    values = np.append(shifted(np.linspace(1.0, shifted(np.array(1e-3)), steps)), 0.0)
    key = Key("transformer", 0, "", "schedule:sigmas")
    return StepRecords(0, (value_record(key, values, "float64"),))


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (
            3.0,
            "the schedule is shifted once more, by 3: sigma' = s sigma / (1 + (s - 1) sigma), or its shift is 3 times",
        ),
        (5 / 7, "the schedule is another: its shift is 0.7143 times the reference's, sigma'"),
    ],
)
def test_a_schedule_of_another_shift_is_told_by_its_factor(factor: float, said: str) -> None:
    """A smaller shift is no second one."""
    a = np.array([1.0, 0.9, 0.6, 0.3, 0.0])
    b = factor * a / (1 + (factor - 1) * a)
    glue = Glue()
    glue.add(
        *(StepRecords(0, (value_record(Key("transformer", 0, "", "schedule:sigmas"), x, "float64"),)) for x in (a, b))
    )
    assert [c.cause[: len(said)] for c in glue.found] == [said]


def test_a_shift_of_the_config_is_named_where_it_makes_the_difference() -> None:
    told = ({"scheduler.shift": "12.0"}, {"scheduler.shift": "3.0"})
    assert causes(sigmas(12.0), sigmas(3.0), told) == ["shift"]
    assert causes(sigmas(12.0), sigmas(5.0), told) == [], "another shift than the config's made that"
    assert causes(sigmas(12.0), sigmas(3.0)) == []


def test_latents_that_are_not_denormalised_by_channel_are_named() -> None:
    rng = np.random.default_rng(2)
    plain = rng.normal(size=(1, 4, 2, 4, 4))
    mean, std = (rng.normal(size=(1, 4, 1, 1, 1)) for _ in range(2))

    def decoded(z: np.ndarray) -> StepRecords:
        key = Key("vae", -1, "", "decode:in.z")
        return StepRecords(-1, (value_record(key, z.astype(np.float32), "float32"),))

    assert causes(decoded(plain * std + mean), decoded(plain)) == ["vae.scaling_factor"]
    assert causes(decoded(plain), decoded(plain + 0.1 * rng.normal(size=plain.shape))) == []
    assert causes(decoded(plain), decoded(plain + 1.5e-3 * rng.normal(size=plain.shape))) == [], "near by itself"


@pytest.mark.parametrize(("how", "steps"), [("rounded to", 50), ("computed in", 50), ("computed in", 20)])
def test_a_schedule_in_bfloat16_is_named_with_what_it_repeats(how: str, steps: int) -> None:
    """By rounding the values of another, or operation by operation, as where bfloat16 is torch's default dtype."""

    def sigmas(narrow: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        ramp = narrow(np.linspace(1, 0, steps + 1))
        return narrow(narrow(9 * ramp) / narrow(1 + narrow(8 * ramp)))

    def recorded(values: np.ndarray, times: np.ndarray) -> StepRecords:
        named = {"schedule:sigmas": values, "schedule:timesteps": times}
        records = (value_record(Key("transformer", 0, "", site), x, "float64") for site, x in named.items())
        return StepRecords(0, tuple(records))

    exact = sigmas(lambda x: x)
    theirs = bfloat16(exact) if how == "rounded to" else sigmas(bfloat16)
    times = bfloat16(1000 * (exact if how == "rounded to" else theirs)[:-1])
    glue = Glue(({}, {}))
    glue.add(recorded(exact, 1000 * exact[:-1]), recorded(theirs, times))
    assert [cause.setting for cause in glue.found] == ["schedule_dtype", "timesteps"]
    assert glue.found[0].cause == f"the schedule's sigmas are {how} bfloat16"
    repeats = int(np.sum(np.diff(times) == 0))
    assert (repeats > 0) == (steps == 50)
    assert f"timesteps are {how} bfloat16: {repeats} of {steps} repeat the one before" in glue.found[1].cause
    coarser = Glue(({}, {}))
    coarser.add(recorded(exact, 1000 * exact[:-1]), recorded(np.round(exact, 1), np.round(1000 * exact[:-1], -2)))
    assert not {cause.setting for cause in coarser.found} & {"schedule_dtype", "timesteps"}


def pictures(levels: np.ndarray, convert: Callable[[np.ndarray], np.ndarray]) -> StepRecords:
    """Frames as the decoder gives them and as they are shown, some of them cut to black or white."""
    floats = value_record(Key("vae", -1, "", "decode:out"), (levels / 127.5 - 1).astype(np.float32), "float32")
    shown = convert(np.clip(levels, 0, 255)).astype(np.uint8)
    return StepRecords(-1, (floats, value_record(Key("vae", -1, "", "video:out"), shown, "uint8")))


LEVELS = np.random.default_rng(0).normal(128, 1, (1, 3, 9, 32, 32))


@pytest.mark.parametrize("spread", [30.0, 300.0], ids=["mid levels", "most cut"])
def test_pictures_that_are_truncated_are_named_however_many_are_cut(spread: float) -> None:
    levels = 128 + spread * (LEVELS - 128)
    rounded, truncated = pictures(levels, np.round), pictures(levels, np.trunc)
    assert causes(rounded, truncated) == ["frames"]
    assert causes(truncated, rounded) == ["frames"]


@pytest.mark.parametrize("other", [LEVELS - 0.3, LEVELS * 0.997, LEVELS[:, ::-1] - 0.4], ids=["less", "gain", "other"])
def test_pictures_that_are_darker_otherwise_are_not_called_truncated(other: np.ndarray) -> None:
    assert causes(pictures(LEVELS, np.round), pictures(other, np.round)) == []
