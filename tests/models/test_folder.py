"""A checkpoint whose weights are not those of its class is refused: classes fill in what is missing without a word."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from parity.errors import UsageError
from parity.models.folder import load_component, load_part
from parity.models.registry import resolve_model

Weights = dict[str, torch.Tensor]


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[str, Callable[[Weights], object]], Path]:
    """A tiny checkpoint with the weights of one part changed."""

    def change(part: str, how: Callable[[Weights], object]) -> Path:
        folder = tmp_path / "checkpoint"
        shutil.copytree(resolve_model("tiny-cogvideox-1.5"), folder)
        (file,) = (folder / part).glob("*.safetensors")
        weights = load_file(file)
        how(weights)
        save_file(weights, file, metadata={"format": "pt"})
        return folder

    return change


@pytest.mark.parametrize(
    ("part", "name"), [("transformer", "norm_final.weight"), ("vae", "decoder.conv_in.conv.weight")]
)
def test_a_part_without_one_of_its_weights_is_refused(part: str, name: str, changed: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match=f"missing in its weights for a .*: {name}; download"):
        load_part(changed(part, lambda weights: weights.pop(name)), part)


def test_a_text_encoder_may_hold_more_but_not_less(changed: Callable[..., Path]) -> None:
    kind = transformers.T5EncoderModel
    norm = "encoder.final_layer_norm.weight"
    folder = changed("text_encoder", lambda weights: weights.update({"head.weight": torch.ones(1)}))
    held = load_component(kind, folder, "text_encoder").state_dict()[norm]
    assert torch.equal(held, load_file(next((folder / "text_encoder").glob("*.safetensors")))[norm])
    shutil.rmtree(folder)
    folder = changed("text_encoder", lambda weights: weights.pop(norm))
    with pytest.raises(UsageError, match=f"missing in its weights for a T5EncoderModel: {norm}"):
        load_component(kind, folder, "text_encoder")
