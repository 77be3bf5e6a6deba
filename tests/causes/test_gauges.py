"""What is measured from values: a gain, an order, a mask, an argument, a schedule; silence for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parity.causes.match import error_vector
from parity.causes.values import dtype, reordering, schedule, values, values_elsewhere, working_dtype
from parity.compare.result import Distance, SiteDiff, StepDiff
from parity.records import Record, StepRecords
from parity.transforms import bfloat16
from tests.support.made import evidence, tensor

X = np.random.default_rng(0).standard_normal((1, 96, 64))
NOISE = np.random.default_rng(1).standard_normal(X.shape)


def mask(keys: Sequence[int], additive: bool = False) -> Record:
    x = np.zeros((1, 1, 16), np.float32)
    x[..., list(keys)] = 1.0
    return tensor("m:in.attention_mask", (1.0 - x) * -10000.0 if additive else x)


# --- values at the origin --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        *((tensor("m:out", X), tensor("m:out", gain * X), f"times {gain:.5g}") for gain in (0.9, 1.001, 2.0, -1.0)),
        (tensor("m:out", X), tensor("m:out", X[:, ::-1].copy()), "in another order"),
        (tensor("m:out", X), tensor("m:out", X + NOISE), ""),
        (mask(range(12)), mask(range(16)), "16 a row on the candidate, 12 on the reference"),
        (mask(()), mask(range(16)), "16 a row on the candidate, 0 on the reference"),
        (mask(range(12)), mask(range(2, 14)), "12 keys a row through, as the reference's, others"),
    ],
)
def test_what_happened_to_the_values_at_the_origin_is_named(ours: Record, theirs: Record, word: str) -> None:
    causes = [cause.cause for cause in values(evidence([ours], [theirs], origin=ours.key))]
    assert len(causes) == bool(word)
    assert all(word in text for text in causes)


def test_what_happened_at_another_difference_is_named_once_with_its_place() -> None:
    text, mixed = tensor(":in.text", X), tensor("n:out", X)
    theirs = [tensor("m:out", X + NOISE), tensor(":in.text", 1.05 * X), tensor("n:out", X + NOISE)]
    asked = evidence([tensor("m:out", X), text, mixed], theirs)
    sites = [SiteDiff(r.key, Distance(0.1, 1e-6, 1e5), verdict="fail", birth="input") for r in (text, mixed)]
    asked = replace(asked, found=replace(asked.found, sites=sites))
    (cause,) = values_elsewhere(asked)
    assert (cause.at, "times 1.05" in cause.cause) == (":in.text", True)
    assert list(values_elsewhere(replace(asked, causes=(cause,)))) == []


GIVEN = np.array([1000.0, 857.6, 600.0])


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (GIVEN - 1, "timestep of the model is 999 on the candidate, 1000 on the reference"),
        (GIVEN[:1] - 1, "timestep of the model is 999 on the candidate, 1000 on the reference"),
        (0.999 * GIVEN, "times 0.999"),
        (np.array([1000.0, 856.0, 600.0]), "rounded to bfloat16"),
        (np.round(GIVEN), "rounded to integers"),
    ],
)
def test_what_happened_to_a_timestep_is_read_from_all_steps(times: np.ndarray, said: str) -> None:
    """Of one alone nobody knows: 999 becomes 1000 in bfloat16, and so does the reference's."""

    def given(side: np.ndarray, step: int) -> StepRecords:
        return StepRecords(step, (tensor(":in.timestep", side[step : step + 1], step=step),))

    at = int(np.argmax(times != GIVEN[: times.size]))
    ours, theirs = given(GIVEN, at), given(times, at)
    asked = evidence(
        ours,
        theirs,
        steps=steps(SIGMAS)[: times.size],
        origin=ours.records[0].key,
        read=lambda n: (given(GIVEN, n), given(times, n)),
    )
    (cause,) = values(asked)
    assert said in cause.cause


@pytest.mark.parametrize("apart", [2e-3, 1e-2, 0.1, 0.5])
def test_noise_of_any_size_is_never_taken_for_another_order(apart: float) -> None:
    rng, x = np.random.default_rng(7), tensor("m:out", X)
    noisy = [X + apart * rng.standard_normal(X.shape) for _ in range(50)]
    assert [found for y in noisy if (found := reordering(x, tensor("m:out", y)))] == []


# --- dtype -----------------------------------------------------------------------------------------------------


