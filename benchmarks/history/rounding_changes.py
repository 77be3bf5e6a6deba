"""Changes that only round, or change nothing that counts: none of them may raise an alarm."""

from __future__ import annotations

import functools
from typing import Any

import tiny
import torch
from change import Around, Made, change, drawn, masked, modules, tame, wrapped
from mask_faults import ATTENTIONS, SelfAttention
from torch import nn
from vae_faults import around, encode

innocent = functools.partial(change, innocent=True)


@innocent("huggingface/diffusers#12316", "df6516a716", tiny.made_hunyuan)
def hunyuan_order_of_a_sum(model: Any) -> None:
    """Time, guidance and text are added in another order."""
    embed = model.time_text_embed

    def added(own: Any, timestep: torch.Tensor, pooled: torch.Tensor, guidance: torch.Tensor) -> Any:
        def embedded(layer: Any, x: torch.Tensor) -> torch.Tensor:
            return layer(embed.time_proj(x).to(pooled.dtype))

        together = embedded(embed.timestep_embedder, timestep) + embed.text_embedder(pooled)
        return together + embedded(embed.guidance_embedder, guidance), None

    wrapped(model, "time_text_embed", added)


def not_contiguous(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@innocent("huggingface/diffusers#14236", "021c88e0c6", tiny.wan)
def wan_not_contiguous(model: Any) -> None:
    """Wan's tokens are made contiguous before the blocks."""
    wrapped(model, "blocks.0", lambda own, x, *rest: own(not_contiguous(x), *rest))


@innocent("huggingface/diffusers#14186", "1aadc65cac", tiny.sd3)
def sd3_not_contiguous(model: Any) -> None:
    """SD3's tokens are made contiguous before the blocks."""
    wrapped(model, "pos_embed", lambda own, x: not_contiguous(own(x)))


@innocent("huggingface/diffusers#10482", "01bd79649e", tiny.made_hunyuan)
def hunyuan_rows_masked(model: Any) -> None:
    """HunyuanVideo's mask was of queries and keys, and is of keys alone: padded rows of the text, which nothing reads,
    come out otherwise.
    """
    masked(model, ATTENTIONS, lambda keys, x: keys & keys.transpose(-1, -2))


def complex_turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary tables as complex numbers."""
    wide = torch.complex64 if x.dtype != torch.float64 else torch.complex128
    turn = torch.complex(cos[..., 0::2].double(), sin[..., 1::2].double()).to(wide)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(3)


@innocent("huggingface/diffusers#11649", "62e847db5f", tiny.wan)
def wan_complex_rope(model: Any) -> None:
    """Wan's rotary tables are real numbers in place of complex ones."""
    for attention in modules(model, "blocks.*.attn1"):
        attention.processor = SelfAttention(complex_turned)


def grouped(how: str) -> Made:
    """Attention of four heads over two heads of keys and values.

    Args:
        how: `repeated`, `grouped`, or `bound`: a softmax that subtracts a bound of the logits in place of their
            maximum.
    """

    def lines(to_q: nn.Module, to_kv: nn.Module, to_out: nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
        q = to_q(hidden_states).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = to_kv(hidden_states).unflatten(-1, (4, 8)).transpose(1, 2).chunk(2, dim=1)
        if how != "grouped":
            k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
        if how == "bound":
            most = q.norm(dim=-1, keepdim=True) * k.norm(dim=-1).amax(-1)[..., None, None] * 8**-0.5
            weights = torch.exp(q @ k.transpose(-1, -2) * 8**-0.5 - most)
            out = weights @ v / weights.sum(-1, keepdim=True)
        else:
            out = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=how == "grouped")
        return hidden_states + to_out(out.transpose(1, 2).flatten(2))

    linear = {name: nn.Linear(32, 32) for name in ("to_q", "to_kv", "to_out")}
    return Made(module=tame(Around(lines, **linear)), inputs={"hidden_states": drawn(1, 24, 32)})


@innocent("huggingface/diffusers#14523", "11a82a15fe")
def grouped_keys(fixed: bool) -> Made:
    """Keys and values of grouped attention are repeated in place of `enable_gqa`."""
    return grouped("repeated" if fixed else "grouped")


@innocent("AI-Hypercomputer/maxdiffusion@9c9b7075", "9c9b7075")
def softmax_of_a_bound(fixed: bool) -> Made:
    """The softmax subtracts a bound of the logits in place of their running maximum."""
    return grouped("bound" if fixed else "repeated")


@innocent("huggingface/diffusers#9185", "2d9ccf39b5")
def flux_fused_projections(fixed: bool) -> Made:
    """Flux's projections to queries, keys and values can be one product."""
    made: Any = tiny.flux()
    if fixed:
        made.module.fuse_qkv_projections()
    return made


@innocent("huggingface/diffusers#12987", "d54669a73e")
def qwen_mask_of_ones(fixed: bool) -> Made:
    """QwenImage makes no mask where nothing is padded."""
    made = tiny.qwen_unpadded()
    if fixed:
        masked(made.module, ATTENTIONS, lambda mask, x: None, "encoder_hidden_states_mask")
    return made


@innocent("huggingface/diffusers#13533", "b9d6420447", tiny.auraflow)
def auraflow_norm_of_keys(model: Any) -> None:
    """AuraFlow's prompt keys went through the norm of its queries, which has no weights either."""
    for attention in modules(model, "joint_transformer_blocks.*.attn"):
        attention.norm_added_k = attention.norm_added_q


def encoding_attention() -> Made:
    return around(tiny.hunyuan_vae(mid_block_add_attention=True), encode, 3, 5, 16, 16)


@innocent("huggingface/diffusers#10764", "8ae8008b0d", encoding_attention)
def hunyuan_causal_mask(model: Any) -> None:
    """The causal mask of HunyuanVideo's VAE is made at once, not row by row."""

    def by_row(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # as a float of zeros and minus infinity
        rows = torch.full_like(mask, float("-inf"))
        for i in range(mask.shape[-2]):
            rows[..., i, : int((mask[0, i] == 0).sum())] = 0
        return rows

    masked(model, "vae.encoder.mid_block.attentions.?", by_row)
