"""Norms, embeddings and the order of tokens inside a transformer, or in what it is given."""

from __future__ import annotations

from typing import Any

import diffusers
import tiny
import torch
from change import Change, Made, drawn, tame, wrapped
from diffusers.models.transformers.transformer_cosmos3 import Cosmos3PackedMoTAttention
from diffusers.pipelines.ltx2.connectors import LTX2ConnectorTransformer1d
from torch import nn


def cogview4_silu(fixed: bool) -> Made:
    made = tiny.cogview4()
    if not fixed:
        wrapped(made.module.norm_out, lambda own, x, emb: own(x, nn.functional.silu(emb)))
    return made


def sana_positions_added(fixed: bool) -> Made:
    """Before, no scale in the config meant a scale of 1 and a table, not: no table."""
    made = tiny.sana(None)
    if not fixed:
        table: Any = tiny.sana(1.0).module.patch_embed
        wrapped(made.module.patch_embed, lambda own, x: own(x) + table.pos_embed.to(x.dtype))
    return made


def rms_weight_rounded(fixed: bool) -> Made:
    made = tiny.flux()

    def change(own: Any, x: torch.Tensor, module: Any) -> torch.Tensor:
        weight = module.weight.to(torch.bfloat16).to(x.dtype)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.eps) * weight

    for norm in [] if fixed else [made.module.transformer_blocks[0].attn.norm_q]:
        wrapped(norm, lambda own, x, norm=norm: change(own, x, norm))
    return made


class Pair(nn.Module):
    """Two layers of Cosmos 3's packed attention over prompt and latents."""

    def __init__(self) -> None:
        super().__init__()
        sizes: dict[str, Any] = {
            "hidden_size": 32, "head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
            "attention_bias": False, "rms_norm_eps": 1e-6, "qk_norm_for_text": False, "use_und_k_norm_for_gen": True,
        }  # fmt: skip
        self.layers = nn.ModuleList(Cosmos3PackedMoTAttention(**sizes) for _ in range(2))

    def forward(self, hidden_states: torch.Tensor, encoder_hidden_states: torch.Tensor) -> torch.Tensor:
        text, image = encoder_hidden_states[0], hidden_states[0]
        tables = [torch.outer(torch.arange(n), torch.arange(1, 5) / 4).repeat(1, 2) for n in (len(text), len(image))]
        rotary = tuple(f(x).to(image.dtype) for x in tables for f in (torch.cos, torch.sin))
        for layer in self.layers:
            more_text, more = layer(text, image, rotary)
            text, image = text + more_text, image + more
        return image[None]


def cosmos_k_norm(fixed: bool) -> Made:
    module = tame(Pair())
    for layer in [] if fixed else module.layers:
        wrapped(layer.k_norm_und_for_gen, lambda own, x: x)
    return Made(module=module, inputs={"hidden_states": drawn(1, 24, 32), "encoder_hidden_states": drawn(1, 8, 32)})


class Flipped(LTX2ConnectorTransformer1d):
    """The connector before: registers where padding was, and all of it flipped."""

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> Any:  # type: ignore[override]
        batch, length, _ = hidden_states.shape
        registers: Any = self.learnable_registers
        registers = registers.repeat(length // self.num_learnable_registers, 1)[None].to(hidden_states.dtype)
        mask = (attention_mask >= -9000.0).to(hidden_states.dtype)[..., None]
        x = torch.flip(mask * hidden_states + (1 - mask) * registers, dims=[1])
        rotary = self.rope(batch, length, device=x.device)
        for block in self.transformer_blocks:
            x = block(x, attention_mask=torch.zeros_like(attention_mask), rotary_emb=rotary)
        return self.norm_out(x), attention_mask


def ltx2_registers_flipped(fixed: bool) -> Made:
    kind = LTX2ConnectorTransformer1d if fixed else Flipped
    module = tame(kind(num_attention_heads=2, attention_head_dim=16, num_layers=2, num_learnable_registers=8))
    bias = torch.where(tiny.masked(11, left=True).bool(), 0.0, -10000.0)
    return Made(module=module, inputs={"hidden_states": drawn(1, 16, 32), "attention_mask": bias})


class Vace(nn.Module):
    """Wan VACE behind its pipeline's mask, to which a reference picture's part of zeros is joined."""

    def __init__(self, inner: nn.Module, front: bool) -> None:
        super().__init__()
        self.inner, self.front = inner, front

    def forward(
        self, hidden_states: torch.Tensor, video: torch.Tensor, mask: torch.Tensor, **others: torch.Tensor
    ) -> torch.Tensor:
        padding = torch.zeros_like(mask[:, :, :1])
        parts = [padding, mask] if self.front else [mask, padding]
        control = torch.cat([video, torch.cat(parts, dim=2)], dim=1)
        return self.inner(hidden_states, control_hidden_states=control, return_dict=False, **others)[0]


def vace_mask_behind(fixed: bool) -> Made:
    inner = diffusers.WanVACETransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=32, freq_dim=32,
        ffn_dim=64, num_layers=2, rope_max_seq_len=32, vace_layers=[0, 1], vace_in_channels=12,
    )  # fmt: skip
    inputs = {
        "hidden_states": drawn(1, 4, 3, 8, 8), "video": drawn(1, 8, 3, 8, 8, seed=3),
        "mask": (drawn(1, 4, 2, 8, 8, seed=4) > 0).float(), "encoder_hidden_states": drawn(1, 16, 32, seed=1),
        "timestep": torch.tensor([700.0]),
    }  # fmt: skip
    return Made(module=Vace(tame(inner), fixed), inputs=inputs)


