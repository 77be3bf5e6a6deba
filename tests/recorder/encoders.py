"""A tiny text encoder, and a pipeline that has it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import T5Config, T5EncoderModel

from parity.recorder.floors.runs import KINDS
from parity.recorder.floors.texts import Texts

IDS = torch.arange(12).reshape(2, 6)


def encoder(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    return T5EncoderModel(config).to(dtype).eval()


class Pipeline:
    """As diffusers' have it."""

    def __init__(self, model: Any) -> None:
        self.text_encoder, self.layers = model, False

    def encode_prompt(self, ids: torch.Tensor, **given: Any) -> Any:
        out = self.text_encoder(ids, **given)
        return [out.hidden_states[i].detach() for i in (1, -1)] if self.layers else out[0].detach()


def seen(model: Any, said: list[str], ids: torch.Tensor) -> tuple[Texts, torch.Tensor]:
    """What is known after one call, and what it returned."""
    texts, pipe = Texts(lambda: KINDS, said.append), Pipeline(model)
    with texts.watching(pipe):
        out = pipe.encode_prompt(ids)
    assert "encode_prompt" not in vars(pipe)
    return texts, out
