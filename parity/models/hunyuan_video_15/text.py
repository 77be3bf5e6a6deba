"""The text encoders of HunyuanVideo-1.5, asked as its pipeline asks them: by its own static methods."""

from __future__ import annotations

from typing import Any

import torch

from parity.models.folder import load_component
from parity.models.spec import Case
from parity.models.stage1 import Stream
from parity.models.text import TextStage, encoder_of

QWEN = Stream(argument="encoder_hidden_states", name="prompt_embeds", width="text_embed_dim")
BYT5 = Stream(
    argument="encoder_hidden_states_2",
    name="prompt_embeds_2",
    width="text_embed_2_dim",
    may_be_empty=True,
    byt5=True,
)

_SKIPPED = 2
"""Hidden layers that the pipeline leaves out from the end."""


def text_stage(case: Case) -> TextStage:
    """Qwen2.5-VL, and ByT5 for the quoted parts of a prompt; without any, its embeddings and mask are zero.

    Raises:
        UsageError: the folder lacks a tokenizer or an encoder.
    """
    import diffusers
    import transformers

    pipeline, spec = diffusers.HunyuanVideo15Pipeline, case.spec
    tokenizer = load_component(transformers.Qwen2Tokenizer, case.folder, "tokenizer")
    glyphs = load_component(transformers.ByT5Tokenizer, case.folder, "tokenizer_2")

    def qwen(encoder: Any, prompt: str, device: torch.device) -> Any:
        return pipeline._get_mllm_prompt_embeds(
            text_encoder=encoder,
            tokenizer=tokenizer,
            prompt=prompt,
            device=device,
            tokenizer_max_length=spec.tokenizer_max_length,
            num_hidden_layers_to_skip=_SKIPPED,
            crop_start=spec.crop_start,
        )

    def byt5(encoder: Any, prompt: str, device: torch.device) -> Any:
        return pipeline._get_byt5_prompt_embeds(
            tokenizer=glyphs,
            text_encoder=encoder,
            prompt=prompt,
            device=device,
            tokenizer_max_length=spec.tokenizer_2_max_length,
        )

    first = encoder_of(
        case,
        "text_encoder",
        transformers.Qwen2_5_VLTextModel,
        QWEN,
        qwen,
        spec.tokenizer_max_length,
        skip=_SKIPPED,
        crop=spec.crop_start,
    )
    kind, length = transformers.T5EncoderModel, spec.tokenizer_2_max_length
    return TextStage((first, encoder_of(case, "text_encoder_2", kind, BYT5, byt5, length)))
