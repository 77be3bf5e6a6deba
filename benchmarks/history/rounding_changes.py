"""Changes that only round, or change nothing that counts: none of them may raise an alarm."""

from __future__ import annotations

from typing import Any

import tiny
import torch
from change import Change, Made, drawn, processed, tame, wrapped
from mask_faults import hunyuan_attentions
from torch import nn
from vae_faults import Encode, hunyuan_vae


def hunyuan_order_of_a_sum(fixed: bool) -> Made:
    model = tiny.hunyuan()
    embed: Any = model.time_text_embed

    def change(own: Any, timestep: torch.Tensor, pooled: torch.Tensor, guidance: torch.Tensor) -> Any:
        def embedded(layer: Any, x: torch.Tensor) -> torch.Tensor:
            return layer(embed.time_proj(x).to(pooled.dtype))

        times = embedded(embed.timestep_embedder, timestep)
        together = times + embed.text_embedder(pooled)
        return together + embedded(embed.guidance_embedder, guidance), None

    if not fixed:
        wrapped(embed, change)
    return Made(module=model, inputs=tiny.hunyuan_inputs())


def not_contiguous(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def wan_not_contiguous(fixed: bool) -> Made:
    made = tiny.wan()
    if not fixed:
        wrapped(made.module.blocks[0], lambda own, x, *rest: own(not_contiguous(x), *rest))
    return made


def sd3_not_contiguous(fixed: bool) -> Made:
    made = tiny.sd3()
    if not fixed:
        wrapped(made.module.pos_embed, lambda own, x: not_contiguous(own(x)))
    return made


def hunyuan_rows_masked(fixed: bool) -> Made:
    model = tiny.hunyuan()

    def change(arguments: dict[str, Any]) -> None:
        keys = arguments["attention_mask"]
        arguments["attention_mask"] = keys & keys.transpose(-1, -2)

    for attention in [] if fixed else hunyuan_attentions(model):
        processed(attention, change)
    return Made(module=model, inputs=tiny.hunyuan_inputs())


class ComplexTables:
    """Wan's self-attention with its rotary tables as complex numbers."""

    def __call__(self, attn: Any, x: torch.Tensor, encoder: Any, mask: Any, tables: Any) -> torch.Tensor:
        wide = torch.complex64 if x.dtype != torch.float64 else torch.complex128
        turn = torch.complex(tables[0][..., 0::2].double(), tables[1][..., 1::2].double()).to(wide)
        heads = [f.unflatten(2, (attn.heads, -1)) for f in (attn.to_q(x), attn.to_k(x), attn.to_v(x))]
        q, k = (norm(h.flatten(2)).unflatten(2, (attn.heads, -1)) for norm, h in zip(
            (attn.norm_q, attn.norm_k), heads[:2], strict=True))  # fmt: skip
        turned = [torch.view_as_real(torch.view_as_complex(h.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(3)
                  for h in (q, k)]  # fmt: skip
        q, k, v = (h.type_as(x).transpose(1, 2) for h in (*turned, heads[2]))
        out = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return attn.to_out[1](attn.to_out[0](out))


def wan_complex_rope(fixed: bool) -> Made:
    made = tiny.wan()
    for block in [] if fixed else made.module.blocks:
        block.attn1.processor = ComplexTables()
    return made


class Grouped(nn.Module):
    """Attention of four heads over two heads of keys and values.

    Args:
        how: `repeated`, `grouped`, or `bound`: a softmax that subtracts a bound of the logits in place of their
            maximum.
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.to_q, self.to_kv, self.to_out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        q = self.to_q(hidden_states).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = self.to_kv(hidden_states).unflatten(-1, (4, 8)).transpose(1, 2).chunk(2, dim=1)
        if self.how == "grouped":
            out = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        else:
            k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
            out = self.bound(q, k, v) if self.how == "bound" else nn.functional.scaled_dot_product_attention(q, k, v)
        return hidden_states + self.to_out(out.transpose(1, 2).flatten(2))

    def bound(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        most = q.norm(dim=-1, keepdim=True) * k.norm(dim=-1).amax(-1)[..., None, None] * 8**-0.5
        weights = torch.exp(q @ k.transpose(-1, -2) * 8**-0.5 - most)
        return weights @ v / weights.sum(-1, keepdim=True)


def grouped(how: str) -> Made:
    return Made(module=tame(Grouped(how)), inputs={"hidden_states": drawn(1, 24, 32)})


def grouped_keys(fixed: bool) -> Made:
    return grouped("repeated" if fixed else "grouped")


def softmax_of_a_bound(fixed: bool) -> Made:
    return grouped("bound" if fixed else "repeated")


def flux_fused_projections(fixed: bool) -> Made:
    made = tiny.flux()
    if fixed:
        made.module.fuse_qkv_projections()
    return made


def qwen_mask_of_ones(fixed: bool) -> Made:
    made = tiny.qwen(16)

    def change(arguments: dict[str, Any]) -> None:
        arguments["encoder_hidden_states_mask"] = None

    for block in made.module.transformer_blocks if fixed else []:
        processed(block.attn, change)
    return made


def auraflow_norm_of_keys(fixed: bool) -> Made:
    made = tiny.auraflow()
    for block in [] if fixed else made.module.joint_transformer_blocks:
        block.attn.norm_added_k = block.attn.norm_added_q  # neither has weights
    return made


def hunyuan_causal_mask(fixed: bool) -> Made:
    """The same mask row by row, as a float of zeros and minus infinity."""
    vae = hunyuan_vae(attention=True)
    module = Encode(vae)

    def change(arguments: dict[str, Any]) -> None:
        mask = arguments["attention_mask"]
        rows = torch.full_like(mask, float("-inf"))
        for i in range(mask.shape[-2]):
            rows[..., i, : int((mask[0, i] == 0).sum())] = 0
        arguments["attention_mask"] = rows

    for attention in [] if fixed else [a for a in vae.encoder.mid_block.attentions if a is not None]:
        processed(attention, change)
    return Made(module=module, inputs={"hidden_states": drawn(1, 3, 5, 16, 16)})


def _innocent(name: str, source: str, commit: str, what: str, model: Any, kind: Any = "transformer") -> Change:
    return Change(name=name, source=source, commit=commit, what=what, kind=kind, innocent=True, model=model)


ROUNDING_CHANGES = (
    _innocent("hunyuan_order_of_a_sum", "huggingface/diffusers#12316", "df6516a716",
              "Time, guidance and text are added in another order.", hunyuan_order_of_a_sum),
    _innocent("wan_not_contiguous", "huggingface/diffusers#14236", "021c88e0c6",
              "Wan's tokens are made contiguous before the blocks.", wan_not_contiguous),
    _innocent("sd3_not_contiguous", "huggingface/diffusers#14186", "1aadc65cac",
              "SD3's tokens are made contiguous before the blocks.", sd3_not_contiguous),
    _innocent("hunyuan_rows_masked", "huggingface/diffusers#10482", "01bd79649e",
              "HunyuanVideo's mask was of queries and keys, and is of keys alone: padded rows of the text, which "
              "nothing reads, come out otherwise.", hunyuan_rows_masked),
    _innocent("wan_complex_rope", "huggingface/diffusers#11649", "62e847db5f",
              "Wan's rotary tables are real numbers in place of complex ones.", wan_complex_rope),
    _innocent("grouped_keys", "huggingface/diffusers#14523", "11a82a15fe",
              "Keys and values of grouped attention are repeated in place of `enable_gqa`.", grouped_keys),
    _innocent("softmax_of_a_bound", "AI-Hypercomputer/maxdiffusion@9c9b7075", "9c9b7075",
              "The softmax subtracts a bound of the logits in place of their running maximum.", softmax_of_a_bound),
    _innocent("flux_fused_projections", "huggingface/diffusers#9185", "2d9ccf39b5",
              "Flux's projections to queries, keys and values can be one product.", flux_fused_projections),
    _innocent("qwen_mask_of_ones", "huggingface/diffusers#12987", "d54669a73e",
              "QwenImage makes no mask where nothing is padded.", qwen_mask_of_ones),
    _innocent("auraflow_norm_of_keys", "huggingface/diffusers#13533", "b9d6420447",
              "AuraFlow's prompt keys went through the norm of its queries, which has no weights either.",
              auraflow_norm_of_keys),
    _innocent("hunyuan_causal_mask", "huggingface/diffusers#10764", "8ae8008b0d",
              "The causal mask of HunyuanVideo's VAE is made at once, not row by row.", hunyuan_causal_mask, "VAE"),
)  # fmt: skip
