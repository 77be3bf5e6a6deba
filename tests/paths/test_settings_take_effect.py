"""Each setting, on each side alone, reaches the code it replaces and changes what it should, and nothing else."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from parity.errors import InconclusiveError, UsageError
from parity.models.patches import patch_norms
from parity.paths.loop import denoise, prepare
from parity.settings import SETTINGS, Reached, parse
from tests.paths.sides import Outcome, apart, side, walk
from tests.support.settings import tries

pytestmark = pytest.mark.slow

STEPS = 2
"""The first timestep, 1000, is exact in bfloat16; the second is not."""


@dataclass(frozen=True)
class Effect:
    """How far a side goes from its own defaults, relative L2, in one of its values.

    Attributes:
        least, most: bounds, both allowed. of: `noise_pred` or `latents.after` of the last step, `latents.before` of the
            first, or `timesteps`.
    """

    least: float
    most: float
    of: str = "noise_pred"


NOTHING = Effect(0.0, 0.0, "latents.after")
HARMLESS = Effect(0.0, 1e-5, "latents.after")
FAULT = Effect(1e-2, 10.0)

SPLASH = "attention.kernel=splash"
"""What the settings of blocks need on the candidate."""

BOTH: dict[str, Effect] = {
    "dtype=bfloat16": Effect(1e-3, 0.5),
    "dtype=float16": Effect(1e-5, 0.1),
    "attention.mask=none": FAULT,
    "attention.mask=zero_kv": FAULT,
    "attention.mask=zero_kv_rescaled": HARMLESS,
    "attention.mask=segment_ids": HARMLESS,
    "attention.mask=segment_ids_first_row": FAULT,
    "attention.k_smooth=true": HARMLESS,
    "attention.softmax_dtype=bfloat16": Effect(1e-4, 0.1),
    "refiner.mask=none": FAULT,
    "text.reorder=concatenate": HARMLESS,
    "text.byt5_dtype=float32": NOTHING,
    "text.byt5_dtype=bfloat16": Effect(1e-5, 0.1),
    "vision_states=none": HARMLESS,
    "timestep_dtype=float32": NOTHING,
    "timestep_dtype=bfloat16": Effect(1e-5, 1.0),
    "latents_dtype=float32": NOTHING,
    "latents_dtype=bfloat16": Effect(1e-4, 1e-2, "latents.after"),
    "schedule_dtype=float32": NOTHING,
    "schedule_dtype=bfloat16": Effect(1e-5, 1e-2, "timesteps"),
    "guidance_dtype=float32": NOTHING,
    "guidance_dtype=bfloat16": Effect(1e-4, 0.1),
    "norm_dtype=float32": HARMLESS,
    "norm_dtype=bfloat16": Effect(1e-4, 0.5),
    "rope=cached": HARMLESS,
    "rope_dtype=bfloat16": Effect(1e-5, 0.5),
    "cache=deepcache:1,3,2": FAULT,
}

EFFECTS: dict[str, dict[str, Effect]] = {
    "torch": {
        **BOTH,
        "attention.kernel=sdpa": HARMLESS,
        "attention.block_q=64": NOTHING,
        "attention.block_kv=128": NOTHING,
        "attention.block_kv=256": NOTHING,
        "attention.block_padding=unmasked": FAULT,
        "matmul_precision=high": Effect(1e-8, 1e-3),
        "matmul_precision=default": Effect(1e-4, 0.5),
    },
    "torchax": {
        **BOTH,
        "matmul_precision=high": Effect(0.0, 1e-3),  # XLA on the CPU computes float32 products in float32 anyway
        "matmul_precision=default": Effect(0.0, 0.5),
        f"{SPLASH} attention.block_q=64 attention.block_kv=256": HARMLESS,
        f"{SPLASH} attention.block_kv=128": HARMLESS,
        f"{SPLASH} attention.block_padding=unmasked": FAULT,
        "jit=false": HARMLESS,
    },
}

ELSEWHERE = {"device", "mesh", "sharding", "scheduler.warmup_steps"} | {
    s.name for s in SETTINGS if s.places == ("vae",)
}
"""The mesh needs eight devices (tests/e2e/test_run.py), and what places weights on it a mesh (test_mesh.py); a device
another than the CPU (test_devices.py); warm-up calls have a test of their own below; those of the VAE are in
test_vae_stage.py."""

CASES = [(backend, setting) for backend, effects in EFFECTS.items() for setting in effects]


def implemented(backend: str) -> set[str]:
    """Every value that a side takes and that is not its default, as written."""
    found = set()
    for choice in SETTINGS:
        if choice.name in ELSEWHERE:
            continue
        tried = tries(choice, backend)  # type: ignore[arg-type]
        takes = choice.takes.get(backend, tried)  # type: ignore[call-overload]
        found |= {f"{choice.name}={value}" for value in tried if value in takes}
    return found


@functools.cache
def default(backend: str) -> Outcome:
    return walk(side(backend, steps=STEPS))


def value(outcome: Outcome, of: str) -> np.ndarray:
    if of == "timesteps":
        return outcome.timesteps
    return outcome.value(of, step=0 if of == "latents.before" else -1)


@pytest.mark.parametrize("backend", ["torch", "torchax"])
def test_every_implemented_value_is_tried(backend: str) -> None:
    assert implemented(backend) - {"dtype=float32"} == {s for settings in EFFECTS[backend] for s in settings.split()}


@pytest.mark.parametrize(("backend", "setting"), CASES)
def test_a_setting_reaches_its_code_and_takes_effect(backend: str, setting: str) -> None:
    effect = EFFECTS[backend][setting]
    found = walk(side(backend, *setting.split(), steps=STEPS))
    assert set(found.side.reached.expected) == {s.split("=")[0] for s in setting.split()}
    assert found.side.reached.missing == ()
    distance = apart(value(default(backend), effect.of), value(found, effect.of))
    assert effect.least <= distance <= effect.most
    assert math.isfinite(distance)
    assert all(np.isfinite(found.value("latents.after", step=i)).all() for i in range(STEPS))


@pytest.mark.parametrize("backend", ["torch", "torchax"])
def test_warm_up_calls_move_the_scheduler(backend: str) -> None:
    loaded = side(backend, "scheduler.warmup_steps=1", steps=STEPS)
    loop = prepare(loaded)
    assert loop.schedule.step_index == 1
    assert loaded.reached.missing == ()
    first = Outcome(loaded, loop.schedule.timesteps, (next(denoise(loop, None)),))
    expected = default(backend)
    assert np.array_equal(first.value("noise_pred", step=0), expected.value("noise_pred", step=0))
    assert apart(expected.value("latents.after", step=0), first.value("latents.after", step=0)) > 1e-2


@pytest.mark.parametrize(
    "setting",
    [
        "attention.mask=none",
        "attention.mask=zero_kv",
        "refiner.mask=none",
        f"{SPLASH} attention.mask=segment_ids_first_row",
        f"{SPLASH} attention.block_padding=unmasked",
    ],
)
def test_a_fault_is_the_same_on_either_side(setting: str) -> None:
    """So that a candidate's fault can be reproduced on the reference alone."""
    theirs = walk(side("torchax", *setting.split())).noise_pred
    ours = walk(side("torch", setting.split()[-1])).noise_pred
    assert apart(ours, theirs) < 1e-5


def test_a_norm_that_a_setting_would_leave_as_it_is_is_refused() -> None:
    settings = parse("torch", ["norm_dtype=bfloat16"])
    model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.GroupNorm(2, 4))
    with pytest.raises(UsageError, match="this model has GroupNorm too"):
        patch_norms(model, settings, Reached(settings))
    patch_norms(model[:1], settings, reached := Reached(settings))
    model[:1](torch.ones(1, 4))
    assert reached.missing == ()


def test_code_that_was_not_reached_is_told() -> None:
    reached = Reached(parse("torch", ["rope=cached", "norm_dtype=bfloat16"]))
    reached.mark("rope")
    assert reached.missing == ("norm_dtype",)
    with pytest.raises(InconclusiveError, match=r"never reached .* norm_dtype"):
        reached.require()
