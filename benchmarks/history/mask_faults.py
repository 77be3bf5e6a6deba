"""Attention masks and keys: dropped, of another shape, of another dtype, of other rows."""

from __future__ import annotations

from typing import Any

import tiny
import torch
from change import Change, Made, drawn, processed, wrapped
from diffusers.models.transformers.transformer_ltx import apply_rotary_emb
from torch import nn


class TwoPrompts(nn.Module):
    """Two prompts of other lengths in one batch, as `num_videos_per_prompt` and guidance make them.

    The latents of both stand in the channels of one, since a run has a batch of one.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        **one: torch.Tensor,
    ) -> torch.Tensor:
        both = hidden_states.unflatten(1, (2, -1))[0]
        out = self.inner(
            hidden_states=both,
            timestep=timestep.expand(2),
            encoder_hidden_states=encoder_hidden_states.unflatten(1, (2, -1))[0],
            encoder_attention_mask=encoder_attention_mask.unflatten(1, (2, -1))[0],
            **{name: x.expand(2, *x.shape[1:]) for name, x in one.items()},
            return_dict=False,
        )[0]
        return out.flatten(0, 1)[None]


def two_prompts() -> Made:
    inputs = tiny.hunyuan_inputs() | {
        "hidden_states": drawn(1, 8, 2, 8, 8),
        "encoder_hidden_states": drawn(1, 32, 16, seed=1),
        "encoder_attention_mask": torch.cat([tiny.masked(14), tiny.masked(5)], dim=1),
    }
    return Made(module=TwoPrompts(tiny.hunyuan()), inputs=inputs)


def hunyuan_attentions(model: Any) -> list[Any]:
    return [b.attn for b in (*model.transformer_blocks, *model.single_transformer_blocks)]


def hunyuan_mask_without_heads(fixed: bool) -> Made:
    made = two_prompts()

    def change(arguments: dict[str, Any]) -> None:
        keys = arguments["attention_mask"][:, 0, 0]
        arguments["attention_mask"] = keys[:, :, None] & keys[:, None, :]  # [B, N, N]: the batch stands where heads do

    for attention in [] if fixed else hunyuan_attentions(made.module.inner):
        processed(attention, change)
    return made


def hunyuan_mask_of_three_axes(fixed: bool) -> Made:
    made = two_prompts()

    def change(arguments: dict[str, Any]) -> None:
        arguments["attention_mask"] = arguments["attention_mask"][:, 0]  # [B, 1, N]

    for attention in [] if fixed else hunyuan_attentions(made.module.inner):
        processed(attention, change)
    return made


def qwen_mask_dropped(fixed: bool) -> Made:
    made = tiny.qwen()

    def change(arguments: dict[str, Any]) -> None:
        arguments["encoder_hidden_states_mask"] = None

    for block in [] if fixed else made.module.transformer_blocks:
        processed(block.attn, change)
    return made


def chroma_mask_added(fixed: bool) -> Made:
    made = tiny.chroma()

    def change(arguments: dict[str, Any]) -> None:
        mask = arguments["attention_mask"]
        arguments["attention_mask"] = None if mask is None else mask.to(arguments["hidden_states"].dtype)

    blocks = (*made.module.transformer_blocks, *made.module.single_transformer_blocks)
    for block in [] if fixed else blocks:
        processed(block.attn, change)
    return made


def varlen_takes_the_first_keys(fixed: bool) -> Made:
    made = tiny.ltx()

    def change(arguments: dict[str, Any]) -> None:
        bias = arguments.get("attention_mask")
        if bias is not None:  # as many keys as are valid, the first ones; the mask of this model lets the last through
            valid = (bias > -1).sum(-1, keepdim=True)
            first = torch.arange(bias.shape[-1]) < valid
            arguments["attention_mask"] = torch.where(first, 0.0, -10000.0).to(bias.dtype)

    for block in [] if fixed else made.module.transformer_blocks:
        processed(block.attn2, change)
    return made


def mochi_padding_attended(fixed: bool) -> Made:
    made = tiny.mochi()

    def change(arguments: dict[str, Any]) -> None:
        arguments["attention_mask"] = torch.ones_like(arguments["attention_mask"])

    for block in [] if fixed else made.module.transformer_blocks:
        processed(block.attn1, change)
    return made


class Causal:
    """Plain attention, causal by accident."""

    def __call__(
        self, attn: Any, hidden_states: torch.Tensor, encoder: Any, mask: Any, rotary_emb: Any
    ) -> torch.Tensor:
        q, k, v = (f(hidden_states) for f in (attn.to_q, attn.to_k, attn.to_v))
        q, k = attn.norm_q(q), attn.norm_k(k)
        q, k, v = (x.unflatten(2, (attn.heads, -1)) for x in (q, k, v))
        cos, sin = rotary_emb

        def turned(x: torch.Tensor) -> torch.Tensor:
            a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
            c, s = cos[..., 0::2], sin[..., 1::2]
            return torch.stack([a * c - b * s, a * s + b * c], dim=-1).flatten(-2).type_as(x)

        q, k, v = (x.transpose(1, 2) for x in (turned(q), turned(k), v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attn.to_out[1](attn.to_out[0](out.transpose(1, 2).flatten(2)))


def causal_by_accident(fixed: bool) -> Made:
    made = tiny.wan()
    for block in [] if fixed else made.module.blocks:
        block.attn1.processor = Causal()
    return made


def text_rotated(fixed: bool) -> Made:
    """LTX-2's prompt attention took the video's rotary tables, cut to the prompt's length for its keys."""
    made = tiny.ltx()
    model: Any = made.module
    seen: list[Any] = []

    def note(module: Any, args: Any, kwargs: Any) -> None:
        seen[:] = [kwargs["image_rotary_emb"]]

    def change(arguments: dict[str, Any]) -> None:
        attn, (cos, sin) = arguments["attn"], seen[0]
        keys = arguments["encoder_hidden_states"].shape[1]
        arguments["image_rotary_emb"] = None
        attn.tables = ((cos, sin), (cos[:, :keys], sin[:, :keys]))

    def rotated(norm: Any, attn: Any, at: int) -> None:
        wrapped(norm, lambda own, x: apply_rotary_emb(own(x), attn.tables[at]))

    for block in [] if fixed else model.transformer_blocks:
        block.attn1.register_forward_pre_hook(note, with_kwargs=True)
        processed(block.attn2, change)
        rotated(block.attn2.norm_q, block.attn2, 0)
        rotated(block.attn2.norm_k, block.attn2, 1)
    return made


