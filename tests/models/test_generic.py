"""A transformer that nobody wrote a line for: inputs from its signature and config, rows of text from its mask."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.tiny_families import make
from parity.errors import UsageError
from parity.hooks.rows import SEQUENCE, WHOLE, Part
from parity.models.folder import class_of, read_config, skeleton
from parity.models.generic import EulerSampler, TextRows, frame_of_mask, text_masks
from parity.models.generic_inputs import TEXT, Signature, fitting, make_arguments, signature_of
from parity.models.registry import opened
from parity.paths.network import Network
from tests.support.models import checkpoint


def _signature(folder: Path, name: str, **changes: Any) -> tuple[Signature, torch.nn.Module]:
    make(folder, name, **changes)
    model = skeleton(folder, "transformer")
    return signature_of(class_of(folder, "transformer"), read_config(folder, "transformer"), model), model


def test_what_a_config_leaves_out_is_the_class_s_own_default(tmp_path: Path) -> None:
    """HunyuanVideo has guidance unless its config says otherwise, and cannot be called without it then."""
    signature, _ = _signature(tmp_path, "hunyuan")
    assert "guidance" in make_arguments(signature, {}).tensors
    signature, _ = _signature(tmp_path, "hunyuan", guidance_embeds=False)
    assert "guidance" not in make_arguments(signature, {}).tensors


def test_the_order_of_a_video_s_axes_is_that_which_the_class_reads(tmp_path: Path) -> None:
    assert _signature(tmp_path / "a", "consisid")[0].latent_shape() == (1, 2, 4, 8, 12)
    assert _signature(tmp_path / "b", "wan")[0].latent_shape() == (1, 4, 2, 8, 12)


@pytest.mark.parametrize("returned", [lambda x: x, lambda x: (x,), lambda x: [x], lambda x: SimpleNamespace(sample=x)])
def test_a_prediction_may_be_returned_bare(returned: Any, tmp_path: Path) -> None:
    """Kandinsky 5's is, whatever `return_dict` says."""
    make(tmp_path, "wan")
    family, case = opened(str(tmp_path))
    x = torch.zeros(2, 3)
    assert Network(family, case).predict(lambda **arguments: returned(x), {}) is x


class Plain(torch.nn.Module):
    """Its comments speak of what its code does not do."""

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        # batch_size, num_frames, channels, height, width = hidden_states.shape; timestep * 1000
        return hidden_states * timestep


class Scaling(torch.nn.Module):
    """Its code is spread over lines as no formatter would."""

    # fmt: off
    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        batch, num_frames, channels, height, width = \
            hidden_states.shape
        timestep = (timestep  # of 0 to 1
                    * 1000)
        return hidden_states * timestep * (batch * num_frames * channels * height * width)
    # fmt: on


@pytest.mark.parametrize(("kind", "scale", "frames_first"), [(Plain, 1000.0, False), (Scaling, 1.0, True)])
def test_a_forward_is_read_by_its_code_alone(kind: type[torch.nn.Module], scale: float, frames_first: bool) -> None:
    found = signature_of(kind, {}, kind())
    assert (found.timestep_scale, found.frames_first) == (scale, frames_first)


def test_every_axis_of_the_rotary_tables_is_used(tmp_path: Path) -> None:
    signature, _ = _signature(tmp_path / "a", "flux2")
    made = make_arguments(signature, {}).tensors
    used = (made["img_ids"] != 0).any(dim=0) | (made["txt_ids"] != 0).any(dim=0)
    assert used.tolist() == [False, True, True, True]  # an image has one frame
    signature, _ = _signature(tmp_path / "b", "flux")
    made = make_arguments(signature, {}).tensors
    assert made["img_ids"].max(dim=0).values.tolist() == [0, 3, 5]
    assert not made["txt_ids"].any()


def test_an_optional_argument_with_which_the_class_cannot_be_called_is_left_out(tmp_path: Path) -> None:
    """Latte folds its frames into the batch, and takes a mask of as many."""
    signature, model = _signature(tmp_path, "latte")
    made = make_arguments(signature, {})
    found = fitting(signature, model, made, {})
    assert found.left_out == ("encoder_attention_mask",)
    assert set(found.tensors) == set(made.tensors) - {"encoder_attention_mask"}
    own = {"encoder_attention_mask": torch.ones(2, TEXT)}
    assert fitting(signature, model, make_arguments(signature, own), own).left_out == ()


@pytest.mark.parametrize(("image", "tokens"), [(None, TEXT), (8, 512)])
def test_a_class_that_counts_its_text_is_given_so_many_tokens(image: int | None, tokens: int, tmp_path: Path) -> None:
    """Wan takes all before the last 512 for the image: of fewer nothing would read the image."""
    signature, _ = _signature(tmp_path, "wan", image_dim=image)
    made = make_arguments(signature, {}).tensors
    assert made["encoder_hidden_states"].shape[1] == tokens
    assert ("encoder_hidden_states_image" in made) == (image is not None)


def test_a_tensor_without_axes_is_a_number(tmp_path: Path) -> None:
    """A class takes numbers too, which no tensor can stand for: a length that a shape is made of."""
    signature, _ = _signature(tmp_path, "ltx")
    own = {"num_frames": torch.tensor(3), "timestep": torch.tensor(500.0)}
    made = make_arguments(signature, own)
    assert (made.static["num_frames"], type(made.static["num_frames"])) == (3, int)
    assert "num_frames" not in made.tensors
    assert "timestep" in made.tensors


