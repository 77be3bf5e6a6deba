"""HunyuanVideo-1.5 as its authors' own code has it: module names, arguments and weights, in terms of diffusers'.

Every port of that code needs the same table. Copy this file beside the port's:

    from hunyuan_names import RENAME, load_weights

    load_weights(net, case.folder / "transformer")     # a native module, from a checkpoint in diffusers' layout
    return Port(module=net, call=call, rename=RENAME)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

_BLOCK = r"double_blocks\.(\d+)"
_REFINER = r"txt_in\.individual_token_refiner\.blocks\.(\d+)"
_INTO = r"transformer_blocks.\1"

_IMAGE = {
    "img_mod.linear": "norm1.linear", "img_attn_q": "attn.to_q", "img_attn_k": "attn.to_k", "img_attn_v": "attn.to_v",
    "img_attn_q_norm": "attn.norm_q", "img_attn_k_norm": "attn.norm_k", "img_attn_proj": "attn.to_out.0",
    "img_mlp": "ff", "img_mlp.fc1": "ff.net.0.proj", "img_mlp.fc2": "ff.net.2",
    "txt_mod.linear": "norm1_context.linear", "txt_attn_q": "attn.add_q_proj", "txt_attn_k": "attn.add_k_proj",
    "txt_attn_v": "attn.add_v_proj", "txt_attn_q_norm": "attn.norm_added_q", "txt_attn_k_norm": "attn.norm_added_k",
    "txt_attn_proj": "attn.to_add_out", "txt_mlp": "ff_context", "txt_mlp.fc1": "ff_context.net.0.proj",
    "txt_mlp.fc2": "ff_context.net.2", "attention": "attn.attention",
}  # fmt: skip
_REFINED = {
    "norm1": "norm1", "norm2": "norm2", "self_attn_proj": "attn.to_out.0", "mlp": "ff", "mlp.fc1": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2", "adaLN_modulation.1": "norm_out.linear", "attention": "attn.attention",
}  # fmt: skip
_TOP = {
    "img_in": "x_embedder", "img_in.proj": "x_embedder.proj", "time_in": "time_embed",
    "time_in.mlp.0": "time_embed.timestep_embedder.linear_1", "time_in.mlp.2": "time_embed.timestep_embedder.linear_2",
    "txt_in": "context_embedder", "txt_in.input_embedder": "context_embedder.proj_in",
    "txt_in.t_embedder.mlp.0": "context_embedder.time_text_embed.timestep_embedder.linear_1",
    "txt_in.t_embedder.mlp.2": "context_embedder.time_text_embed.timestep_embedder.linear_2",
    "txt_in.c_embedder.linear_1": "context_embedder.time_text_embed.text_embedder.linear_1",
    "txt_in.c_embedder.linear_2": "context_embedder.time_text_embed.text_embedder.linear_2",
    "txt_in.individual_token_refiner": "context_embedder.token_refiner",
    "byt5_in": "context_embedder_2", "byt5_in.layernorm": "context_embedder_2.norm",
    "byt5_in.fc1": "context_embedder_2.linear_1", "byt5_in.fc2": "context_embedder_2.linear_2",
    "byt5_in.fc3": "context_embedder_2.linear_3", "vision_in": "image_embedder",
    "vision_in.proj.0": "image_embedder.norm_in", "vision_in.proj.1": "image_embedder.linear_1",
    "vision_in.proj.3": "image_embedder.linear_2", "vision_in.proj.4": "image_embedder.norm_out",
    "cond_type_embedding": "cond_type_embed", "final_layer.linear": "proj_out",
}  # fmt: skip
_ARGUMENTS = {
    rf"{_BLOCK}:in\.img": rf"{_INTO}:in.hidden_states", rf"{_BLOCK}:in\.txt": rf"{_INTO}:in.encoder_hidden_states",
    rf"{_BLOCK}:in\.vec": rf"{_INTO}:in.temb", rf"{_BLOCK}:in\.text_mask": rf"{_INTO}:in.attention_mask",
    r"txt_in:in\.x": "context_embedder:in.hidden_states", r"txt_in:in\.t": "context_embedder:in.timestep",
    r"txt_in:in\.mask": "context_embedder:in.attention_mask", r"byt5_in:in\.x": "context_embedder_2:in.hidden_states",
}  # fmt: skip

_MODULES: Mapping[str, str] = {
    **{re.escape(own): theirs for own, theirs in _TOP.items()},
    _BLOCK: _INTO,
    **{rf"{_BLOCK}\.{re.escape(own)}": f"{_INTO}.{theirs}" for own, theirs in _IMAGE.items()},
    _REFINER: r"context_embedder.token_refiner.refiner_blocks.\1",
    **{
        rf"{_REFINER}\.{re.escape(own)}": rf"context_embedder.token_refiner.refiner_blocks.\1.{theirs}"
        for own, theirs in _REFINED.items()
    },
}

RENAME: Mapping[str, str] = {**_MODULES, **_ARGUMENTS}
"""Native modules and arguments -> diffusers' names, for `Port.rename`."""

_FUSED = ("to_q", "to_k", "to_v")


def module_name(name: str) -> str:
    """Diffusers' name of a native module; its own where the two agree."""
    found = ((re.fullmatch(pattern, name), target) for pattern, target in _MODULES.items())
    return next((match.expand(target) for match, target in found if match), name)


def native_weights(names: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A native module's parameters from diffusers'.

    The refiner's query, key and value are one matrix there, and the last modulation has its shift before its scale.

    Args:
        names: the native module's parameters by name. weights: diffusers' by name.

    Raises:
        ValueError: a parameter has no counterpart; names it.
    """
    return {name: _weight(name, weights) for name in names}


def _weight(name: str, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    module, _, leaf = name.rpartition(".")
    owner, _, last = module.rpartition(".")
    try:
        if last == "self_attn_qkv":
            return torch.cat([weights[f"{module_name(owner)}.attn.{part}.{leaf}"] for part in _FUSED])
        if module == "final_layer.adaLN_modulation.1":
            scale, shift = weights[f"norm_out.linear.{leaf}"].chunk(2)
            return torch.cat([shift, scale])
        return weights[f"{module_name(module)}.{leaf}"]
    except KeyError as missing:
        raise ValueError(f"the native parameter '{name}' has no counterpart in the checkpoint: {missing}") from None


def load_weights(module: torch.nn.Module, folder: Path) -> None:
    """Fill a native module with a checkpoint in diffusers' layout.

    Args:
        folder: of the transformer.

    Raises:
        ValueError: a parameter has no counterpart, or another shape.
    """
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    try:
        module.load_state_dict(native_weights(module.state_dict(), weights))
    except RuntimeError as error:
        raise ValueError(f"'{folder}' does not fit the native module: {str(error).splitlines()[-1].strip()}") from None
