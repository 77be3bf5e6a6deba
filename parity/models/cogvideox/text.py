"""The text encoder of CogVideoX, asked as its pipeline asks it: one T5, no mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from parity.models.folder import load_component
from parity.models.spec import Case
from parity.models.stage1 import Stream
from parity.models.text import TextStage, encoder_of


def _length(config: Mapping[str, Any]) -> int | str:
    """The model without rotary embeddings has one position table, which counts the text tokens in."""
    return "L" if config.get("use_rotary_positional_embeddings", False) else int(config["max_text_seq_length"])


T5 = Stream(
    argument="encoder_hidden_states", name="prompt_embeds", width="text_embed_dim", length=_length, masked=False
)


def text_stage(case: Case) -> TextStage:
    """T5, whose padded rows the transformer reads like all others.

    Raises:
        UsageError: the folder lacks the tokenizer or the encoder.
    """
    import diffusers
    import transformers

    # Of the pipeline only the method is wanted, which takes its tokenizer and encoder from `self`.
    pipeline = diffusers.CogVideoXPipeline.__new__(diffusers.CogVideoXPipeline)
    tokenizer = load_component(transformers.T5Tokenizer, case.folder, "tokenizer")
    length = case.spec.tokenizer_max_length

    def t5(encoder: Any, prompt: str, device: torch.device) -> Any:
        pipeline.__dict__.update(tokenizer=tokenizer, text_encoder=encoder)
        return pipeline._get_t5_prompt_embeds(prompt, max_sequence_length=length, device=device, dtype=encoder.dtype)

    return TextStage((encoder_of(case, "text_encoder", transformers.T5EncoderModel, T5, t5, length),))
