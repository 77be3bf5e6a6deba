"""For a port: diffusers' HunyuanVideo-1.5 so that torchax can compile it.

    from parity.models.hunyuan_video_15.traced import traceable

    model = traceable(HunyuanVideo15Transformer3DModel.from_pretrained(folder))

Problem. diffusers' forward asks values of tensors what to do (`if is_t2v:`, rows picked by a boolean mask), which no
compiled program can; and in the text refiner padded rows have no key at all, of which torch makes 0 and torchax NaN.

How. The same submodules in the same order by `traceable_forward`, the joint attention by parity's processor, and in the
refiner each padded row sees itself, which no valid row reads. Weights and module names stay. What the port changes
after this call, it changes.
"""

from __future__ import annotations

from typing import Any

import torch

from parity.models.attention import AttentionSettings
from parity.models.hunyuan_video_15.transformer import JointAttention, bind_forward, traceable_forward
from parity.settings import Reached, parse


def traceable(model: torch.nn.Module) -> torch.nn.Module:
    """The model itself, changed so that its forward can be traced.

    Args:
        model: diffusers' HunyuanVideo15Transformer3DModel.
    """
    reached = Reached(parse("torchax", []))
    changed: Any = model
    bind_forward(model, traceable_forward(reached.settings, reached))
    for block in changed.transformer_blocks:
        block.attn.set_processor(JointAttention(AttentionSettings("sdpa"), reached))
    for block in changed.context_embedder.token_refiner.refiner_blocks:
        block.attn.set_processor(_SeesItself(block.attn.processor))
    return model


class _SeesItself:
    """An attention processor in which each row is its own key, whatever the mask says.

    Args:
        own: the processor that is run.
    """

    def __init__(self, own: Any) -> None:
        self.own = own

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if attention_mask is not None:
            rows = torch.arange(hidden_states.shape[1], device=hidden_states.device)
            attention_mask = attention_mask | (rows[:, None] == rows[None, :])
        found: torch.Tensor = self.own(attn, hidden_states, encoder_hidden_states, attention_mask)
        return found