MASK_FAULTS = (
    Change(
        name="hunyuan_mask_without_heads", source="huggingface/diffusers#10454", commit="7747b588e2",
        kind="transformer", at=("inner.transformer_blocks.0.attn", "inner.transformer_blocks.0"),
        what="HunyuanVideo's joint mask was [B, N, N]: with two prompts in a batch and two heads each head took "
        "the mask of one prompt. Since: [B, 1, N, N].", model=hunyuan_mask_without_heads,
    ),
    Change(
        name="hunyuan_mask_of_three_axes", source="huggingface/diffusers#10548", commit="4a4afd5ece",
        kind="transformer", at=("inner.transformer_blocks.0.attn", "inner.transformer_blocks.0"),
        what="The mask of keys was [B, 1, N], which broadcasts its batch along the heads. Since: [B, 1, 1, N].",
        model=hunyuan_mask_of_three_axes,
    ),
    Change(
        name="qwen_mask_dropped", source="huggingface/diffusers#12702", commit="dad5cb55e6", kind="transformer",
        at=("transformer_blocks.0.attn",), cause="attention.mask",
        what="QwenImage's `encoder_hidden_states_mask` never reached the joint attention: padded text was attended "
        "to. Since: it is joined with ones for the image and given to the attention.", model=qwen_mask_dropped,
    ),
    Change(
        name="chroma_mask_added", source="huggingface/diffusers#12263", commit="0a151115bb", kind="transformer",
        at=("transformer_blocks.0.attn",), cause="attention.mask",
        what="Chroma's pipeline cast the mask to the latents' dtype, so that ones and zeros were added to the logits. "
        "Since: it stays boolean.", model=chroma_mask_added,
    ),
    Change(
        name="varlen_takes_the_first_keys", source="huggingface/diffusers#14115", commit="5be68ced49",
        kind="transformer", at=("transformer_blocks.0.attn2",), cause="attention.mask",
        what="Flash attention 3 with lengths kept the first `mask.sum()` keys, whatever the mask let through. Since: "
        "the keys at the mask's own positions.", model=varlen_takes_the_first_keys,
    ),
    Change(
        name="mochi_padding_attended", source="huggingface/diffusers#10033", commit="128b96f369", kind="transformer",
        at=("transformer_blocks.0.attn1",), cause="attention.mask",
        what="Mochi's joint attention took padded prompt tokens as keys and queries. Since: each prompt's valid "
        "tokens alone.", model=mochi_padding_attended,
    ),
    Change(
        name="causal_by_accident", source="AI-Hypercomputer/maxdiffusion@4f5be064", commit="4f5be064",
        kind="transformer", at=("blocks.0.attn1",),
        what="The splash kernel of image attention was built with a causal mask for every head. Since: a full mask.",
        model=causal_by_accident,
    ),
    Change(
        name="text_rotated", source="utensils/mold#187", kind="transformer",
        at=("transformer_blocks.0.attn2.norm_q", "transformer_blocks.0.attn2.norm_k", "transformer_blocks.0.attn2"),
        what="LTX-2's attention to the prompt turned queries and keys by the video's rotary tables. Since: only "
        "self-attention is turned.", model=text_rotated,
    ),
)  # fmt: skip
