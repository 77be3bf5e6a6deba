"""Rotary tables and embeddings of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tiny
import torch
from change import Change, Made, drawn, tame, wrapped
from diffusers.models.embeddings import get_3d_rotary_pos_embed, get_timestep_embedding
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from diffusers.models.transformers.transformer_ideogram4 import Ideogram4MRoPE
from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid
from torch import nn


def wan_rope_split(fixed: bool) -> Made:
    made = tiny.wan()
    rope: Any = made.module.rope
    if not fixed:  # 16 = 8 + 4 + 4, and was cut as 6 + 5 + 5
        third = rope.attention_head_dim // 3
        rope.t_dim, rope.h_dim, rope.w_dim = rope.attention_head_dim - 2 * third, third, third
    return made


def flux_rope_theta(fixed: bool) -> Made:
    made = tiny.flux()
    made.module.pos_embed = FluxPosEmbed(theta=256 if fixed else 10000, axes_dim=[4, 4, 8])
    return made


class LongPositions(nn.Module):
    """Ideogram's rotary tables and one attention under them; positions of images begin at 65,536."""

    def __init__(self) -> None:
        super().__init__()
        self.rope = Ideogram4MRoPE(16, 5_000_000, (4, 2, 2))
        self.to_qkv = nn.Linear(32, 96)
        self.to_out = nn.Linear(32, 32)

    def forward(self, hidden_states: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        cos, sin = (x[:, None].to(hidden_states.dtype) for x in self.rope(position_ids))
        q, k, v = (x.unflatten(-1, (2, 16)).transpose(1, 2) for x in self.to_qkv(hidden_states).chunk(3, dim=-1))

        def turned(x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, dim=-1)
            return x * cos + torch.cat([-b, a], dim=-1) * sin

        out = nn.functional.scaled_dot_product_attention(turned(q), turned(k), v)
        return hidden_states + self.to_out(out.transpose(1, 2).flatten(2))


def ideogram_positions_in_bfloat16(fixed: bool) -> Made:
    module = tame(LongPositions())
    if not fixed:

        def rounded(own: Callable[..., Any], ids: torch.Tensor) -> Any:
            return own(ids.to(torch.bfloat16).to(torch.float32))

        wrapped(module.rope, rounded)
    grid = torch.cartesian_prod(torch.zeros(1, dtype=torch.long), torch.arange(4), torch.arange(6))
    return Made(module=module, inputs={"hidden_states": drawn(1, 24, 32), "position_ids": (65536 + grid)[None]})


class Turned(nn.Module):
    """CogVideoX-1.5 with the rotary tables that its pipeline makes."""

    def __init__(self, inner: nn.Module, sliced: bool) -> None:
        super().__init__()
        self.inner, self.sliced = inner, sliced

    def forward(self, hidden_states: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        _, _, frames, height, width = hidden_states.shape
        grid, base, frames = (height // 2, width // 2), (8, 8), frames // 2
        if self.sliced:
            tables = get_3d_rotary_pos_embed(16, None, grid, frames, grid_type="slice", max_size=base)
        else:
            crop = get_resize_crop_region_for_grid(grid, *base)
            tables = get_3d_rotary_pos_embed(16, crop, grid, frames)
        tables = tuple(x.to(hidden_states.dtype) for x in tables)
        by_frame = hidden_states.transpose(1, 2)
        return self.inner(by_frame, image_rotary_emb=tables, return_dict=False, **others)[0].transpose(1, 2)


def cogvideox_rope_grid(fixed: bool) -> Made:
    made = tiny.cogvideox()
    return Made(module=Turned(made.module, fixed), inputs=made.inputs)


def rope_of_the_first_rank(fixed: bool) -> Made:
    """Two ranks of sequence parallelism in one: the second one's tokens take the first one's positions."""
    made = tiny.qwen(16)

    def change(own: Any, *args: Any, **kwargs: Any) -> Any:
        image, text = own(*args, **kwargs)
        half = image.shape[0] // 2
        return torch.cat([image[:half], image[:half]]), text

    if not fixed:
        wrapped(made.module.pos_embed, change)
    return made


def qwen_positions_not_centred(fixed: bool) -> Made:
    made = tiny.qwen(16)
    if not fixed:
        made.module.pos_embed.scale_rope = False
    return made


def prx_frequency_shift(fixed: bool) -> Made:
    made = tiny.prx()
    model: Any = made.module

    def embedded(timestep: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        waves = get_timestep_embedding(
            timestep, 256, max_period=model.time_max_period, scale=model.time_factor, flip_sin_to_cos=True
        )
        return model.time_in(waves.to(dtype))

    if not fixed:
        model._compute_timestep_embedding = embedded
    return made


class Scaled(nn.Module):
    """A script's own scaling of sigma to the model's timestep."""

    def __init__(self, inner: nn.Module, exact: bool) -> None:
        super().__init__()
        self.inner, self.exact = inner, exact

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        sigma = timestep if self.exact else timestep.to(torch.bfloat16)
        return self.inner(hidden_states, timestep=(sigma * 1000.0).to(hidden_states.dtype), return_dict=False,
                          **others)[0]  # fmt: skip


def hunyuan_sigma_rounded(fixed: bool) -> Made:
    inputs = tiny.hunyuan_inputs() | {"timestep": torch.tensor([0.97826087])}
    return Made(module=Scaled(tiny.hunyuan(), fixed), inputs=inputs)


ROTARY_FAULTS = (
    Change(
        name="wan_rope_split", source="huggingface/diffusers#12594", commit="ff263947ad", kind="transformer",
        at=("rope", "blocks.0:in.rotary_emb*", "blocks.0.attn1"),
        what="Wan's rotary table was cut by D - 2 (D // 3), D // 3, D // 3, and made by 2 (D // 6) for height and "
        "width: other axes where the two differ. Since: cut as it was made.", model=wan_rope_split,
    ),
    Change(
        name="flux_rope_theta", source="huggingface/diffusers#10115", commit="3335e2262d", kind="transformer",
        at=("pos_embed",),
        what="FluxPosEmbed ignored the theta that it was given and took 10,000. Since: its own.",
        model=flux_rope_theta,
    ),
    Change(
        name="ideogram_positions_in_bfloat16", source="huggingface/diffusers#13922", commit="6e8c8c4cac",
        kind="transformer", at=("rope",), cause="rope_dtype",
        what="Under autocast positions were multiplied in bfloat16, where 512 neighbours from 65,536 on are one "
        "number. Since: in float32.", model=ideogram_positions_in_bfloat16,
    ),
    Change(
        name="cogvideox_rope_grid", source="huggingface/diffusers#9963", commit="0583a8d12a", kind="transformer",
        at=("inner:in.image_rotary_emb*", "inner.transformer_blocks.0*", "inner"),
        what="CogVideoX-1.5's rotary grid was stretched to the base size as in 1.0. Since: cut out of the largest "
        "grid (`slice`).", model=cogvideox_rope_grid,
    ),
    Change(
        name="rope_of_the_first_rank", source="vllm-project/vllm-omni#377", commit="ee2b78e8", kind="transformer",
        at=("pos_embed",),
        what="With sequence parallelism image tokens were cut among ranks and their rotary table was not: each rank "
        "took the first positions. Since: the table is cut alike.", model=rope_of_the_first_rank,
    ),
    Change(
        name="qwen_positions_not_centred", source="utensils/mold#111", kind="transformer", at=("pos_embed",),
        what="A port of QwenImage counted rows and columns from 0. Since: centred, half of them negative "
        "(`scale_rope`).", model=qwen_positions_not_centred,
    ),
    Change(
        name="prx_frequency_shift", source="huggingface/diffusers#12791", commit="8d415a6f48", kind="transformer",
        at=("time_in", "time_in:in.*", "time_in.*"),
        what="PRX's timestep frequencies were spaced by the default shift of 1. Since: 0, as in training.",
        model=prx_frequency_shift,
    ),
    Change(
        name="hunyuan_sigma_rounded", source="Tencent-Hunyuan/UniRL#438", kind="transformer",
        at=("inner:in.timestep", "inner", "inner.time_text_embed*", "inner.context_embedder*"), cause="timestep_dtype",
        what="Sigma was cast to bfloat16 and then multiplied by 1000: 976 for 978.26. Since: scaled in float32.",
        model=hunyuan_sigma_rounded,
    ),
)  # fmt: skip
