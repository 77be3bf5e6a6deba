"""Text encoders: masks, positions, and which of their states is handed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tiny
import torch
import transformers
from change import Around, Made, change, drawn, tame, wrapped


def t5(kind: Any = transformers.UMT5EncoderModel, config: Any = transformers.UMT5Config) -> Any:
    return tame(kind(config(**tiny.CONFIGS["T5EncoderModel"])))


def qwen2() -> Any:
    return tame(transformers.Qwen2Model(transformers.Qwen2Config(**tiny.CONFIGS["Qwen2Model"])))


def last(states: Any, mask: torch.Tensor) -> torch.Tensor:
    return states.last_hidden_state


def encoded(encoder: Any, handed_on: Callable[..., torch.Tensor] = last, inverted: bool = False) -> Made:
    """An encoder called with embeddings.

    Args:
        handed_on: what is made of its states and the mask. inverted: the mask has ones for padding.
    """

    def lines(encoder: Any, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = 1 - attention_mask if inverted else attention_mask
        states = encoder(inputs_embeds=hidden_states, attention_mask=mask, output_hidden_states=True)
        return handed_on(states, attention_mask)

    inputs = {"hidden_states": drawn(1, 16, 32), "attention_mask": tiny.masked(11)}
    return Made(module=Around(lines, encoder=encoder), inputs=inputs)


@change(
    "huggingface/transformers#22626", of=lambda: encoded(t5()),
    at=("encoder.encoder.block.1.layer.0.SelfAttention", "encoder.encoder.block.1.layer.0"),
)  # fmt: skip
def umt5_bias_of_the_first_block(model: Any) -> None:
    """Ports of T5 share the first block's relative positions; UMT5 has a table in every block."""
    first, *others = (block.layer[0].SelfAttention for block in model.encoder.encoder.block)
    for attention in others:
        attention.compute_bias = first.compute_bias


@change("apple/ml-stable-diffusion#359", at=("encoder:in.attention_mask", "encoder"))
def t5_mask_inverted(fixed: bool) -> Made:
    """The T5 encoder's mask had ones for padding and zeros for tokens. Since: the tokenizer's mask."""
    return encoded(t5(transformers.T5EncoderModel, transformers.T5Config), inverted=not fixed)


@change("starVLA/starVLA#433", at=(":out",))
def umt5_padding_kept(fixed: bool) -> Made:
    """Padded rows of UMT5's states were handed to Wan as they were. Since: zeros, as in training."""

    def trimmed(states: Any, mask: torch.Tensor) -> torch.Tensor:
        return states.last_hidden_state * mask[..., None].to(states.last_hidden_state.dtype)

    return encoded(t5(), trimmed if fixed else last)


@change("hao-ai-lab/FastVideo#1125", at=(":out",))
def hunyuan_last_state(fixed: bool) -> Made:
    """HunyuanVideo was given its language model's last state, with its norm. Since: the third last."""
    return encoded(qwen2(), (lambda states, mask: states.hidden_states[-3]) if fixed else last)


@change("cornball-ai/diffuseR#12", at=(":out",))
def ltx2_states_without_the_embedding(fixed: bool) -> Made:
    """The stack of hidden states began with the first layer. Since: with the embedding."""
    first = 0 if fixed else 1

    def stacked(states: Any, mask: torch.Tensor) -> torch.Tensor:
        return torch.stack(states.hidden_states[first : first + 4], dim=-1).flatten(2)

    return encoded(qwen2(), stacked)


@change(
    "huggingface/transformers#29285", of=lambda: encoded(qwen2()), at=("encoder.rotary_emb",), cause="rope_dtype"
)  # fmt: skip
def rope_in_bfloat16(model: Any) -> None:
    """Llama's and Gemma's rotary angles were multiplied in bfloat16 where the model was. Since: float32."""
    rope = model.encoder.rotary_emb

    def rounded(own: Any, x: torch.Tensor, position_ids: torch.Tensor, **others: Any) -> Any:
        waves = rope.inv_freq.to(torch.bfloat16)[None, :, None] @ position_ids[:, None].to(torch.bfloat16)
        angles = torch.cat([waves, waves], dim=1).transpose(1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    wrapped(model, "encoder.rotary_emb", rounded)


def clip(eos: int = 61) -> Made:
    """A CLIP text model, called with ids; what it pools is the result."""
    config = transformers.CLIPTextConfig(**tiny.CONFIGS["CLIPTextModel"], eos_token_id=eos)

    def lines(text: Any, hidden_states: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        return text(**others).pooler_output[:, None] + 0 * hidden_states

    ids = torch.tensor([[60, 5, 9, 63, 12, 7, 61, 0, 0, 0]])  # 63 is a token that was added; 61 ends the prompt
    inputs = {"hidden_states": torch.zeros(1, 1, 32), "input_ids": ids, "attention_mask": tiny.masked(7, 10)}
    return Made(module=tame(Around(lines, text=transformers.CLIPTextModel(config))), inputs=inputs)


@change("huggingface/transformers#24777", at=("text", "text.text_model", ":out"))
def clip_pools_the_largest_id(fixed: bool) -> Made:
    """CLIP pooled at the largest id, which a token that was added can have. Since: at the first end of text."""
    return clip(61 if fixed else 2)


@change("sgl-project/sglang#14364", of=clip, at=("text*.encoder.layers.0.self_attn",), cause="attention.mask")
def clip_without_causal_mask(model: Any) -> None:
    """CLIP's attention was neither causal nor masked. Since: both."""

    def unmasked(own: Any, *args: Any, **others: Any) -> Any:
        return own(*args, **{**others, "attention_mask": None, "is_causal": False})

    wrapped(model, "*self_attn", unmasked)