# --- Which rows of a generic transformer's tensors are padded text, from the mask among its inputs

TEXT_ROWS = (Part(frame="text"),)


@pytest.mark.parametrize(
    ("site", "shape", "found"),
    [
        ("context_embedder:out", (1, 16, 32), TEXT_ROWS),
        ("blocks.0:out.1", (1, 16, 32), TEXT_ROWS),
        ("blocks.0.attn.attention:in.key", (1, 16, 4, 8), TEXT_ROWS),
        ("blocks.0:out.0", (1, 48, 32), WHOLE),
        ("blocks.0.attn.attention:out", (1, 64, 4, 8), WHOLE),  # joint
        ("time:out", (1, 16), WHOLE),
        ("blocks.0:in.attention_mask", (1, 16, 1), WHOLE),
    ],
)
def test_tensors_with_the_texts_rows_are_text(site: str, shape: tuple[int, ...], found: tuple[Part, ...]) -> None:
    module, _, port = site.partition(":")
    assert TextRows(16, (48, 24)).parts(module, port, shape) == found


@pytest.mark.parametrize(
    ("shape", "config", "frames_first", "tokens"),
    [
        ((1, 16, 3, 8, 12), {"patch_size": [1, 2, 2]}, False, (72, 24)),
        ((1, 6, 16, 8, 12), {"patch_size": 2, "patch_size_t": 2}, True, (72, 24)),
        ((1, 16, 8, 12), {"patch_size": 2}, False, (24,)),
        ((1, 16, 2, 32, 48), {}, False, (3072, 1536, 768, 384, 192, 96, 48, 24, 12, 6)),
    ],
)
def test_how_many_tokens_latents_are(
    shape: tuple[int, ...], config: dict[str, Any], frames_first: bool, tokens: tuple[int, ...]
) -> None:
    signature = Signature("Net", config, (), (), 1.0, frames_first)
    assert signature.tokens(torch.zeros(shape)) == tokens


def test_a_port_may_keep_fewer_of_them_where_it_has_a_mask_of_so_many() -> None:
    rule = TextRows(16, (48,))
    assert rule.parts("context_embedder", "out", (1, 12, 32), {12}) == TEXT_ROWS
    assert rule.parts("context_embedder", "out", (1, 12, 32), {9}) == WHOLE
    assert rule.parts("blocks.0.text", "out", (1, 64, 32), {64}) != TEXT_ROWS, "a joint mask is none of the text's"


def test_a_joint_sequence_is_whole_and_beside_it_what_its_mask_lets_be_read() -> None:
    rule = TextRows(16)
    assert rule.parts("blocks.0.attn.attention", "in.key", (1, 48, 2, 8), {48, 16}) == SEQUENCE
    assert rule.parts("blocks.0.attn.attention", "in.key", (1, 48, 2, 8), {16}) == WHOLE, "no mask says"
    assert rule.parts("blocks.0", "in.attention_mask", (1, 48, 1), {48}) == WHOLE


def test_a_joint_mask_says_how_many_tokens_the_image_is_though_it_might_be_as_many_as_the_text() -> None:
    rule = TextRows(16, (64, 32, 16))
    assert rule.parts("blocks.0", "out.1", (1, 16, 32), {48}) == TEXT_ROWS
    assert rule.parts("blocks.0", "out.1", (1, 16, 32), {32}) == WHOLE
    assert rule.parts("blocks.0", "out.1", (1, 16, 32)) == WHOLE


def test_the_mask_among_the_inputs_says_which_are_valid() -> None:
    mask = torch.tensor([[1, 0, 1, 1]])
    found = text_masks({"encoder_attention_mask": mask, "encoder_attention_mask_2": 1 - mask})
    assert {which: valid.tolist() for which, valid in found.items()} == {
        "": [True, False, True, True],
        "_2": [False, True, False, False],
    }
    frame = frame_of_mask(found[""])
    assert (frame.index.tolist(), frame.weight.tolist()) == ([0, 2, 3, 1], [1.0, 1.0, 1.0, 0.0])
    assert not text_masks({"encoder_attention_mask": torch.ones(1, 4)}), "nothing is padded"
    assert not text_masks({"encoder_hidden_states": torch.ones(1, 4)})


@pytest.mark.parametrize(("name", "said"), [("allegro", ["image_rotary_emb"]), ("wan", [])])
def test_positions_that_nobody_gives_are_said(name: str, said: list[str]) -> None:
    """diffusers' pipeline makes them, and the class goes on without."""
    family, case = opened(str(checkpoint(name)))
    found = [detail.split()[0] for check, _, detail in family.checks(case) if check == "positions"]
    assert found == said


def test_a_prompt_that_nothing_encodes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--prompt: .* takes its embeddings as inputs"):
        opened(str(checkpoint("wan")), prompt="a cat")


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_no_timestep_that_is_made_is_one_that_bfloat16_holds(steps: int, scale: float) -> None:
    """A port that rounds its timesteps would pass."""
    sampler = EulerSampler(scale)
    sampler.set_schedule(steps, "cpu", lambda x: x, None)
    assert not (sampler.timesteps.bfloat16().float() == sampler.timesteps).any()


def test_no_two_steps_that_are_made_are_equally_long() -> None:
    """A port's loop that takes another step's length would pass."""
    sampler = EulerSampler(1.0)
    sampler.set_schedule(8, "cpu", lambda x: x, None)
    assert len(set(sampler.sigmas.diff().tolist())) == 8
