"""CogVideoX 1.0 and 1.5: what parity knows of the transformer beyond diffusers' own class.

Its text has no mask: all tokens of the padded prompt take part, before the image tokens, in one joint attention. The
pipeline computes the rotary tables (5B and 1.5) and hands them in; here a module without weights does, so that they
are observed, perturbed and set like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from parity.hooks.rows import WHOLE, Part
from parity.models.attention import AttentionSettings, attend
from parity.reached import Reached


@dataclass(frozen=True, slots=True)
class CogVideoXRows:
    """Joint sequences are the text tokens, then the image tokens; all are valid.

    Attributes:
        text, image: numbers of tokens.
    """

    text: int
    image: int

    def parts(self, module: str, port: str, shape: Sequence[int], masked: Collection[int] = ()) -> tuple[Part, ...]:
        if len(shape) < 3 or module == "" or shape[1] != self.text + self.image:
            return WHOLE
        return (Part("image", self.text), Part("text", 0, self.text))


class Rotary(torch.nn.Module):
    """The rotary tables that CogVideoXPipeline computes before its loop.

    Args:
        config: the transformer's.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.head_dim = int(config["attention_head_dim"])
        self.patch, self.patch_t = int(config["patch_size"]), config.get("patch_size_t")
        self.base = (int(config["sample_height"]) // self.patch, int(config["sample_width"]) // self.patch)

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), float32 [tokens, head dim], for latents [B, T, C, H, W], of which only the shape counts."""
        from diffusers.models.embeddings import get_3d_rotary_pos_embed
        from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid

        _, frames, _, height, width = hidden_states.shape
        grid = (height // self.patch, width // self.patch)
        # Under torchax the default device is JAX's; a tensor that is being traced lies on none.
        device = hidden_states.device if type(hidden_states) is torch.Tensor else None
        if self.patch_t is None:
            crops = get_resize_crop_region_for_grid(grid, self.base[1], self.base[0])
            tables = get_3d_rotary_pos_embed(self.head_dim, crops, grid, frames, device=device)
        else:
            count = (frames + self.patch_t - 1) // self.patch_t
            tables = get_3d_rotary_pos_embed(
                self.head_dim, None, grid, count, grid_type="slice", max_size=self.base, device=device
            )
        cos, sin = tables
        return cos, sin


def give_rotary(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Forward pre-hook: hands the model the tables of its own `rope`, as the pipeline does."""
    return args, {**kwargs, "image_rotary_emb": model.rope(kwargs["hidden_states"])}


class JointAttention:
    """Attention processor of the blocks with a choice of kernel and the rest; nothing is masked.

    Projections, norms and rotary embedding in the order of diffusers' CogVideoXAttnProcessor2_0.
    """

    def __init__(self, how: AttentionSettings, reached: Reached) -> None:
        self.how, self.reached = how, reached

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from diffusers.models.embeddings import apply_rotary_emb

        assert attention_mask is None, "CogVideoX's transformer gives its attention no mask"
        text = encoder_hidden_states.shape[1]
        joint = torch.cat([encoder_hidden_states, hidden_states], dim=1)

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(2, (attn.heads, -1)).transpose(1, 2)

        def turned(x: torch.Tensor) -> torch.Tensor:
            if image_rotary_emb is None:
                return x
            return torch.cat([x[:, :, :text], apply_rotary_emb(x[:, :, text:], image_rotary_emb)], dim=2)

        query, key, value = heads(attn.to_q(joint)), heads(attn.to_k(joint)), heads(attn.to_v(joint))
        query = query if attn.norm_q is None else attn.norm_q(query)
        key = key if attn.norm_k is None else attn.norm_k(key)
        query, key, value = (x.transpose(1, 2) for x in (turned(query), turned(key), value))
        valid = torch.ones_like(joint[:, :, 0], dtype=torch.bool)  # padding of the prompt attends and is attended to
        out = attend(query, key, value, valid, self.how, self.reached.mark)
        out = attn.to_out[1](attn.to_out[0](out.flatten(2, 3).to(query.dtype)))
        return out[:, text:], out[:, :text]


def constrain_outputs(model: Any, place: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Have the tokens that the patch embedding and each block give placed on a mesh."""

    def hook(module: Any, args: Any, output: Any) -> Any:
        return tuple(place(x) for x in output) if isinstance(output, tuple) else place(output)

    for module in (model.patch_embed, *model.transformer_blocks):
        module.register_forward_hook(hook)
