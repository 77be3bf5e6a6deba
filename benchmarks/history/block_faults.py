"""Norms, embeddings and the order of tokens inside a transformer, or in what it is given."""

from __future__ import annotations

from typing import Any

import tiny
import torch
from change import Around, Made, change, drawn, tame, wrapped
from diffusers.models.transformers.transformer_cosmos3 import Cosmos3PackedMoTAttention
from diffusers.pipelines.ltx2.connectors import LTX2ConnectorTransformer1d
from torch import nn


@change("huggingface/diffusers#12150", "76c809e2ef", tiny.cogview4, at=("norm_out",))
def cogview4_silu(model: Any) -> None:
    """CogView4's last norm put SiLU before the projection of the condition. Since: no activation there."""
    wrapped(model, "norm_out", lambda own, x, emb: own(x, nn.functional.silu(emb)))


@change("huggingface/diffusers#10431", "7ab7c12173", tiny.sana, at=("patch_embed",))
def sana_positions_added(model: Any) -> None:
    """Sana's patch embedding added a table of positions where the config gave no interpolation scale. Since: only where
    it gives one.
    """
    table: Any = tiny.sana(interpolation_scale=1.0).module.patch_embed  # what no scale in the config meant
    wrapped(model, "patch_embed", lambda own, x: own(x) + table.pos_embed.to(x.dtype))


@change("sgl-project/sglang#18296", of=tiny.flux, at=("transformer_blocks.0.attn.norm_q",))
def rms_weight_rounded(model: Any) -> None:
    """The default dtype of RMSNorm's weight had become bfloat16 in one layer of Flux. Since: float32."""
    norm = model.transformer_blocks[0].attn.norm_q

    def rounded(own: Any, x: torch.Tensor) -> torch.Tensor:
        weight = norm.weight.to(torch.bfloat16).to(x.dtype)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps) * weight

    wrapped(model, "transformer_blocks.0.attn.norm_q", rounded)


def cosmos() -> Made:
    """Two layers of Cosmos 3's packed attention over prompt and latents."""

    def lines(layers: Any, hidden_states: torch.Tensor, encoder_hidden_states: torch.Tensor) -> torch.Tensor:
        text, image = encoder_hidden_states[0], hidden_states[0]
        tables = [torch.outer(torch.arange(n), torch.arange(1, 5) / 4).repeat(1, 2) for n in (len(text), len(image))]
        rotary = tuple(f(x).to(image.dtype) for x in tables for f in (torch.cos, torch.sin))
        for layer in layers:
            more_text, more = layer(text, image, rotary)
            text, image = text + more_text, image + more
        return image[None]

    sizes = tiny.CONFIGS["Cosmos3PackedMoTAttention"]
    layers = nn.ModuleList(Cosmos3PackedMoTAttention(**sizes) for _ in range(2))
    return Made(
        module=tame(Around(lines, layers=layers)),
        inputs={"hidden_states": drawn(1, 24, 32), "encoder_hidden_states": drawn(1, 8, 32)},
    )


@change("huggingface/diffusers#14246", "86e6dac536", cosmos, at=("layers.0.k_norm_und_for_gen", "layers.0"))
def cosmos_k_norm(model: Any) -> None:
    """The generator attended to the prompt's keys without a norm of their own. Since: `k_norm_und_for_gen`."""
    wrapped(model, "*.k_norm_und_for_gen", lambda own, x: x)


class Flipped(LTX2ConnectorTransformer1d):
    """The connector before: registers where padding was, and all of it flipped."""

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        batch, length, _ = hidden_states.shape
        registers: Any = self.learnable_registers
        registers = registers.repeat(length // self.num_learnable_registers, 1)[None].to(hidden_states.dtype)
        mask = (attention_mask >= -9000.0).to(hidden_states.dtype)[..., None]
        x = torch.flip(mask * hidden_states + (1 - mask) * registers, dims=[1])
        rotary = self.rope(batch, length, device=x.device)
        for block in self.transformer_blocks:
            x = block(x, attention_mask=torch.zeros_like(attention_mask), rotary_emb=rotary)
        return self.norm_out(x), attention_mask


@change("huggingface/diffusers#13931", "7bf00006aa", at=(":out", "transformer_blocks.0:in.hidden_states"))
def ltx2_registers_flipped(fixed: bool) -> Made:
    """LTX-2's connector flipped the padded prompt, so that its tokens stood in reverse order and registers in other
    places. Since: valid tokens first, in their order, by a stable argsort.
    """
    kind = LTX2ConnectorTransformer1d if fixed else Flipped
    module = tame(kind(num_attention_heads=2, attention_head_dim=16, num_layers=2, num_learnable_registers=8))
    bias = torch.where(tiny.masked(11, left=True).bool(), 0.0, -10000.0)
    return Made(module=module, inputs={"hidden_states": drawn(1, 16, 32), "attention_mask": bias})


@change(
    "huggingface/diffusers#11778", "798265f2b6",
    at=("inner:in.control_hidden_states", "inner", "inner.vace_patch_embedding*"),
)  # fmt: skip
def vace_mask_behind(fixed: bool) -> Made:
    """The part of a reference picture was joined behind the mask of Wan VACE. Since: in front of it, where the
    picture's latents are.
    """

    def lines(inner: Any, video: torch.Tensor, mask: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        padding = torch.zeros_like(mask[:, :, :1])  # what stands for the picture
        masks = torch.cat([padding, mask] if fixed else [mask, padding], dim=2)
        control = torch.cat([video, masks], dim=1)
        return inner(control_hidden_states=control, return_dict=False, **others)[0]

    mask = (drawn(1, 4, 2, 8, 8, seed=4) > 0).float()
    inputs = tiny.inputs(1, 4, 3, 8, 8, text=32, video=drawn(1, 8, 3, 8, 8, seed=3), mask=mask)
    return Made(module=Around(lines, inner=tiny.model("WanVACETransformer3DModel")), inputs=inputs)


@change("huggingface/diffusers#10033", "128b96f369", tiny.mochi, at=("transformer_blocks.0.norm1_context",))
def mochi_context_norm(model: Any) -> None:
    """A norm of Mochi's context was of another kind (a layer norm for the RMS norm). Since: its own norms."""
    norm = model.transformer_blocks[0].norm1_context

    def normed(own: Any, x: torch.Tensor, emb: torch.Tensor) -> Any:
        scale, *gates = norm.linear(norm.silu(emb)).chunk(4, dim=1)
        return (nn.functional.layer_norm(x, x.shape[-1:], eps=1e-5) * (1 + scale[:, None]), *gates)

    wrapped(model, "transformer_blocks.0.norm1_context", normed)


@change("sgl-project/sglang#20679", at=(":out",))
def qwen_guidance_norm(fixed: bool) -> Made:
    """Guidance of QwenImage was not rescaled to the norm of the conditional prediction. Since: token by token."""

    def guided(inner: Any, encoder_hidden_states: torch.Tensor, negative: torch.Tensor, **others: Any) -> torch.Tensor:
        cond, uncond = (
            inner(encoder_hidden_states=x, return_dict=False, **others)[0] for x in (encoder_hidden_states, negative)
        )
        both = uncond + 4.0 * (cond - uncond)
        norms = cond.norm(dim=-1, keepdim=True) / both.norm(dim=-1, keepdim=True)
        return both * norms if fixed else both

    made = tiny.qwen_unpadded()
    inputs = {**made.inputs, "negative": drawn(1, 16, 16, seed=9)}
    return Made(module=Around(guided, inner=made.module), inputs=inputs, static=made.static)
