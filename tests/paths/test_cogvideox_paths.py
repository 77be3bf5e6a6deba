"""CogVideoX: the reference is diffusers' pipeline bit for bit, and a loop goes on from a recorded step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import diffusers
import numpy as np
import pytest
import torch

from parity.models.cogvideox.sampler import CogVideoXSampler
from parity.models.registry import family_of, make_case, resolve_model
from parity.models.spec import Case, GenerationSpec
from parity.paths.inputs import Inputs
from parity.paths.loaded import Loaded
from parity.paths.loop import denoise, prepare, state_of
from parity.paths.reference import load_reference
from parity.settings import parse
from tests.inputs import make_inputs
from tests.paths.sides import walk

STEPS = 4
"""The fewest with a DPM step that extrapolates: the first has no history, at the second the extrapolation is none as
there was nothing but noise before it, and the last never does."""

NEW, OLD = "tiny-cogvideox-1.5", "tiny-cogvideox-1.0"


@functools.cache
def made(name: str) -> Case:
    folder = resolve_model(name)
    return make_case(name, folder, GenerationSpec.load(folder))


@functools.cache
def inputs(name: str, dtype: str = "float32") -> Inputs:
    given = parse("torch", [f"dtype={dtype}"])
    return make_inputs(family_of(made(name).folder), made(name), given)


def reference(name: str, *settings: str, steps: int = 2) -> Loaded:
    parsed = parse("torch", settings)
    given = replace(inputs(name, parsed.text("dtype")), steps=steps)
    return load_reference(family_of(made(name).folder), made(name), parsed, given)


def candidate(name: str, *settings: str, steps: int = 2) -> Loaded:
    from parity.paths.jax.candidate import load_candidate

    given = replace(inputs(name), steps=steps)
    return load_candidate(family_of(made(name).folder), made(name), parse("torchax", settings), given)


def with_scheduler(side: Loaded, kind: str, dynamic: bool) -> Loaded:
    scheduler = getattr(diffusers, kind).from_config(side.sampler.fresh().scheduler.config)  # type: ignore[attr-defined]
    return replace(side, sampler=CogVideoXSampler(scheduler, 6.0, dynamic, 0))


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels of a GPU may take another order each time")
@pytest.mark.parametrize(
    ("name", "kind", "dynamic"),
    [
        (OLD, "CogVideoXDDIMScheduler", False),
        (NEW, "CogVideoXDPMScheduler", False),
        (NEW, "CogVideoXDPMScheduler", True),
    ],
)
def test_latents_equal_the_pipelines_bit_for_bit(name: str, kind: str, dynamic: bool) -> None:
    found = walk(with_scheduler(reference(name, "attention.kernel=sdpa", steps=STEPS), kind, dynamic)).latents
    pipeline = diffusers.CogVideoXPipeline.from_pretrained(made(name).folder)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.scheduler = getattr(diffusers, kind).from_config(pipeline.scheduler.config)
    spec = made(name).spec
    out = pipeline(
        prompt=spec.prompt,
        negative_prompt=spec.negative_prompt,
        height=spec.height,
        width=spec.width,
        num_frames=spec.num_frames,
        num_inference_steps=STEPS,
        use_dynamic_cfg=dynamic,
        generator=torch.Generator().manual_seed(0),
        max_sequence_length=spec.tokenizer_max_length,
        output_type="latent",
    )
    expected = out.frames.numpy()
    assert found.shape == expected.shape == made(name).latent_shape
    assert np.isfinite(found).all()
    assert np.array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("load", [reference, candidate])
def test_a_loop_goes_on_from_the_records_of_the_step_before(load: Callable[..., Loaded]) -> None:
    side = load(NEW, steps=STEPS)
    steps = list(denoise(prepare(side), None))
    state = state_of(steps[1], "after")
    assert set(state) == {"latents", "pred_original"}
    assert state_of(steps[2], "before").keys() == state.keys()
    again = prepare(side)
    again.continue_from(2, state)
    for old, new in zip(steps[2:], denoise(again, None, first=2), strict=True):
        for ours, theirs in zip(old.records, new.records, strict=True):
            assert ours.key == theirs.key
            assert np.array_equal(ours.value, theirs.value)
    again = prepare(side)
    again.continue_from(2, {"latents": state["latents"]})  # the history counts, or nothing above would show it
    other = next(denoise(again, None, first=2))
    assert not np.array_equal(state_of(other, "after")["latents"], state_of(steps[2], "after")["latents"])
