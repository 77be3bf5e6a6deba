"""The forward that traces is diffusers' own, bit for bit; other token orders and absent vision states are harmless."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from parity.hooks.rows import Part, take
from parity.models import hunyuan_video_15 as hunyuan
from parity.models.folder import load_part
from parity.models.hunyuan_video_15 import traceable
from parity.settings import Reached, Settings, parse
from tests.paths.sides import apart, inputs, tiny

SDPA = "attention.kernel=sdpa"
"""diffusers' own kernel, so that only the forward differs."""


@pytest.fixture(scope="module")
def model() -> Any:
    """The tiny transformer as diffusers loads it; tests put its forward back."""
    return load_part(tiny().case.folder, "transformer").eval().requires_grad_(False)


def arguments(branch: str, vision: float | None = 0.0) -> dict[str, Any]:
    """The arguments of a call; vision: what the image embeddings are filled with, None for none."""
    case = tiny().case
    settings = parse("torch", ["vision_states=none"] if vision is None else [])
    noise, timestep = inputs("torch").noise, torch.tensor([987.0])
    shared = tiny().family.model_arguments(case, settings, noise, timestep, torch.float32)
    if vision:
        rng = torch.Generator().manual_seed(1)
        shared["image_embeds"] = vision * torch.randn(shared["image_embeds"].shape, generator=rng)
    return {**shared, **inputs("torch").conditions[branch]}


