"""CogVideoX on both paths: the reference is diffusers' pipeline bit for bit, the candidate agrees, faults are found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from parity.compare.result import Result
from parity.hooks.sites import plan_sites
from parity.models.attention import AttentionSettings
from parity.models.cogvideox import transformer as cogvideox
from parity.models.cogvideox.sampler import CogVideoXSampler
from parity.models.registry import family_of, make_case, resolve_model
from parity.models.spec import Case, GenerationSpec
from parity.paths.inputs import Inputs
from parity.paths.loaded import Loaded
from parity.paths.loop import denoise, prepare, state_of
from parity.paths.reference import load_reference
from parity.runs.request import Request
from parity.settings import parse
from tests.inputs import make_inputs
from tests.paths.sides import apart, walk
from tests.support import lab as faulty
from tests.support.lab import Fault, nothing

pytestmark = pytest.mark.slow

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
@pytest.mark.parametrize("kind", ["CogVideoXDDIMScheduler", "CogVideoXDPMScheduler"])
@pytest.mark.parametrize(("name", "dynamic"), [(OLD, False), (NEW, False), (NEW, True)])
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


BOUNDS: Mapping[str, tuple[float, float]] = {
    "attention.kernel=sdpa": (1e-9, 1e-5),
    "dtype=bfloat16": (1e-3, 0.2),
    "dtype=float16": (1e-4, 0.05),
    "matmul_precision=default": (1e-3, 0.1),
    "matmul_precision=high": (1e-8, 1e-3),
    "timestep_dtype=float32": (0.0, 0.0),
    "timestep_dtype=bfloat16": (1e-2, 1.0),  # 999 becomes 1000
    "latents_dtype=bfloat16": (1e-3, 1e-2),
    "schedule_dtype=float32": (1e-9, 1e-5),
    "schedule_dtype=bfloat16": (1e-5, 1e-2),
    "guidance_dtype=float32": (0.0, 0.0),
    "guidance_dtype=bfloat16": (1e-3, 0.1),
    "norm_dtype=float32": (0.0, 1e-5),
    "norm_dtype=bfloat16": (1e-3, 0.2),
    "rope=cached": (0.0, 0.0),
    "rope_dtype=bfloat16": (1e-4, 1e-2),
}
"""Setting -> how far the latents of two steps go from the defaults', relative L2."""


@functools.cache
def default_latents(name: str) -> np.ndarray:
    return walk(reference(name)).latents


@pytest.mark.parametrize("setting", BOUNDS)
def test_a_setting_reaches_its_code_and_takes_effect(setting: str) -> None:
    found = walk(reference(NEW, setting))
    assert found.side.reached.expected == (setting.split("=")[0],)
    assert found.side.reached.missing == ()
    least, most = BOUNDS[setting]
    assert least <= apart(default_latents(NEW), found.latents) <= most


def test_the_candidate_takes_them_too_and_agrees_with_the_reference() -> None:
    numeric = [f"{name}_dtype=bfloat16" for name in ("timestep", "latents", "schedule", "guidance", "norm", "rope")]
    settings = (*numeric, "rope=cached")
    ours, theirs = walk(reference(NEW, *settings)), walk(candidate(NEW, *settings))
    for found in (ours, theirs):
        assert set(found.side.reached.expected) == {s.split("=")[0] for s in settings}
        assert found.side.reached.missing == ()
    assert apart(default_latents(NEW), ours.latents) > 0.1
    assert apart(ours.latents, theirs.latents) < 0.05  # what bfloat16 leaves of it


@pytest.mark.parametrize("load", [reference, candidate])
def test_observing_changes_no_bit(load: Callable[..., Loaded]) -> None:
    side = load(NEW, steps=1)
    unobserved, observed = walk(side), walk(side, plan_sites(["", *side.modules], "blocks"))
    assert len(observed.steps[0].records) > 100
    for branch in ("cond", "uncond", ""):
        ours, theirs = (found.value("noise_pred", branch=branch) for found in (unobserved, observed))
        assert np.array_equal(ours, theirs)


# --- runs ------------------------------------------------------------------------------------------------------


def diagnose(name: str, fault: Fault = nothing, **how: Any) -> Result:
    """`parity run` in this process, with a fault put into the candidate."""
    return faulty.run(Request(name, parse("torch"), parse("torchax"), **how), fault)


@pytest.mark.parametrize("name", [OLD, NEW])
def test_the_paths_agree(name: str) -> None:
    result = diagnose(name)
    assert result.verdict == "pass", result.reason
    assert 0 < result.steps[0].noise_pred.rel_l2 < 1e-5
    assert {site.key.branch for site in result.sites} == {"", "cond", "uncond"}
    placed = {s.key.port for s in result.sites if s.key.module == "transformer_blocks.0.attn1.attention"}
    assert {"in.query@text", "in.query@image", "out@text", "out@image"} <= placed


def test_rotary_tables_of_another_order_are_found_at_the_image_tokens() -> None:
    class Turned(cogvideox.JointAttention):
        def __call__(self, *args: Any, image_rotary_emb: Any = None, **given: Any) -> Any:
            return super().__call__(*args, image_rotary_emb=tuple(x.flip(0) for x in image_rotary_emb), **given)

    def fault(side: Loaded) -> None:
        how = AttentionSettings.of(side.settings)
        side.backend.module().transformer_blocks[2].attn1.set_processor(Turned(how, side.reached))  # type: ignore

    result = diagnose(NEW, fault)
    assert result.verdict == "fail"
    assert result.origin is not None
    assert result.origin.key.module == "transformer_blocks.2.attn1.attention"
    assert result.origin.key.port == "in.query@image"


def test_swapped_branches_are_found_in_the_guidance() -> None:
    def fault(side: Loaded) -> None:
        sampler: Any = side.sampler
        guide = sampler.guide
        sampler.guide = lambda p, *rest: guide({"cond": p["uncond"], "uncond": p["cond"]}, *rest)

    result = diagnose(OLD, fault)
    assert result.verdict == "fail"
    assert result.origin is not None
    assert (result.origin.key.site, result.origin.birth) == ("loop:noise_pred", "module")


def test_a_forgotten_history_is_found_in_the_step_that_needs_it() -> None:
    def fault(side: Loaded) -> None:
        sampler: Any = side.sampler
        step = sampler.step

        def forgetful(*args: Any) -> torch.Tensor:
            kept, sampler.state = sampler.state, {}
            stepped: torch.Tensor = step(*args)
            assert not kept or sampler.state.keys() == kept.keys()
            return stepped

        sampler.step = forgetful

    result = diagnose(NEW, fault, steps=3)
    assert result.verdict == "fail"
    assert result.origin is not None
    # A step without a history takes the first of its two noises, so the second step shows it.
    assert (result.origin.key.step, result.origin.key.site) == (1, "loop:latents.after")
    assert result.origin.birth == "module"


def test_a_stage1_file_takes_the_place_of_the_prompt(tmp_path: Path) -> None:
    family_of(made(OLD).folder).write_stage1(tmp_path / "stage1.safetensors", inputs(OLD).conditions)
    family, given = family_of(made(OLD).folder), parse("torch")
    found = family.conditions(made(OLD), given, tmp_path / "stage1.safetensors", torch.device("cpu"))
    for branch, condition in inputs(OLD).conditions.items():
        assert torch.equal(found[branch]["encoder_hidden_states"], condition["encoder_hidden_states"])
