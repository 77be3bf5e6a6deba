"""Rotary tables and embeddings of time."""

from __future__ import annotations

from typing import Any

import tiny
import torch
from change import Around, Made, change, drawn, tame, wrapped
from diffusers.models.embeddings import get_3d_rotary_pos_embed, get_timestep_embedding
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from diffusers.models.transformers.transformer_ideogram4 import Ideogram4MRoPE
from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid
from torch import nn


@change("huggingface/diffusers#12594", "ff263947ad", tiny.wan, at=("rope", "blocks.0:in.rotary_emb*", "blocks.0.attn1"))
def wan_rope_split(model: Any) -> None:
    """Wan's rotary table was cut by D - 2 (D // 3), D // 3, D // 3, and made by 2 (D // 6) for height and width: other
    axes where the two differ. Since: cut as it was made.
    """
    rope = model.rope
    third = rope.attention_head_dim // 3  # 16 = 8 + 4 + 4, and was cut as 6 + 5 + 5
    rope.t_dim, rope.h_dim, rope.w_dim = rope.attention_head_dim - 2 * third, third, third


@change("huggingface/diffusers#10115", "3335e2262d", at=("pos_embed",))
def flux_rope_theta(fixed: bool) -> Made:
    """FluxPosEmbed ignored the theta that it was given and took 10,000. Since: its own."""
    made = tiny.flux()
    made.module.pos_embed = FluxPosEmbed(theta=256 if fixed else 10000, axes_dim=[4, 4, 8])
    return made


def ideogram() -> Made:
    """Ideogram's rotary tables and one attention under them; positions of images begin at 65,536."""

    def lines(rope: Any, to_qkv: Any, to_out: Any, hidden_states: torch.Tensor, position_ids: Any) -> torch.Tensor:
        cos, sin = (x[:, None].to(hidden_states.dtype) for x in rope(position_ids))
        q, k, v = (x.unflatten(-1, (2, 16)).transpose(1, 2) for x in to_qkv(hidden_states).chunk(3, dim=-1))

        def turned(x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, dim=-1)
            return x * cos + torch.cat([-b, a], dim=-1) * sin

        out = nn.functional.scaled_dot_product_attention(turned(q), turned(k), v)
        return hidden_states + to_out(out.transpose(1, 2).flatten(2))

    rope = Ideogram4MRoPE(16, 5_000_000, (4, 2, 2))
    module = tame(Around(lines, rope=rope, to_qkv=nn.Linear(32, 96), to_out=nn.Linear(32, 32)))
    grid = torch.cartesian_prod(torch.zeros(1, dtype=torch.long), torch.arange(4), torch.arange(6))
    return Made(module=module, inputs={"hidden_states": drawn(1, 24, 32), "position_ids": (65536 + grid)[None]})


@change("huggingface/diffusers#13922", "6e8c8c4cac", ideogram, at=("rope",), cause="rope_dtype")
def ideogram_positions_in_bfloat16(model: Any) -> None:
    """Under autocast positions were multiplied in bfloat16, where 512 neighbours from 65,536 on are one number. Since:
    in float32.
    """
    wrapped(model, "rope", lambda own, ids: own(ids.to(torch.bfloat16).to(torch.float32)))


@change(
    "huggingface/diffusers#9963", "0583a8d12a",
    at=("inner:in.image_rotary_emb*", "inner.transformer_blocks.0*", "inner"),
)  # fmt: skip
def cogvideox_rope_grid(fixed: bool) -> Made:
    """CogVideoX-1.5's rotary grid was stretched to the base size as in 1.0. Since: cut out of the largest grid
    (`slice`).
    """

    def lines(inner: Any, hidden_states: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        _, _, frames, height, width = hidden_states.shape
        grid, base, frames = (height // 2, width // 2), (8, 8), frames // 2
        if fixed:
            tables = get_3d_rotary_pos_embed(16, None, grid, frames, grid_type="slice", max_size=base)
        else:
            tables = get_3d_rotary_pos_embed(16, get_resize_crop_region_for_grid(grid, *base), grid, frames)
        tables = tuple(x.to(hidden_states.dtype) for x in tables)
        by_frame = hidden_states.transpose(1, 2)
        return inner(by_frame, image_rotary_emb=tables, return_dict=False, **others)[0].transpose(1, 2)

    made = tiny.cogvideox()
    return Made(module=Around(lines, inner=made.module), inputs=made.inputs)


@change("vllm-project/vllm-omni#377", "ee2b78e8", tiny.qwen_unpadded, at=("pos_embed",))
def rope_of_the_first_rank(model: Any) -> None:
    """With sequence parallelism image tokens were cut among ranks and their rotary table was not: each rank took the
    first positions. Since: the table is cut alike.
    """

    def halved(own: Any, *args: Any, **kwargs: Any) -> Any:  # two ranks in one
        image, text = own(*args, **kwargs)
        half = image[: image.shape[0] // 2]
        return torch.cat([half, half]), text

    wrapped(model, "pos_embed", halved)


@change("utensils/mold#111", of=tiny.qwen_unpadded, at=("pos_embed",))
def qwen_positions_not_centred(model: Any) -> None:
    """A port of QwenImage counted rows and columns from 0. Since: centred, half of them negative (`scale_rope`)."""
    model.pos_embed.scale_rope = False


@change("huggingface/diffusers#12791", "8d415a6f48", tiny.prx, at=("time_in", "time_in:in.*", "time_in.*"))
def prx_frequency_shift(model: Any) -> None:
    """PRX's timestep frequencies were spaced by the default shift of 1. Since: 0, as in training."""

    def embedded(timestep: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        waves = get_timestep_embedding(
            timestep, 256, max_period=model.time_max_period, scale=model.time_factor, flip_sin_to_cos=True
        )
        return model.time_in(waves.to(dtype))

    model._compute_timestep_embedding = embedded


@change(
    "Tencent-Hunyuan/UniRL#438", cause="timestep_dtype",
    at=("inner:in.timestep", "inner", "inner.time_text_embed*", "inner.context_embedder*"),
)  # fmt: skip
def hunyuan_sigma_rounded(fixed: bool) -> Made:
    """Sigma was cast to bfloat16 and then multiplied by 1000: 976 for 978.26. Since: scaled in float32."""

    def lines(inner: Any, timestep: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        sigma = timestep if fixed else timestep.to(torch.bfloat16)
        time = (sigma * 1000.0).to(others["hidden_states"].dtype)
        return inner(timestep=time, return_dict=False, **others)[0]

    inputs = {**tiny.hunyuan_inputs(), "timestep": torch.tensor([0.97826087])}
    return Made(module=Around(lines, inner=tiny.hunyuan()), inputs=inputs)
