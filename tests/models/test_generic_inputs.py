"""Inputs made for a transformer that nobody wrote a line for, from its signature and config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.errors import UsageError
from parity.models.folder import class_of, read_config, skeleton
from parity.models.generic.fitting import fitting
from parity.models.generic.inputs import TEXT, Made, Signature, make_arguments, signature_of
from tests.models.generic_models import make


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


def test_a_tensor_without_axes_is_a_number(tmp_path: Path) -> None:
    """A class takes numbers too, which no tensor can stand for: a length that a shape is made of."""
    signature, _ = _signature(tmp_path, "ltx")
    own = {"num_frames": torch.tensor(3), "timestep": torch.tensor(500.0)}
    made = make_arguments(signature, own)
    assert (made.static["num_frames"], type(made.static["num_frames"])) == (3, int)
    assert "num_frames" not in made.tensors
    assert "timestep" in made.tensors


class TakesLists(torch.nn.Module):
    """As AnyFlow's causal class: lists of numbers, a second time, and frames before channels."""

    def __init__(self, in_channels: int = 4, text_dim: int = 8) -> None:
        super().__init__()

    def forward(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        r_timestep: torch.Tensor,
        chunks: list[int],
        grids: list[tuple[int, int]],
        masks: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        hidden_states = hidden_states.permute(0, 2, 1, 3, 4)
        batch_size, num_channels, num_frames, height, width = hidden_states.shape
        return hidden_states.reshape(batch_size, num_channels, num_frames, height, width)


TakesLists.__name__ = "Lists3DModel"
TakesLists.forward.__annotations__["grids"] = "typing.List[typing.Tuple[int, int]]"  # as older classes have it


def test_a_tensor_for_an_argument_of_lists_is_a_list() -> None:
    signature = signature_of(TakesLists, {})
    own = {"chunks": torch.tensor([2, 2]), "grids": torch.tensor([[1, 2]]), "masks": torch.ones(1, 2)}
    made = make_arguments(signature, own)
    assert made.static == {"chunks": [2, 2], "grids": [[1, 2]]}
    assert set(made.tensors) == {"masks", "r_timestep"}
    assert signature.latent_shape() == (1, 2, 4, 4, 6)
    with pytest.raises(UsageError, match="cannot make the argument 'chunks'"):
        make_arguments(signature, {"grids": own["grids"]})


def test_an_optional_argument_that_the_config_does_not_ask_for_keeps_its_default(tmp_path: Path) -> None:
    """Bria's class takes pooled embeddings and reads none; its config has no width for them."""
    signature, _ = _signature(tmp_path, "flux")
    config = {n: v for n, v in signature.config.items() if n != "pooled_projection_dim"}
    required = tuple(n for n in signature.required if n != "pooled_projections")
    bare = replace(signature, config=config, required=required, optional=("pooled_projections",))
    assert "pooled_projections" not in make_arguments(bare, {}).tensors
    with pytest.raises(UsageError, match="cannot make the argument 'pooled_projections'"):
        make_arguments(replace(bare, required=("pooled_projections",)), {})


@pytest.mark.parametrize("name", ["sana", "mochi"])
def test_what_can_be_called_or_cannot_be_asked_keeps_all_arguments(name: str, tmp_path: Path) -> None:
    signature, model = _signature(tmp_path, name)
    made: Made = make_arguments(signature, {})
    assert fitting(signature, model, made, {}) is made
