"""`parity.compare.detect.handed`: a decoder's input is judged by its own side's latents where their floor is wide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from parity.compare.detect.glue import Glue
from parity.compare.detect.held import bfloat16
from parity.compare.diff import judge_streams
from parity.compare.judge import Judge
from parity.golden.records import AFTER, Floor, Key, StepRecords
from parity.golden.values import value_record

SCALE = 1.037
SHAPE = (1, 4, 3, 6, 6)
OURS = bfloat16(np.random.default_rng(0).normal(size=SHAPE))
THEIRS = bfloat16(OURS + 0.05 * np.random.default_rng(1).normal(size=SHAPE))
"""Another rounding's latents, within their floor."""

Made = Callable[[np.ndarray], np.ndarray]


def divided(x: np.ndarray) -> np.ndarray:
    return x / SCALE


def by_channel(x: np.ndarray) -> np.ndarray:
    channel = np.arange(1, 5).reshape(1, 4, 1, 1, 1)
    return x * (0.9 + 0.05 * channel) + 0.1 * channel


def frames_first(make: Made) -> Made:
    return lambda x: make(x.swapaxes(1, 2))


def noised(x: np.ndarray) -> np.ndarray:
    return x / SCALE + 0.05 * np.random.default_rng(2).normal(size=x.shape)


def steps(latents: np.ndarray, make: Made) -> list[StepRecords]:
    """The last step and what follows it, in bfloat16, with floors of a tenth."""
    last = value_record(Key("transformer", 0, "", "loop:latents.after"), latents.astype(np.float32), "bfloat16")
    given = bfloat16(make(latents)).astype(np.float32)
    after = value_record(Key(AFTER, -1, "", "decode:in.z"), given, "bfloat16")
    return [
        StepRecords(record.key.step, (record,), {record.key: Floor(0.1 * float(np.linalg.norm(value)))})
        for record, value in ((last, latents), (after, given))
    ]


def verdict(ours: Made, theirs: Made) -> tuple[str, Glue]:
    glue = Glue(({"vae.scaling_factor": str(SCALE)},) * 2)
    pairs = zip(steps(OURS, ours), steps(THEIRS, theirs), strict=True)
    collected, _ = judge_streams(pairs, Judge(), glue)
    return next(d.verdict for d in collected.found if d.key.site == "decode:in.z"), glue


@pytest.mark.parametrize("laid", [lambda make: make, frames_first], ids=["as it is", "frames first"])
def test_a_factor_within_the_floor_of_the_latents_is_found(laid: Callable[[Made], Made]) -> None:
    found, glue = verdict(laid(divided), laid(lambda x: x))
    assert found == "fail"
    assert [c.cause for c in glue.found] == [
        "what the VAE decodes is 1.037 times the reference's: the latents are not divided by scaling_factor 1.037"
    ]
    assert glue.notes == ["decode:in.z is compared with what the reference's scaling makes of the candidate's latents"]


def test_scales_by_channel_are_found() -> None:
    assert verdict(by_channel, lambda x: by_channel(x) * 1.02)[0] == "fail"


@pytest.mark.parametrize("make", [divided, by_channel, noised, lambda x: x, frames_first(divided)])
def test_the_same_scaling_of_other_latents_passes(make: Made) -> None:
    found, glue = verdict(make, make)
    assert (found, glue.notes) == ("pass", [])


def test_rounding_of_the_scaling_itself_passes() -> None:
    """A constant rounded to bfloat16, a product by an inverse instead of a division, float32 on one side."""
    for other in (lambda x: x / bfloat16(np.array(SCALE)), lambda x: bfloat16(x * bfloat16(np.array(1 / SCALE)))):
        assert verdict(divided, other)[0] == "pass"


def test_where_one_side_does_more_than_scale_nothing_is_said() -> None:
    assert verdict(noised, divided)[0] == "pass"
    assert verdict(divided, noised)[0] == "pass"