def mochi_context_norm(fixed: bool) -> Made:
    """Before, norms of other models stood in for Mochi's own."""
    made = tiny.mochi()
    norm = made.module.transformer_blocks[0].norm1_context

    def change(own: Any, x: torch.Tensor, emb: torch.Tensor) -> Any:
        scale, *gates = norm.linear(norm.silu(emb)).chunk(4, dim=1)
        return (nn.functional.layer_norm(x, x.shape[-1:], eps=1e-5) * (1 + scale[:, None]), *gates)

    if not fixed:
        wrapped(norm, change)
    return made


class Normed(nn.Module):
    """Guidance as QwenImage's pipeline does it: the combination has the norm of the conditional prediction."""

    def __init__(self, inner: nn.Module, rescaled: bool) -> None:
        super().__init__()
        self.inner, self.rescaled = inner, rescaled

    def forward(
        self, hidden_states: torch.Tensor, encoder_hidden_states: torch.Tensor, negative: torch.Tensor, **others: Any
    ) -> torch.Tensor:
        cond, uncond = (
            self.inner(hidden_states, encoder_hidden_states=x, return_dict=False, **others)[0]
            for x in (encoder_hidden_states, negative)
        )
        guided = uncond + 4.0 * (cond - uncond)
        norms = cond.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True)
        return guided * norms if self.rescaled else guided


def qwen_guidance_norm(fixed: bool) -> Made:
    made = tiny.qwen(16)
    inputs = dict(made.inputs) | {"negative": drawn(1, 16, 16, seed=9)}
    return Made(module=Normed(made.module, fixed), inputs=inputs, static=made.static)


BLOCK_FAULTS = (
    Change(
        name="cogview4_silu", source="huggingface/diffusers#12150", commit="76c809e2ef", kind="transformer",
        at=("norm_out",), model=cogview4_silu,
        what="CogView4's last norm put SiLU before the projection of the condition. Since: no activation there.",
    ),
    Change(
        name="sana_positions_added", source="huggingface/diffusers#10431", commit="7ab7c12173", kind="transformer",
        at=("patch_embed",), model=sana_positions_added,
        what="Sana's patch embedding added a table of positions where the config gave no interpolation scale. Since: "
        "only where it gives one.",
    ),
    Change(
        name="rms_weight_rounded", source="sgl-project/sglang#18296", kind="transformer",
        at=("transformer_blocks.0.attn.norm_q",), model=rms_weight_rounded,
        what="The default dtype of RMSNorm's weight had become bfloat16 in one layer of Flux. Since: float32.",
    ),
    Change(
        name="cosmos_k_norm", source="huggingface/diffusers#14246", commit="86e6dac536", kind="transformer",
        at=("layers.0.k_norm_und_for_gen", "layers.0"), model=cosmos_k_norm,
        what="The generator attended to the prompt's keys without a norm of their own. Since: `k_norm_und_for_gen`.",
    ),
    Change(
        name="ltx2_registers_flipped", source="huggingface/diffusers#13931", commit="7bf00006aa", kind="text",
        at=(":out", "transformer_blocks.0:in.hidden_states"), model=ltx2_registers_flipped,
        what="LTX-2's connector flipped the padded prompt, so that its tokens stood in reverse order and registers in "
        "other places. Since: valid tokens first, in their order, by a stable argsort.",
    ),
    Change(
        name="vace_mask_behind", source="huggingface/diffusers#11778", commit="798265f2b6", kind="glue",
        at=("inner:in.control_hidden_states", "inner", "inner.vace_patch_embedding*"), model=vace_mask_behind,
        what="The part of a reference picture was joined behind the mask of Wan VACE. Since: in front of it, where "
        "the picture's latents are.",
    ),
    Change(
        name="mochi_context_norm", source="huggingface/diffusers#10033", commit="128b96f369", kind="transformer",
        at=("transformer_blocks.0.norm1_context",), model=mochi_context_norm,
        what="A norm of Mochi's context was of another kind (a layer norm for the RMS norm). Since: its own norms.",
    ),
    Change(
        name="qwen_guidance_norm", source="sgl-project/sglang#20679", kind="glue", at=(":out",),
        model=qwen_guidance_norm,
        what="Guidance of QwenImage was not rescaled to the norm of the conditional prediction. Since: token by token.",
    ),
)  # fmt: skip
