"""Inputs made for a transformer that nobody wrote a line for, from its signature and config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.tiny_families import make
from parity.models.folder import class_of, read_config, skeleton
from parity.models.generic.fitting import fitting
from parity.models.generic.inputs import TEXT, Signature, make_arguments, signature_of


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
