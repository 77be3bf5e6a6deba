"""The text stage of HunyuanVideo-1.5: from a prompt, or from a port's stage-1 file, to what the transformer is fed.

Both paths of a comparison take the same embeddings and masks, so they are made once, here, by diffusers' own code: the
pipeline's static methods on tokenizers and encoders loaded from their subfolders. The transformer and the VAE are not
touched. Cost: the text encoders, loaded one after the other (for the full-size model 7 B parameters, then 0.2 B), and
a forward of each for every prompt. A stage-1 file costs one read of some megabytes.

Everything is keyed by branch (`cond`, `uncond`) and then by the transformer's own argument names.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import torch

from parity.errors import UsageError
from parity.models.spec import GenerationSpec
from parity.models.stage_files import FLOATS, MASKS, StageFile, write_stage_file

Conditions = dict[str, dict[str, torch.Tensor]]
"""Branch, then argument of the transformer, then tensor."""

_PREFIXES = {"cond": "", "uncond": "negative_"}
# Argument of the transformer: name in a stage-1 file. Each embedding is followed by its mask.
_STAGE1_NAMES = {
    "encoder_hidden_states": "prompt_embeds",
    "encoder_attention_mask": "prompt_embeds_mask",
    "encoder_hidden_states_2": "prompt_embeds_2",
    "encoder_attention_mask_2": "prompt_embeds_mask_2",
}


@torch.no_grad()
def encode_prompt(
    folder: pathlib.Path,
    spec: GenerationSpec,
    prompt: str,
    negative_prompt: str,
    *,
    byt5_dtype: torch.dtype,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Conditions:
    """Encode both prompts as `HunyuanVideo15Pipeline.encode_prompt` does, bit for bit where `byt5_dtype` is `dtype`.

    Args:
        folder: checkpoint in diffusers layout.
        spec: lengths and cropping.
        prompt: for `cond`. Its quoted parts go to ByT5; without any, ByT5's embeddings and mask are zero.
        negative_prompt: for `uncond`.
        byt5_dtype: that ByT5 runs in; its result is cast to `dtype`.
        dtype: that the first encoder runs in, and of everything returned, masks included, as in the pipeline.
        device: that the encoders run on and the result lies on.

    Returns:
        For `cond` and `uncond`: `encoder_hidden_states` [1, tokenizer_max_length, D], `encoder_attention_mask`
        [1, tokenizer_max_length], `encoder_hidden_states_2` [1, tokenizer_2_max_length, D2],
        `encoder_attention_mask_2` [1, tokenizer_2_max_length]. Masks are 1 for a token and 0 for padding.

    Raises:
        UsageError: the folder lacks a tokenizer or a text encoder, or one of them cannot be loaded.
    """
    import diffusers
    import transformers

    pipeline = diffusers.HunyuanVideo15Pipeline
    prompts = {"cond": prompt, "uncond": negative_prompt}
    conditions: Conditions = {}

    tokenizer = load_component(transformers.Qwen2Tokenizer, folder, "tokenizer")
    encoder = load_component(transformers.Qwen2_5_VLTextModel, folder, "text_encoder", dtype=dtype).to(device).eval()
    for branch, text in prompts.items():
        embeds, mask = pipeline._get_mllm_prompt_embeds(
            text_encoder=encoder,
            tokenizer=tokenizer,
            prompt=text,
            device=torch.device(device),
            tokenizer_max_length=spec.tokenizer_max_length,
            crop_start=spec.crop_start,
        )
        conditions[branch] = {"encoder_hidden_states": embeds.to(dtype), "encoder_attention_mask": mask.to(dtype)}
    del encoder  # so that the two encoders never lie in memory together

    tokenizer_2 = load_component(transformers.ByT5Tokenizer, folder, "tokenizer_2")
    encoder_2 = (
        load_component(transformers.T5EncoderModel, folder, "text_encoder_2", dtype=byt5_dtype).to(device).eval()
    )
    for branch, text in prompts.items():
        embeds, mask = pipeline._get_byt5_prompt_embeds(
            tokenizer=tokenizer_2,
            text_encoder=encoder_2,
            prompt=text,
            device=torch.device(device),
            tokenizer_max_length=spec.tokenizer_2_max_length,
        )
        conditions[branch] |= {"encoder_hidden_states_2": embeds.to(dtype), "encoder_attention_mask_2": mask.to(dtype)}
    return conditions


def read_stage1(path: pathlib.Path, config: Mapping[str, Any]) -> Conditions:
    """Read a port's `stage1_embeddings.safetensors` (HunyuanVideo-1.5) and check it against the transformer.

    Args:
        path: of the file.
        config: the transformer's; `text_embed_dim` and `text_embed_2_dim` are looked at.

    Returns:
        As `encode_prompt` does, on the CPU, in the dtypes that the file means. Tensors that the file has beyond the
        eight are not looked at.

    Raises:
        UsageError: a missing, truncated or foreign file; a tensor that is missing, misshapen, of a foreign dtype, not
            finite; a mask with other values than 0 and 1, or without a single token for the first encoder.
    """
    conditions: Conditions = {branch: {} for branch in _PREFIXES}
    dims = {"encoder_hidden_states": config["text_embed_dim"], "encoder_hidden_states_2": config["text_embed_2_dim"]}
    with StageFile(path) as file:
        for embeds_key, dim in dims.items():
            mask_key = embeds_key.replace("hidden_states", "attention_mask")
            length: int | str = "L"
            for branch, prefix in _PREFIXES.items():
                embeds_name, mask_name = prefix + _STAGE1_NAMES[embeds_key], prefix + _STAGE1_NAMES[mask_key]
                embeds = file.read(embeds_name, (1, length, dim), FLOATS)
                length = embeds.shape[1]  # the mask and the other branch are padded to it
                mask = file.read(mask_name, (1, length), MASKS)
                check_finite(path, embeds_name, embeds)
                _check_mask(path, mask_name, mask, may_be_empty=embeds_key == "encoder_hidden_states_2")
                conditions[branch][embeds_key], conditions[branch][mask_key] = embeds, mask
    return conditions


def write_stage1(path: pathlib.Path, conditions: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """Write embeddings and masks as a port's first stage does, atomically; `read_stage1` gives the same bits back.

    Args:
        path: of the file to write or replace.
        conditions: as `encode_prompt` returns them.

    Raises:
        UsageError: the file cannot be written.
    """
    tensors = {
        prefix + name: conditions[branch][key]
        for branch, prefix in _PREFIXES.items()
        for key, name in _STAGE1_NAMES.items()
    }
    write_stage_file(path, tensors, {})


def load_component(kind: Any, folder: pathlib.Path, subfolder: str, **options: Any) -> Any:
    """Load one component by its class's `from_pretrained`, with a message that names the folder where it fails."""
    if not (folder / subfolder).is_dir():
        raise UsageError(f"{folder}: expected a subfolder {subfolder!r} with a {kind.__name__}, found none")
    try:
        return kind.from_pretrained(folder, subfolder=subfolder, local_files_only=True, **options)
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / subfolder}: cannot be loaded as {kind.__name__}: {error}") from error


def check_finite(path: pathlib.Path, name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor of a file that has a NaN or an infinity in it."""
    bad = int((~tensor.isfinite()).sum())
    if bad:
        raise UsageError(f"{path}: tensor {name!r}: expected finite values, found {bad} NaN or Inf of {tensor.numel()}")


def _check_mask(path: pathlib.Path, name: str, mask: torch.Tensor, *, may_be_empty: bool) -> None:
    check_finite(path, name, mask)
    if not bool(((mask == 0) | (mask == 1)).all()):
        other = mask[(mask != 0) & (mask != 1)][0].item()
        raise UsageError(f"{path}: tensor {name!r}: expected a mask of 0 and 1, found {other}")
    if not may_be_empty and not bool(mask.any()):
        # The refiner divides by the number of tokens, so everything behind an empty mask would be NaN.
        raise UsageError(f"{path}: tensor {name!r}: expected at least one token, found a mask of zeros")
