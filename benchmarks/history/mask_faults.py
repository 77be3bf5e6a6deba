"""Attention masks and keys: dropped, of another shape, of another dtype, of other rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tiny
import torch
from change import Around, Made, change, drawn, masked, modules, wrapped
from diffusers.models.transformers.transformer_ltx import apply_rotary_emb
from torch import nn

ATTENTIONS = "*transformer_blocks.*.attn"
mask_change = functools.partial(change, cause="attention.mask")
HUNYUAN = ("inner.transformer_blocks.0.attn", "inner.transformer_blocks.0")


def two_prompts() -> Made:
    """Two prompts of other lengths in one batch, as `num_videos_per_prompt` and guidance make them.

    The latents of both stand in the channels of one, since a run has a batch of one.
    """
    names = ("hidden_states", "encoder_hidden_states", "encoder_attention_mask")

    def lines(inner: Any, **inputs: torch.Tensor) -> torch.Tensor:
        both = {
            name: x.unflatten(1, (2, -1))[0] if name in names else x.expand(2, *x.shape[1:])
            for name, x in inputs.items()
        }
        return inner(**both, return_dict=False)[0].flatten(0, 1)[None]

    texts = drawn(1, 32, 16, seed=1), torch.cat([tiny.masked(14), tiny.masked(5)], dim=1)
    given = zip(names, (drawn(1, 8, 2, 8, 8), *texts), strict=True)
    return Made(module=Around(lines, inner=tiny.hunyuan()), inputs={**tiny.hunyuan_inputs(), **dict(given)})


@change("huggingface/diffusers#10454", "7747b588e2", two_prompts, at=HUNYUAN)
def hunyuan_mask_without_heads(model: Any) -> None:
    """HunyuanVideo's joint mask was [B, N, N]: with two prompts in a batch and two heads each head took the mask of one
    prompt. Since: [B, 1, N, N].
    """

    def square(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        keys = mask[:, 0, 0]
        return keys[:, :, None] & keys[:, None, :]  # [B, N, N]: the batch stands where heads do

    masked(model, ATTENTIONS, square)


@change("huggingface/diffusers#10548", "4a4afd5ece", two_prompts, at=HUNYUAN)
def hunyuan_mask_of_three_axes(model: Any) -> None:
    """The mask of keys was [B, 1, N], which broadcasts its batch along the heads. Since: [B, 1, 1, N]."""
    masked(model, ATTENTIONS, lambda mask, x: mask[:, 0])


@mask_change("huggingface/diffusers#12702", "dad5cb55e6", tiny.qwen, at=("transformer_blocks.0.attn",))
def qwen_mask_dropped(model: Any) -> None:
    """QwenImage's `encoder_hidden_states_mask` never reached the joint attention: padded text was attended to. Since:
    it is joined with ones for the image and given to the attention.
    """
    masked(model, ATTENTIONS, lambda mask, x: None, "encoder_hidden_states_mask")


@mask_change("huggingface/diffusers#12263", "0a151115bb", tiny.chroma, at=("transformer_blocks.0.attn",))
def chroma_mask_added(model: Any) -> None:
    """Chroma's pipeline cast the mask to the latents' dtype, so that ones and zeros were added to the logits. Since: it
    stays boolean.
    """
    masked(model, ATTENTIONS, lambda mask, x: mask.to(x.dtype))


@mask_change("huggingface/diffusers#14115", "5be68ced49", tiny.ltx, at=("transformer_blocks.0.attn2",))
def varlen_takes_the_first_keys(model: Any) -> None:
    """Flash attention 3 with lengths kept the first `mask.sum()` keys, whatever the mask let through. Since: the keys
    at the mask's own positions.
    """

    def first(bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # this model's mask lets the last keys through
        keys = torch.arange(bias.shape[-1]) < (bias > -1).sum(-1, keepdim=True)
        return torch.where(keys, 0.0, -10000.0).to(bias.dtype)

    masked(model, "transformer_blocks.*.attn2", first)


@mask_change("huggingface/diffusers#10033", "128b96f369", tiny.mochi, at=("transformer_blocks.0.attn1",))
def mochi_padding_attended(model: Any) -> None:
    """Mochi's joint attention took padded prompt tokens as keys and queries. Since: each prompt's valid tokens
    alone.
    """
    masked(model, "transformer_blocks.*.attn1", lambda mask, x: torch.ones_like(mask))


class SelfAttention:
    """Wan's self-attention, written out.

    Args:
        turned: heads [B, tokens, heads, D] under the rotary tables. causal: by accident.
    """

    def __init__(self, turned: Callable[..., torch.Tensor], causal: bool = False) -> None:
        self.turned, self.causal = turned, causal

    def __call__(self, attn: Any, x: torch.Tensor, encoder: Any, mask: Any, tables: Any) -> torch.Tensor:
        q, k, v = (f(x) for f in (attn.to_q, attn.to_k, attn.to_v))
        q, k, v = (h.unflatten(2, (attn.heads, -1)) for h in (attn.norm_q(q), attn.norm_k(k), v))
        q, k, v = (h.type_as(x).transpose(1, 2) for h in (self.turned(q, *tables), self.turned(k, *tables), v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return attn.to_out[1](attn.to_out[0](out.transpose(1, 2).flatten(2)))


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos[..., 0::2], sin[..., 1::2]
    return torch.stack([a * c - b * s, a * s + b * c], dim=-1).flatten(-2)


@change("AI-Hypercomputer/maxdiffusion@4f5be064", "4f5be064", tiny.wan, at=("blocks.0.attn1",))
def causal_by_accident(model: Any) -> None:
    """The splash kernel of image attention was built with a causal mask for every head. Since: a full mask."""
    for attention in modules(model, "blocks.*.attn1"):
        attention.processor = SelfAttention(turned, causal=True)


@change(
    "utensils/mold#187", of=tiny.ltx,
    at=("transformer_blocks.0.attn2.norm_q", "transformer_blocks.0.attn2.norm_k", "transformer_blocks.0.attn2"),
)  # fmt: skip
def text_rotated(model: Any) -> None:
    """LTX-2's attention to the prompt turned queries and keys by the video's rotary tables. Since: only self-attention
    is turned.
    """
    tables: list[Any] = []

    def note(rope: Any, args: Any, out: Any) -> None:
        tables[:] = out

    def rotated(own: Any, x: torch.Tensor) -> torch.Tensor:  # keys are fewer than tokens of the video
        return apply_rotary_emb(own(x), tuple(table[:, : x.shape[1]] for table in tables))

    model.rope.register_forward_hook(note)
    wrapped(model, "transformer_blocks.*.attn2.norm_?", rotated)