def called(model: Any, given: Mapping[str, Any], settings: Settings | None) -> tuple[torch.Tensor, dict[str, Any]]:
    """The prediction, and the text and mask that the first block is given; settings None for diffusers' own forward."""
    seen: dict[str, Any] = {}

    def see(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen["text"], seen["mask"] = args[1].clone(), args[3].clone()

    handle = model.transformer_blocks[0].register_forward_pre_hook(see, with_kwargs=True)
    try:
        if settings is not None:
            forward = hunyuan.traceable_forward(settings, Reached(settings))
            hunyuan.bind_forward(model, forward)
        with torch.no_grad():
            return model(**given, return_dict=False)[0], seen
    finally:
        handle.remove()
        model.__dict__.pop("forward", None)


def ours(model: Any, branch: str, *settings: str, vision: float | None = 0.0) -> tuple[torch.Tensor, dict[str, Any]]:
    return called(model, arguments(branch, vision), parse("torch", [SDPA, *settings]))


@pytest.mark.parametrize("branch", ["cond", "uncond"])
@pytest.mark.parametrize("vision", [0.0, 1.0])
def test_the_traceable_forward_is_diffusers_bit_for_bit(model: Any, branch: str, vision: float) -> None:
    expected, theirs = called(model, arguments(branch, vision), None)
    found, own = ours(model, branch, vision=vision)
    assert expected.std() > 0.1
    assert torch.equal(found, expected)
    assert torch.equal(own["mask"].bool(), theirs["mask"].bool())
    assert torch.equal(own["text"], theirs["text"])  # the tokens come in diffusers' order
    if vision:  # or the test would show nothing of the vision branch
        assert apart(ours(model, branch)[0].numpy(), found.numpy()) > 1e-2


@pytest.mark.parametrize("branch", ["cond", "uncond"])
@pytest.mark.parametrize(
    ("settings", "vision"),
    [(["text.reorder=concatenate"], 0.0), (["vision_states=none"], None)],
    ids=["concatenated", "no vision states"],
)
def test_what_the_exact_mask_makes_harmless(model: Any, branch: str, settings: list[str], vision: float | None) -> None:
    expected, _ = ours(model, branch)
    found, seen = ours(model, branch, *settings, vision=vision)
    assert apart(expected.numpy(), found.numpy()) < 1e-5
    tokens = 64 + 32 + (16 if vision is not None else 0)
    assert seen["text"].shape[1] == tokens


def test_the_refiners_mask_is_not_harmless(model: Any) -> None:
    for branch in ("cond", "uncond"):
        expected, _ = ours(model, branch)
        assert apart(expected.numpy(), ours(model, branch, "refiner.mask=none")[0].numpy()) > 1e-3


@pytest.mark.parametrize("branch", ["cond", "uncond"])
def test_frames_line_up_the_valid_rows_of_every_order(model: Any, branch: str) -> None:
    family, case, condition = tiny().family, tiny().case, inputs("torch").conditions[branch]
    framed = {}
    for name, vision in (
        ("text.reorder=valid_first", 0.0),
        ("text.reorder=concatenate", 0.0),
        ("vision_states=none", None),
    ):
        settings = parse("torch", [name])
        _, seen = ours(model, branch, name, vision=vision)
        frame = family.rows(case, settings, condition)[1]["text"]
        index, weight = torch.from_numpy(frame.index), torch.from_numpy(frame.weight)
        valid, padded = take(seen["text"], index, weight)
        assert torch.equal(valid + padded, seen["text"][:, frame.index])
        mask, _ = take(seen["mask"].float()[:, :, None], index, weight)
        framed[name] = valid
        assert torch.equal(mask[0, :, 0], weight)  # what the frame calls valid is what the side's own mask does
    first, *others = framed.values()
    assert first.abs().sum() > 0
    for other in others:
        assert torch.equal(other, first)


def test_a_batch_is_what_its_branches_are_alone(model: Any) -> None:
    """Branches of other lengths in one call, as with dp=2: each is reordered by its own mask."""
    both = {k: torch.cat([a, arguments("uncond")[k]]) for k, a in arguments("cond").items()}
    found, _ = called(model, both, parse("torch", [SDPA]))
    for i, branch in enumerate(("cond", "uncond")):
        assert apart(ours(model, branch)[0].numpy(), found[i : i + 1].numpy()) < 1e-5


# --- which rows are text ---------------------------------------------------------------------------------------

BLOCK = "transformer_blocks.0"


@pytest.mark.parametrize(
    ("image", "site", "shape", "frames"),
    [
        (72, f"{BLOCK}.attn.attention:in.query", (1, 184, 4, 32), ["", "text"]),  # joint
        (72, f"{BLOCK}:in.hidden_states", (1, 72, 128), [""]),
        (72, f"{BLOCK}:in.encoder_hidden_states", (1, 112, 128), ["text"]),
        (72, f"{BLOCK}:in.attention_mask", (1, 112), ["text"]),
        (72, ":in.encoder_hidden_states", (1, 64, 48), ["qwen"]),
        (72, ":in.encoder_hidden_states_2", (1, 32, 48), ["byt5"]),
        (72, "context_embedder:out", (1, 64, 128), ["qwen"]),
        (72, "image_embedder:out", (1, 16, 128), ["vision"]),
        (72, "proj_out:out", (1, 72, 32), [""]),
        # Where image and text have as many tokens the name decides.
        (112, f"{BLOCK}:in.hidden_states", (1, 112, 128), [""]),
        (112, f"{BLOCK}:in.encoder_hidden_states", (1, 112, 128), ["text"]),
        (112, f"{BLOCK}:in.attention_mask", (1, 112), ["text"]),
        (112, f"{BLOCK}.norm1_context:out.0", (1, 112, 128), ["text"]),
        (112, f"{BLOCK}.attn.to_q:out", (1, 112, 128), [""]),
        (112, f"{BLOCK}.attn.add_q_proj:out", (1, 112, 128), ["text"]),
        (112, f"{BLOCK}.attn.to_add_out:in.input", (1, 112, 128), ["text"]),
    ],
)
def test_rows_are_known_by_length_and_name(image: int, site: str, shape: tuple[int, ...], frames: list[str]) -> None:
    rule = hunyuan.HunyuanRows(image=image, vision=16, byt5=32, qwen=64, frame=112)
    module, _, port = site.partition(":")
    parts = rule.parts(module, port, shape)
    assert [part.frame for part in parts] == frames
    assert len(parts) == 1 or parts == (Part("image", 0, 72), Part("text", 72, None, "text"))


# --- diffusers' class as a port compiles it predicts what diffusers' own forward does, padded rows without a NaN


def loaded() -> Any:
    return load_part(tiny().case.folder, "transformer").eval().requires_grad_(False)


@pytest.mark.parametrize("branch", ["cond", "uncond"])
def test_the_traceable_model_predicts_what_diffusers_does(branch: str) -> None:
    given = arguments(branch)
    own, changed = loaded(), copy.deepcopy(traceable(loaded()))  # which scripts may copy
    masks: list[torch.Tensor] = []
    refiner = changed.context_embedder.token_refiner.refiner_blocks[0].attn
    inner = refiner.processor.own
    refiner.processor.own = lambda attn, x, text, mask: (masks.append(mask), inner(attn, x, text, mask))[1]
    with torch.no_grad():
        expected, found = (model(**given, return_dict=False)[0] for model in (own, changed))
    assert expected.std() > 0.1
    assert float((found - expected).norm() / expected.norm()) < 1e-6
    assert masks[0].any(dim=-1).all(), "a row without a key is NaN under torchax"
    assert not masks[0].all()
    assert [n for n, _ in own.named_parameters()] == [n for n, _ in changed.named_parameters()]
