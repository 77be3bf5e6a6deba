"""CogVideoX: the reference is diffusers' pipeline bit for bit, and a loop goes on from a recorded step."""

from __future__ import annotations

from dataclasses import replace

import diffusers
import numpy as np
import pytest
import torch

from parity.models.cogvideox.sampler import CogVideoXSampler
from parity.paths.loaded import Loaded
from parity.paths.loop import denoise, prepare, state_of
from tests.paths.sides import side, tiny, walk

STEPS = 4
"""The fewest with a DPM step that extrapolates: the first has no history, at the second the extrapolation is none as
there was nothing but noise before it, and the last never does."""

NEW, OLD = "tiny-cogvideox-1.5", "tiny-cogvideox-1.0"


def with_scheduler(loaded: Loaded, kind: str, dynamic: bool) -> Loaded:
    scheduler = getattr(diffusers, kind).from_config(loaded.sampler.fresh().scheduler.config)  # type: ignore[attr-defined]
    return replace(loaded, sampler=CogVideoXSampler(scheduler, 6.0, dynamic, 0))


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
    found = walk(with_scheduler(side("torch", "attention.kernel=sdpa", steps=STEPS, model=name), kind, dynamic)).latents
    case = tiny(name).case
    pipeline = diffusers.CogVideoXPipeline.from_pretrained(case.folder)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.scheduler = getattr(diffusers, kind).from_config(pipeline.scheduler.config)
    spec = case.spec
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
    assert found.shape == expected.shape == case.latent_shape
    assert np.isfinite(found).all()
    assert np.array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "torchax"])
def test_a_loop_goes_on_from_the_records_of_the_step_before(backend: str) -> None:
    loaded = side(backend, steps=STEPS, model=NEW)
    steps = list(denoise(prepare(loaded), None))
    state = state_of(steps[1], "after")
    assert set(state) == {"latents", "pred_original"}
    assert state_of(steps[2], "before").keys() == state.keys()
    again = prepare(loaded)
    again.continue_from(2, state)
    for old, new in zip(steps[2:], denoise(again, None, first=2), strict=True):
        for ours, theirs in zip(old.records, new.records, strict=True):
            assert ours.key == theirs.key
            assert np.array_equal(ours.value, theirs.value)
    again = prepare(loaded)
    again.continue_from(2, {"latents": state["latents"]})  # the history counts, or nothing above would show it
    other = next(denoise(again, None, first=2))
    assert not np.array_equal(state_of(other, "after")["latents"], state_of(steps[2], "after")["latents"])
