"""CogVideoX's parts: text, rows, sizes and steps are diffusers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import diffusers
import pytest
import torch

from parity.errors import UsageError
from parity.models.cogvideox.family import CogVideoX
from parity.models.cogvideox.sampler import CogVideoXSampler
from parity.models.registry import make_case, resolve_model
from parity.models.spec import Case, GenerationSpec
from parity.models.stage1 import Conditions
from parity.settings import parse
from tests.models.tiny.test_checkpoints import weights_sha256

FAMILY = CogVideoX()
# Figures measured on these weights are only comparable while this holds: a change needs a higher tiny._VERSION.
WEIGHTS_SHA256 = {
    "tiny-cogvideox-1.0": "9ea8331e9e355f12dc693d8ece27fd8eb78da86c19dccbc52998e1bcf6b588e3",
    "tiny-cogvideox-1.5": "919462fd272b3f7f0357b113ef3c128c34e75f77c9424863f91adc62a524783c",
}
NAMES = sorted(WEIGHTS_SHA256)


def case(name: str) -> Case:
    folder = resolve_model(name)
    return make_case(name, folder, GenerationSpec.load(folder))


def encode(made: Case, dtype: str) -> Conditions:
    return FAMILY.conditions(made, parse("torch", [f"dtype={dtype}"]), None, torch.device("cpu"))


def transformer(name: str) -> Any:
    return diffusers.CogVideoXTransformer3DModel.from_pretrained(resolve_model(name), subfolder="transformer").eval()


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_pinned(name: str) -> None:
    assert weights_sha256(resolve_model(name)) == WEIGHTS_SHA256[name]


@pytest.fixture(scope="module")
def pipeline() -> Any:
    made = diffusers.CogVideoXPipeline.from_pretrained(resolve_model("tiny-cogvideox-1.5"))
    made.set_progress_bar_config(disable=True)
    return made


def test_text_is_the_pipelines_bit_for_bit(pipeline: Any) -> None:
    made = case("tiny-cogvideox-1.5")
    found = encode(made, "float32")
    with torch.no_grad():
        expected = pipeline.encode_prompt(
            made.spec.prompt, made.spec.negative_prompt, max_sequence_length=made.spec.tokenizer_max_length
        )
    for branch, embeds in zip(("cond", "uncond"), expected, strict=True):
        assert torch.equal(found[branch]["encoder_hidden_states"], embeds)
    assert not torch.equal(*expected)


def test_joint_rows_are_text_then_image() -> None:
    made = case("tiny-cogvideox-1.5")
    rule = FAMILY.row_rule(made, parse("torch"), {"encoder_hidden_states": torch.empty(1, 32, 64)})
    image, text = rule.parts("transformer_blocks.0.attn1.attention", "in.query", (1, 32 + 48, 4, 32))
    assert (image.name, image.start, image.stop) == ("image", 32, None)
    assert (text.name, text.start, text.stop) == ("text", 0, 32)
    for module, port, shape in (
        ("", "in.encoder_hidden_states", (1, 32, 64)),
        ("transformer_blocks.0", "in.hidden_states", (1, 48, 128)),
        ("time_embedding", "out", (1, 80)),
    ):
        assert [part.name for part in rule.parts(module, port, shape)] == [""]


def test_frames_are_filled_up_to_whole_patches_and_dropped_again() -> None:
    made = case("tiny-cogvideox-1.5")
    assert made.latent_shape == (1, 4, 16, 8, 12)  # 9 frames are 3 of the latent, and a patch takes 2
    assert case("tiny-cogvideox-1.0").latent_shape == (1, 3, 16, 8, 12)
    latents = torch.arange(4.0).reshape(1, 4, 1, 1, 1).expand(made.latent_shape)
    written = FAMILY.stage2(made, latents)
    assert written.shape == (1, 16, 3, 8, 12)
    assert written[0, 0, :, 0, 0].tolist() == [1.0, 2.0, 3.0]  # as CogVideoXPipeline drops them before decoding


@pytest.mark.parametrize("change", [{"width": 104}, {"num_frames": 8}])
def test_a_video_that_does_not_fit_is_refused(change: dict[str, int]) -> None:
    made = case("tiny-cogvideox-1.5")
    with pytest.raises(UsageError, match=r"multiples of 16, frames one more than a multiple of 4"):
        FAMILY.latent_shape(made.folder, replace(made.spec, **change))


def sampler(steps: int, spacing: str = "trailing", kind: str = "CogVideoXDDIMScheduler") -> CogVideoXSampler:
    scheduler = getattr(diffusers, kind)(timestep_spacing=spacing, rescale_betas_zero_snr=True)
    made = CogVideoXSampler(scheduler, 6.0, False, 0)
    made.set_schedule(steps, "cpu", lambda x: x, None)
    return made


@pytest.mark.parametrize(("spacing", "steps"), [("trailing", 1), ("trailing", 7), ("trailing", 50), ("leading", 7)])
def test_sigmas_fall_to_where_the_last_step_ends(spacing: str, steps: int) -> None:
    made = sampler(steps, spacing)
    sigmas = made.sigmas
    assert sigmas.shape == (steps + 1,)
    assert sigmas.dtype == torch.float64
    assert (sigmas.diff() < 0).all()
    assert made.end == sigmas[-1]
    # 1000 is no multiple of 7: the last trailing step, from 142 by 142, ends at timestep 0 and not before it.
    assert (made.end > 0) == (steps == 7 and spacing == "trailing")
