"""The text stage of CogVideoX: from a prompt, or from a port's stage-1 file, to what the transformer is fed.

One T5 encoder and no mask. Encoded once, by the pipeline's own method on a tokenizer and an encoder loaded from their
subfolders. Cost: the encoder (4.7 B parameters for the full-size model) and a forward of it for each prompt.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import torch

from parity.models.hunyuan_text import Conditions, check_finite, load_component
from parity.models.spec import GenerationSpec
from parity.models.stage_files import FLOATS, StageFile, write_stage_file

_NAMES = {"cond": "prompt_embeds", "uncond": "negative_prompt_embeds"}


@torch.no_grad()
def encode_prompt(
    folder: pathlib.Path, spec: GenerationSpec, *, dtype: torch.dtype, device: torch.device | str
) -> Conditions:
    """Encode both prompts as `CogVideoXPipeline.encode_prompt` does, bit for bit.

    Args:
        folder: checkpoint in diffusers layout.
        spec: prompts, and `tokenizer_max_length`.
        dtype: that the encoder runs in. device: that it runs on and the result lies on.

    Returns:
        For `cond` and `uncond`: `encoder_hidden_states` [1, tokenizer_max_length, D].

    Raises:
        UsageError: the folder lacks the tokenizer or the encoder, or one of them cannot be loaded.
    """
    import diffusers
    import transformers

    # Of the pipeline only the method is wanted, which takes its tokenizer and encoder from `self`.
    parts = diffusers.CogVideoXPipeline.__new__(diffusers.CogVideoXPipeline)
    tokenizer = load_component(transformers.T5Tokenizer, folder, "tokenizer")
    encoder = load_component(transformers.T5EncoderModel, folder, "text_encoder", dtype=dtype).to(device).eval()
    parts.__dict__.update(tokenizer=tokenizer, text_encoder=encoder)
    return {
        branch: {
            "encoder_hidden_states": parts._get_t5_prompt_embeds(
                text, max_sequence_length=spec.tokenizer_max_length, device=torch.device(device), dtype=dtype
            )
        }
        for branch, text in (("cond", spec.prompt), ("uncond", spec.negative_prompt))
    }


def read_stage1(path: pathlib.Path, config: Mapping[str, Any]) -> Conditions:
    """Read a port's `stage1_embeddings.safetensors` (CogVideoX) and check it against the transformer.

    Returns:
        As `encode_prompt` does, on the CPU, in the dtypes that the file means.

    Raises:
        UsageError: a missing, truncated or foreign file; a tensor that is missing, misshapen, of a foreign dtype, not
            finite.
    """
    conditions: Conditions = {}
    # The model without rotary embeddings has one position table, which counts the text tokens in.
    fixed = not config.get("use_rotary_positional_embeddings", False)
    length: int | str = int(config["max_text_seq_length"]) if fixed else "L"
    with StageFile(path) as file:
        for branch, name in _NAMES.items():
            embeds = file.read(name, (1, length, int(config["text_embed_dim"])), FLOATS)
            length = embeds.shape[1]  # the branches are batched, so they are padded alike
            check_finite(path, name, embeds)
            conditions[branch] = {"encoder_hidden_states": embeds}
    return conditions


def write_stage1(path: pathlib.Path, conditions: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """Write embeddings as a port's first stage does, atomically; `read_stage1` gives the same bits back.

    Raises:
        UsageError: the file cannot be written.
    """
    tensors = {name: conditions[branch]["encoder_hidden_states"] for branch, name in _NAMES.items()}
    write_stage_file(path, tensors, {})
