"""CogVideoX's parts: text, rotary tables, attention, rows and sizes are diffusers' own; the tiny ones hide no fault."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import diffusers
import pytest
import torch

from parity.errors import UsageError
from parity.models.attention import AttentionSettings
from parity.models.cogvideox import transformer as cogvideox
from parity.models.cogvideox.family import CogVideoX
from parity.models.cogvideox.sampler import CogVideoXSampler, _StepNoise
from parity.models.family import require_meaning
from parity.models.registry import make_case, resolve_model
from parity.models.spec import Case, GenerationSpec
from parity.models.stage1 import Conditions
from parity.reached import Reached
from parity.settings import SETTINGS, parse
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


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_weights_are_neither_tame_nor_chaotic(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = transformer(name), case(name)
    FAMILY.adapt(model, made, Reached(parse("torch", ["attention.kernel=sdpa"])), traced=False)
    text = encode(made, "float32")
    latents = torch.randn(made.latent_shape, generator=torch.Generator().manual_seed(0))
    attended, streams = [], []
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]), dim=-1)
        attended.append(float(weights.amax(-1).mean()) * weights.shape[-1])
        return sdpa(query, key, value, **options)

    def seen(module: Any, args: Any, given: dict[str, Any], out: tuple[torch.Tensor, ...]) -> None:
        before = (given["hidden_states"], given["encoder_hidden_states"])
        gains = [((new - old).norm() / old.norm()).item() for new, old in zip(out, before, strict=True)]
        streams.append(([x.square().mean().sqrt().item() for x in out], gains))

    handles = [b.register_forward_hook(seen, with_kwargs=True) for b in model.transformer_blocks]

    def forward(x: torch.Tensor, branch: str = "cond") -> torch.Tensor:
        out: torch.Tensor = model(hidden_states=x, timestep=torch.tensor([999]), **text[branch], return_dict=False)[0]
        return out

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    out = forward(latents)
    monkeypatch.undo()
    for handle in handles:
        handle.remove()
    assert len(streams) == len(attended) == 4
    assert all(peak > 8 for peak in attended), attended  # 1 is uniform
    for rms, gains in streams:
        assert all(0.3 < x < 10 for x in rms)
        assert all(0.2 < x < 2 for x in gains)
    assert 0.5 < out.square().mean().sqrt() < 2
    assert 0.05 < (out - forward(latents, "uncond")).norm() / out.norm() < 0.5
    moved = forward(latents * (1 + 1e-4 * torch.sign(torch.randn_like(latents))))
    assert (moved - out).norm() / out.norm() < 5e-4


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


@pytest.mark.parametrize("patch_size_t", [None, 2])
def test_rotary_tables_are_the_pipelines(pipeline: Any, patch_size_t: int | None, monkeypatch: Any) -> None:
    config = diffusers.configuration_utils.FrozenDict({**pipeline.transformer.config, "patch_size_t": patch_size_t})
    monkeypatch.setattr(pipeline.transformer, "_internal_dict", config)
    expected = pipeline._prepare_rotary_positional_embeddings(48, 128, 6, torch.device("cpu"))
    found = cogvideox.Rotary(config)(torch.empty(1, 6, 16, 6, 16))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape[0] == 3 * 8 * (6 if patch_size_t is None else 3)
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_attention_is_diffusers_own(name: str) -> None:
    block = transformer(name).transformer_blocks[1].attn1
    draw = torch.Generator().manual_seed(0)
    image, text = torch.randn(2, 48, 128, generator=draw), torch.randn(2, 32, 128, generator=draw)
    turn = torch.randn(48, 16, generator=draw).repeat_interleave(2, dim=1)
    tables = (turn.cos(), turn.sin()) if name.endswith("1.5") else None
    expected = block(image, text, image_rotary_emb=tables)
    block.set_processor(cogvideox.JointAttention(AttentionSettings("sdpa", "none"), Reached(parse("torch"))))
    for ours, theirs in zip(block(image, text, image_rotary_emb=tables), expected, strict=True):
        assert torch.equal(ours, theirs)


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


@pytest.mark.parametrize("change", [{"height": 72}, {"width": 104}, {"num_frames": 8}])
def test_a_video_that_does_not_fit_is_refused(change: dict[str, int]) -> None:
    made = case("tiny-cogvideox-1.5")
    with pytest.raises(UsageError, match=r"multiples of 16, frames one more than a multiple of 4"):
        FAMILY.latent_shape(made.folder, replace(made.spec, **change))


@pytest.mark.parametrize("name", NAMES)
def test_settings_without_a_place_are_refused_and_the_others_are_not(name: str) -> None:
    made = case(name)
    for choice in SETTINGS:
        for value in choice.takes.get("torch", choice.tries("torch")):
            settings = parse("torch", [f"{choice.name}={value}"])
            if choice.name in FAMILY.without(made.config) and settings.changed(choice.name):
                with pytest.raises(UsageError, match=rf"'{choice.name}={value}', which has no meaning for '{name}'"):
                    require_meaning(FAMILY, made, settings)
            else:
                require_meaning(FAMILY, made, settings)
    assert ("rope" in FAMILY.without(made.config)) == (name == "tiny-cogvideox-1.0")


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


def test_steps_that_diffusers_miscounts_and_guidance_of_1_are_refused() -> None:
    with pytest.raises(UsageError, match="makes 62 timesteps of it, the last -1"):
        sampler(61)
    made = case("tiny-cogvideox-1.0")
    with pytest.raises(UsageError, match="guidance_scale 1 switches"):
        CogVideoXSampler.load(made.folder, replace(made.spec, guidance_scale=1.0), 0)


def test_the_noise_of_a_step_is_the_same_wherever_the_stream_stood() -> None:
    stream = _StepNoise(3)
    stream.stand_before(5, (2, 8))
    late = stream.draw((2, 8))
    stream.stand_before(1, (2, 8))
    stream.draw((2, 8))
    stream.stand_before(5, (2, 8))
    assert torch.equal(stream.draw((2, 8)), late)
    whole = torch.Generator().manual_seed(3)
    draws = [torch.randn(2, 8, generator=whole) for _ in range(11)]
    assert torch.equal(late, draws[10])
