"""CogVideoX's parts: text, rows, sizes and steps are diffusers' own."""

from __future__ import annotations

from typing import Any

import diffusers
import msgspec
import pytest
import torch

from parity.errors import UsageError
from parity.models.cogvideox import CogVideoX, CogVideoXSampler
from parity.models.folder import Case
from parity.paths.port.load import Entry
from parity.paths.port.ported import OwnSampler
from parity.settings import parse
from tests.paths.sides import tiny

FAMILY = CogVideoX()


@pytest.fixture
def case() -> Case:
    return tiny("tiny-cogvideox-1.5").case


def test_text_is_the_pipelines_bit_for_bit(case: Case) -> None:
    pipeline, spec = diffusers.CogVideoXPipeline.from_pretrained(case.folder), case.spec
    found = FAMILY.conditions(case, parse("torch"), None, torch.device("cpu"))
    with torch.no_grad():
        expected = pipeline.encode_prompt(
            spec.prompt, spec.negative_prompt, max_sequence_length=spec.tokenizer_max_length
        )
    for branch, embeds in zip(("cond", "uncond"), expected, strict=True):
        assert torch.equal(found[branch]["encoder_hidden_states"], embeds)
    assert not torch.equal(*expected)


def test_joint_rows_are_text_then_image(case: Case) -> None:
    rule, _ = FAMILY.rows(case, parse("torch"), {"encoder_hidden_states": torch.empty(1, 32, 64)})
    image, text = rule.parts("transformer_blocks.0.attn1.attention", "in.query", (1, 32 + 48, 4, 32))
    assert (image.name, image.start, image.stop) == ("image", 32, None)
    assert (text.name, text.start, text.stop) == ("text", 0, 32)
    for module, port, shape in (
        ("", "in.encoder_hidden_states", (1, 32, 64)),
        ("transformer_blocks.0", "in.hidden_states", (1, 48, 128)),
        ("time_embedding", "out", (1, 80)),
    ):
        assert [part.name for part in rule.parts(module, port, shape)] == [""]


def test_frames_are_filled_up_to_whole_patches_and_dropped_again(case: Case) -> None:
    assert case.latent_shape == (1, 4, 16, 8, 12)  # 9 frames are 3 of the latent, and a patch takes 2
    assert tiny("tiny-cogvideox-1.0").case.latent_shape == (1, 3, 16, 8, 12)
    latents = torch.arange(4.0).reshape(1, 4, 1, 1, 1).expand(case.latent_shape)
    written = FAMILY.stage2(case, latents)
    assert written.shape == (1, 16, 3, 8, 12)
    assert written[0, 0, :, 0, 0].tolist() == [1.0, 2.0, 3.0]  # as CogVideoXPipeline drops them before decoding


@pytest.mark.parametrize("change", [{"width": 104}, {"num_frames": 8}])
def test_a_video_that_does_not_fit_is_refused(change: dict[str, int], case: Case) -> None:
    with pytest.raises(UsageError, match=r"multiples of 16, frames one more than a multiple of 4"):
        FAMILY.latent_shape(case.folder, msgspec.structs.replace(case.spec, **change))


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


@pytest.mark.parametrize(("kind", "off"), [("CogVideoXDDIMScheduler", 0.0), ("DDIMScheduler", 0.17)])
def test_a_port_s_scheduler_without_sigmas_is_compared_by_its_alphas(kind: str, off: float) -> None:
    def schedule(steps: int) -> Any:
        made = getattr(diffusers, kind)(timestep_spacing="trailing", rescale_betas_zero_snr=True)
        made.set_timesteps(steps)
        return made

    def nothing(case: Case) -> None:
        return None

    family, entry = sampler(7), Entry(option="--port", text="p:f", file="p", settings={}, digest="", function=nothing)
    own = OwnSampler(sampler(7), entry, schedule, None)
    own.set_schedule(7, "cpu", lambda x: x, None)
    assert own.sigmas.shape == (8,)
    assert float((own.sigmas - family.sigmas).abs().max()) == pytest.approx(off, abs=0.01)
