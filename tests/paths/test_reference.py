"""The reference is diffusers' own pipeline, bit for bit; its floors know what the loop's values are made of."""

from __future__ import annotations

import functools
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers.models import attention_dispatch
from torch.nn.attention import flex_attention

from parity.floors import HALF_ULP
from parity.models.cogvideox import CogVideoX, CogVideoXSampler
from parity.models.folder import Case, GenerationSpec
from parity.paths.floors import make_variants, with_floors
from parity.paths.loaded import Loaded
from parity.paths.loop import denoise, prepare
from parity.paths.network import Network
from parity.paths.plan import state_of
from parity.paths.reference import torch_scope
from parity.settings import Reached, parse
from tests.paths.sides import side, tiny, walk

STEPS = 4
"""The fewest with a DPM step of CogVideoX that extrapolates: the first has no history, before the second there was but
noise, and the last never does."""


@pytest.fixture
def backend_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """diffusers keeps the last attention backend that any model was set to as the default of all; put it back."""
    registry = attention_dispatch._AttentionBackendRegistry
    monkeypatch.setattr(registry, "_active_backend", registry._active_backend)


def latents_of(pipeline: Any, spec: GenerationSpec, **more: Any) -> np.ndarray:
    """What a pipeline's own call gives for these sizes and prompts, with seed 0."""
    pipeline.set_progress_bar_config(disable=True)
    given = {name: getattr(spec, name) for name in ("prompt", "negative_prompt", "height", "width", "num_frames")}
    drawn = torch.Generator().manual_seed(0)
    found: np.ndarray = pipeline(
        **given, **more, num_inference_steps=STEPS, generator=drawn, output_type="latent"
    ).frames.numpy()
    assert np.isfinite(found).all()
    return found


def pipeline_latents(kernel: str) -> np.ndarray:
    """What HunyuanVideo15Pipeline's own call gives for the tiny model's prompt and sizes with seed 0."""
    spec, pipeline = tiny().case.spec, diffusers.HunyuanVideo15Pipeline.from_pretrained(tiny().case.folder)
    # The full-size model's lengths are set on the instance, not read from the checkpoint.
    pipeline.tokenizer_max_length = spec.tokenizer_max_length
    pipeline.tokenizer_2_max_length = spec.tokenizer_2_max_length
    pipeline.vision_num_semantic_tokens = spec.vision_num_semantic_tokens
    pipeline.prompt_template_encode_start_idx = spec.crop_start
    if kernel == "flex":
        # Off CUDA torch wraps flex_attention in dynamo; parity switches that off in the same way.
        flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
        pipeline.transformer.set_attention_backend("flex")
    assert pipeline.guider.config.guidance_scale > 1  # with guidance, so that both branches count
    return latents_of(pipeline, spec)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels of a GPU may take another order each time")
