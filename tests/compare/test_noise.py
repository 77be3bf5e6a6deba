"""The noise that a loop starts from: its structure is told from another draw."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.detect.glue import Glue
from parity.golden.records import LOOP, Key, StepRecords
from parity.golden.values import value_record


def blocks(size: int, seed: int, strength: float = 0.2) -> np.ndarray:
    """Noise whose blocks of `size` x `size` share a part; of size 1 it is white."""
    rng = np.random.default_rng(seed)
    white = rng.normal(size=(1, 4, 4, 16, 16))
    common = rng.normal(size=(1, 4, 4, 16 // size, 16 // size)).repeat(size, -1).repeat(size, -2)
    return white if size == 1 else np.sqrt(1 - strength) * white + np.sqrt(strength) * common


def said(ours: np.ndarray, theirs: np.ndarray) -> str:
    glue, sides = Glue(), []
    for x in (ours, theirs):
        times = value_record(Key("transformer", 0, "", "schedule:timesteps"), np.arange(3.0), "float64")
        sides.append(
            StepRecords(0, (times, value_record(Key("transformer", 0, "", f"{LOOP}:latents.before"), x, "float32")))
        )
    glue.add(*sides)
    (cause,) = glue.found
    return cause.cause


@pytest.mark.parametrize("size", [2, 4])
def test_noise_of_blocks_is_told_from_noise_without(size: int) -> None:
    assert "neighbours" in said(blocks(size, 1), blocks(1, 2))
    assert "neighbours" in said(blocks(1, 1), blocks(size, 2))


@pytest.mark.parametrize("size", [1, 2])
def test_another_draw_of_the_same_structure_is_another_draw(size: int) -> None:
    for seed in range(5):
        assert said(blocks(size, seed), blocks(size, seed + 100)).startswith(
            "the initial noise is another: another seed"
        )