def test_the_working_dtype_is_that_of_most_module_outputs() -> None:
    sites = [f"m{i}:out" for i in range(5)]
    wide = [tensor(site, X) for site in sites]
    ours = [replace(r, dtype="float32") for r in wide]
    theirs = [replace(r, dtype="bfloat16" if i < 3 else "float64") for i, r in enumerate(wide)]
    loop = [replace(tensor(f"loop:{i}", X), dtype="float16") for i in range(9)]
    assert working_dtype(wide, theirs) is None  # float64 on one side is no working dtype
    (cause,) = dtype(evidence([*ours, *loop], [*theirs, *loop]))
    assert (cause.setting, cause.reference, cause.candidate) == ("dtype", "float32", "bfloat16")
    assert list(dtype(evidence(ours, [*theirs[:1], *ours[1:]]))) == []
    assert list(dtype(evidence(ours, []))) == []


def test_what_is_not_finite_is_no_small_error() -> None:
    reference = StepRecords(0, (tensor("a:out", X), tensor("b:out", X)))
    keys = [r.key for r in reference.records]
    whole = StepRecords(0, (tensor("a:out", 1.5 * X), tensor("b:out", X)))
    broken = StepRecords(0, (tensor("a:out", X), tensor("b:out", np.full_like(X, np.nan))))
    small, large = (float(np.linalg.norm(error_vector(reference, x, keys))) for x in (whole, broken))
    assert small == pytest.approx(0.5, rel=0.1)
    assert large == pytest.approx(1e6)


# --- arguments -------------------------------------------------------------------------------------------------

TIMES, SITE, CROSS = np.array([751.12, 600.9, 3.0]), ":in.timestep", "cross:in.timestep"


def given(x: Any, site: str = SITE) -> Record:
    return tensor(site, np.asarray(x, np.float32))


def argued(ours: Sequence[Record], theirs: Sequence[Record]) -> list[str]:
    """What is said of the last of these arguments."""
    return [cause.cause for cause in values(evidence(ours, theirs, origin=ours[-1].key))]


@pytest.mark.parametrize(
    ("how", "other"),
    [
        ("rounded down to integers", np.floor(TIMES)),
        ("rounded to bfloat16", bfloat16(TIMES)),
        ("divided by 1000", TIMES / 1000),
    ],
)
def test_what_was_done_to_an_argument_is_named_on_either_side(how: str, other: np.ndarray) -> None:
    (text,) = argued([given(TIMES)], [given(other)])
    assert text.endswith(f"the candidate's is the reference's {how}")
    assert len(argued([given(other)], [given(TIMES)])) == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ([given(TIMES)], [given(TIMES * 1.3)], "times 1.3"),
        ([given(TIMES)], [given(TIMES + np.array([1, 0, 5]))], ""),
        ([given(np.round(TIMES))], [given(np.round(TIMES))], ""),  # equal values were not rounded
        ([given(TIMES, "m:out")], [given(np.floor(TIMES), "m:out")], "m:out is the reference's rounded down"),
        ([given(TIMES), given(TIMES / 2, CROSS)], [given(TIMES), given(TIMES, CROSS)], "the reference has at :in."),
        ([given(TIMES), given(TIMES + 1e-3, CROSS)], [given(TIMES), given(TIMES, CROSS)], ""),  # all but the same
        ([given([1, 1, 1]), given([2, 2, 2], CROSS)], [given([1, 1, 1]), given([1, 1, 1], CROSS)], "times 0.5"),
    ],
)
def test_other_arguments_are_named_only_if_it_is_clear(ours: list[Record], theirs: list[Record], word: str) -> None:
    found = argued(ours, theirs)
    assert len(found) == bool(word)
    assert all(word in text for text in found)


# --- the schedule ----------------------------------------------------------------------------------------------

SIGMAS = np.array([1.0, 0.9375, 0.8333, 0.625, 0.0])
ZERO = Distance(0.0, 0.0, 0.0)


def steps(theirs: np.ndarray, times: np.ndarray | None = None) -> list[StepDiff]:
    both = np.stack([SIGMAS, theirs]).T
    at = np.stack([1000 * SIGMAS, 1000 * theirs if times is None else times]).T
    pairs = [(tuple(at[i]), tuple(both[i]), tuple(both[i + 1] - both[i])) for i in range(4)]
    return [StepDiff(i, *pair, ZERO, ZERO, ZERO) for i, pair in enumerate(pairs)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("diffs", "word", "setting"),
    [
        # The timesteps are rounded themselves, not the sigmas times 1000.
        (steps(bfloat16(SIGMAS), bfloat16(1000 * SIGMAS)), "rounded to bfloat16", "schedule_dtype"),
        (steps(np.append(SIGMAS[1:], 0.0)), "a step ahead", ""),
        (steps(SIGMAS * (1 + 1e-8)), None, ""),
    ],
)
def test_another_schedule_is_named(diffs: list[StepDiff], word: str | None, setting: str) -> None:
    causes = list(schedule(evidence(steps=diffs)))
    assert [(word is not None and word in c.cause, c.setting) for c in causes] == [(True, setting)] * (word is not None)