@pytest.mark.parametrize("kernel", ["sdpa", pytest.param("flex", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("backend_restored")
def test_latents_equal_the_pipelines_bit_for_bit(kernel: str) -> None:
    found = walk(side("torch", f"attention.kernel={kernel}", steps=STEPS)).latents  # before the pipeline sets anything
    expected = pipeline_latents(kernel)
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape == tiny().case.latent_shape
    assert np.array_equal(found, expected)


def test_the_floor_of_dt_is_that_of_the_sigmas_it_is_the_difference_of() -> None:
    """A sigma near 1 one float32 step off moves dt by 6e-8, whatever dt's own size; preflight lets that pass."""
    loaded = side("torch", steps=50)
    loop = prepare(loaded)
    walks = [(variant, prepare(variant.side)) for variant in make_variants(loaded)[:2]]
    first = next(with_floors(denoise(loop, None), walks, None))
    by_site = {key.site: floor for key, floor in first.floors.items() if key.branch == ""}
    sigma = loop.schedule.sigmas[0]
    assert by_site["loop:sigma"].l2 >= HALF_ULP * sigma
    assert by_site["loop:dt"].l2 >= HALF_ULP * sigma


# --- CogVideoX

NEW, OLD = "tiny-cogvideox-1.5", "tiny-cogvideox-1.0"


def with_scheduler(loaded: Loaded, kind: str, dynamic: bool) -> Loaded:
    class Other(CogVideoX):
        def sampler(self, case: Case, seed: int) -> CogVideoXSampler:
            scheduler = getattr(diffusers, kind).from_config(super().sampler(case, seed).scheduler.config)
            return CogVideoXSampler(scheduler, 6.0, dynamic, seed)

    return replace(loaded, network=Network(Other(), loaded.case))


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels of a GPU may take another order each time")
@pytest.mark.parametrize(
    ("name", "kind", "dynamic"),
    [
        (OLD, "CogVideoXDDIMScheduler", False),
        (NEW, "CogVideoXDPMScheduler", False),
        (NEW, "CogVideoXDPMScheduler", True),
    ],
)
def test_cogvideox_latents_equal_the_pipelines(name: str, kind: str, dynamic: bool) -> None:
    found = walk(with_scheduler(side("torch", "attention.kernel=sdpa", steps=STEPS, model=name), kind, dynamic)).latents
    case = tiny(name).case
    pipeline = diffusers.CogVideoXPipeline.from_pretrained(case.folder)
    pipeline.scheduler = getattr(diffusers, kind).from_config(pipeline.scheduler.config)
    more = {"use_dynamic_cfg": dynamic, "max_sequence_length": case.spec.tokenizer_max_length}
    expected = latents_of(pipeline, case.spec, **more)
    assert found.shape == expected.shape == case.latent_shape
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", [OLD, NEW])
def test_cogvideox_is_given_an_image_as_its_pipeline_gives_it(name: str, tmp_path: Path) -> None:
    """An image-to-video checkpoint: latents of an image behind the noise, and of 1.5 an offset."""
    kind, folder = diffusers.CogVideoXImageToVideoPipeline, tmp_path / "model"
    shutil.copytree(tiny(name).case.folder, folder)
    config = {**tiny(name).case.config, "in_channels": 32, "ofs_embed_dim": 64 if name == NEW else None}
    torch.manual_seed(0)
    diffusers.CogVideoXTransformer3DModel.from_config(config).save_pretrained(folder / "transformer")
    loaded = side("torch", "attention.kernel=sdpa", steps=STEPS, model=str(folder))
    pipeline, case = kind.from_pretrained(folder), tiny(str(folder)).case
    pipeline.scheduler = diffusers.CogVideoXDDIMScheduler.from_config(pipeline.scheduler.config)
    own = (37 * torch.arange(16 * 8 * 12) % 64 - 32) / 16
    pipeline.vae.encode = lambda image: SimpleNamespace(latents=own.reshape(1, 16, 1, 8, 12))
    pipeline.vae_scaling_factor_image = 1.0
    more = {"image": torch.zeros(1, 3, 64, 96), "max_sequence_length": case.spec.tokenizer_max_length}
    found = walk(with_scheduler(loaded, "CogVideoXDDIMScheduler", False)).latents
    assert np.array_equal(found, latents_of(pipeline, case.spec, **more))


def test_noise_is_given_to_a_scheduler_s_step_that_is_decorated(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = with_scheduler(side("torch", steps=STEPS, model=NEW), "CogVideoXDPMScheduler", False)
    plain = walk(loaded).latents
    kind: Any = type(loaded.family.sampler(loaded.case, 0).scheduler)
    step = kind.step

    @functools.wraps(step)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    monkeypatch.setattr(kind, "step", decorated)
    assert np.array_equal(walk(loaded).latents, plain)


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


@pytest.mark.parametrize("before", [True, False])
def test_convolutions_are_never_in_tf32_while_a_side_computes(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", before)
    with torch_scope(Reached(parse("torch", []))):
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 is before
