"""The text encoders of each family, with the tokens of a prompt: what `Family.text` gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from parity.models import cogvideox_text, hunyuan_text
from parity.models.encoders import Encoder, Listener, TextStage
from parity.models.family import Case
from parity.models.folder import read_config
from parity.models.hunyuan_text import load_component

_SKIPPED = 2
"""Hidden layers that HunyuanVideo-1.5's pipeline leaves out from the end."""


def hunyuan_text_stage(case: Case) -> TextStage:
    """Qwen2.5-VL, and ByT5 for the quoted parts of a prompt.

    Raises:
        UsageError: the folder lacks a tokenizer or an encoder.
    """
    import diffusers
    import transformers

    pipeline, spec, cpu = diffusers.HunyuanVideo15Pipeline, case.spec, torch.device("cpu")
    prompts = {"cond": spec.prompt, "uncond": spec.negative_prompt}
    configs = {part: read_config(case.folder, part) for part in ("text_encoder", "text_encoder_2")}
    tokenizer = load_component(transformers.Qwen2Tokenizer, case.folder, "tokenizer")
    glyphs = load_component(transformers.ByT5Tokenizer, case.folder, "tokenizer_2")

    def qwen(text: str) -> dict[str, torch.Tensor]:
        ear = Listener()
        pipeline._get_mllm_prompt_embeds(
            text_encoder=ear,
            tokenizer=tokenizer,
            prompt=text,
            device=cpu,
            tokenizer_max_length=spec.tokenizer_max_length,
            num_hidden_layers_to_skip=_SKIPPED,
            crop_start=spec.crop_start,
        )
        return ear.heard

    def byt5(text: str) -> dict[str, torch.Tensor]:
        ear = Listener()
        pipeline._get_byt5_prompt_embeds(
            tokenizer=glyphs,
            text_encoder=ear,
            prompt=text,
            device=cpu,
            tokenizer_max_length=spec.tokenizer_2_max_length,
        )
        return ear.heard

    first = Encoder(
        "text_encoder",
        transformers.Qwen2_5_VLTextModel,
        "encoder_hidden_states",
        "prompt_embeds",
        _heard({branch: qwen(text) for branch, text in prompts.items()}),
        _width(configs["text_encoder"]),
        spec.tokenizer_max_length,
        int(configs["text_encoder"]["vocab_size"]),
        skip=_SKIPPED,
        layers=int(configs["text_encoder"]["num_hidden_layers"]),
        crop=spec.crop_start,
    )
    second = Encoder(
        "text_encoder_2",
        transformers.T5EncoderModel,
        "encoder_hidden_states_2",
        "prompt_embeds_2",
        _heard({branch: byt5(text) for branch, text in prompts.items()}),
        _width(configs["text_encoder_2"]),
        spec.tokenizer_2_max_length,
        int(configs["text_encoder_2"]["vocab_size"]),
        byt5=True,
    )
    return TextStage((first, second), hunyuan_text.read_stage1)


def cogvideox_text_stage(case: Case) -> TextStage:
    """T5, whose padded rows the transformer reads like all others.

    Raises:
        UsageError: the folder lacks the tokenizer or the encoder.
    """
    import diffusers
    import transformers

    spec, config = case.spec, read_config(case.folder, "text_encoder")
    parts = diffusers.CogVideoXPipeline.__new__(diffusers.CogVideoXPipeline)
    tokenizer = load_component(transformers.T5Tokenizer, case.folder, "tokenizer")

    def t5(text: str) -> dict[str, torch.Tensor]:
        ear = Listener()
        parts.__dict__.update(tokenizer=tokenizer, text_encoder=ear)
        parts._get_t5_prompt_embeds(
            text, max_sequence_length=spec.tokenizer_max_length, device=torch.device("cpu"), dtype=torch.float32
        )
        return ear.heard

    only = Encoder(
        "text_encoder",
        transformers.T5EncoderModel,
        "encoder_hidden_states",
        "prompt_embeds",
        _heard({"cond": t5(spec.prompt), "uncond": t5(spec.negative_prompt)}),
        _width(config),
        spec.tokenizer_max_length,
        int(config["vocab_size"]),
        masked=False,
    )
    return TextStage((only,), cogvideox_text.read_stage1)


def _heard(tokens: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, Mapping[str, torch.Tensor]]:
    """Without the branches for which the pipeline did not call its encoder."""
    return {branch: given for branch, given in tokens.items() if given}


def _width(config: Mapping[str, Any]) -> int:
    """Of an encoder's embeddings: T5 and the others name it otherwise."""
    return int(config["d_model"] if "d_model" in config else config["hidden_size"])
