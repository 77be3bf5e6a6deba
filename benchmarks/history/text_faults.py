"""Text encoders: masks, positions, and which of their states is handed on."""

from __future__ import annotations

from typing import Any

import tiny
import torch
import transformers
from change import Change, Made, drawn, tame, wrapped
from torch import nn


def t5(kind: Any = transformers.UMT5EncoderModel, config: Any = transformers.UMT5Config) -> Any:
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_heads": 4}
    return tame(kind(config(**sizes, dropout_rate=0.0)))


class Encoder(nn.Module):
    """An encoder called with embeddings; `hidden_states` are those of the tokens."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def masked(self, mask: torch.Tensor) -> torch.Tensor:
        return mask

    def finished(self, states: Any, mask: torch.Tensor) -> torch.Tensor:
        return states.last_hidden_state

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.encoder(
            inputs_embeds=hidden_states, attention_mask=self.masked(attention_mask), output_hidden_states=True
        )
        return self.finished(states, attention_mask)


def encoded(module: nn.Module, valid: int = 11) -> Made:
    return Made(module=module, inputs={"hidden_states": drawn(1, 16, 32), "attention_mask": tiny.masked(valid)})


def umt5_bias_of_the_first_block(fixed: bool) -> Made:
    encoder = t5()
    blocks = encoder.encoder.block
    for block in [] if fixed else blocks[1:]:
        attention = block.layer[0].SelfAttention
        attention.compute_bias = blocks[0].layer[0].SelfAttention.compute_bias
    return encoded(Encoder(encoder))


class Inverted(Encoder):
    """Ones for padding."""

    def masked(self, mask: torch.Tensor) -> torch.Tensor:
        return 1 - mask


def t5_mask_inverted(fixed: bool) -> Made:
    encoder = t5(transformers.T5EncoderModel, transformers.T5Config)
    return encoded((Encoder if fixed else Inverted)(encoder))


class Trimmed(Encoder):
    """Padded rows are zeros, as Wan takes them."""

    def finished(self, states: Any, mask: torch.Tensor) -> torch.Tensor:
        return states.last_hidden_state * mask[..., None].to(states.last_hidden_state.dtype)


def umt5_padding_kept(fixed: bool) -> Made:
    return encoded((Trimmed if fixed else Encoder)(t5()))


def qwen2() -> Any:
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096,
    )  # fmt: skip
    return tame(transformers.Qwen2Model(config))


class ThirdLast(Encoder):
    """What HunyuanVideo's transformer takes of its language model."""

    def finished(self, states: Any, mask: torch.Tensor) -> torch.Tensor:
        return states.hidden_states[-3]


def hunyuan_last_state(fixed: bool) -> Made:
    return encoded((ThirdLast if fixed else Encoder)(qwen2()))


class Stacked(Encoder):
    """All states side by side, from the embedding on."""

    first = 0

    def finished(self, states: Any, mask: torch.Tensor) -> torch.Tensor:
        return torch.stack(states.hidden_states[self.first :][:4], dim=-1).flatten(2)


class StackedLater(Stacked):
    """Without the embedding."""

    first = 1


def ltx2_states_without_the_embedding(fixed: bool) -> Made:
    return encoded((Stacked if fixed else StackedLater)(qwen2()))


def rope_in_bfloat16(fixed: bool) -> Made:
    encoder = qwen2()

    def change(own: Any, x: torch.Tensor, position_ids: torch.Tensor, **others: Any) -> Any:
        waves = encoder.rotary_emb.inv_freq.to(torch.bfloat16)[None, :, None] @ position_ids[:, None].to(torch.bfloat16)
        angles = torch.cat([waves, waves], dim=1).transpose(1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    if not fixed:
        wrapped(encoder.rotary_emb, change)
    return encoded(Encoder(encoder))


class Clip(nn.Module):
    """A CLIP text model, called with ids; what it pools is the result."""

    def __init__(self, eos: int) -> None:
        super().__init__()
        config = transformers.CLIPTextConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=16, bos_token_id=60, eos_token_id=eos, pad_token_id=0,
        )  # fmt: skip
        self.text = transformers.CLIPTextModel(config)

    def forward(
        self, hidden_states: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        out = self.text(input_ids=input_ids, attention_mask=attention_mask)
        return out.pooler_output[:, None] + 0 * hidden_states


def clip(eos: int) -> Made:
    ids = torch.tensor([[60, 5, 9, 63, 12, 7, 61, 0, 0, 0]])  # 63 is a token that was added; 61 ends the prompt
    inputs = {"hidden_states": torch.zeros(1, 1, 32), "input_ids": ids, "attention_mask": tiny.masked(7, 10)}
    return Made(module=tame(Clip(eos)), inputs=inputs)


def clip_pools_the_largest_id(fixed: bool) -> Made:
    return clip(61 if fixed else 2)


def clip_without_causal_mask(fixed: bool) -> Made:
    made = clip(61)

    def change(own: Any, *args: Any, attention_mask: Any = None, **others: Any) -> Any:
        return own(*args, attention_mask=None, **{**others, "is_causal": False})

    for name, module in made.module.named_modules():
        if not fixed and name.endswith("self_attn"):
            wrapped(module, change)
    return made


TEXT_FAULTS = (
    Change(
        name="umt5_bias_of_the_first_block", source="huggingface/transformers#22626", kind="text",
        at=("encoder.encoder.block.1.layer.0.SelfAttention", "encoder.encoder.block.1.layer.0"),
        what="Ports of T5 share the first block's relative positions; UMT5 has a table in every block.",
        model=umt5_bias_of_the_first_block,
    ),
    Change(
        name="t5_mask_inverted", source="apple/ml-stable-diffusion#359", kind="text",
        at=("encoder:in.attention_mask", "encoder"), model=t5_mask_inverted,
        what="The T5 encoder's mask had ones for padding and zeros for tokens. Since: the tokenizer's mask.",
    ),
    Change(
        name="umt5_padding_kept", source="starVLA/starVLA#433", kind="text", at=(":out",), model=umt5_padding_kept,
        what="Padded rows of UMT5's states were handed to Wan as they were. Since: zeros, as in training.",
    ),
    Change(
        name="hunyuan_last_state", source="hao-ai-lab/FastVideo#1125", kind="text", at=(":out",),
        model=hunyuan_last_state,
        what="HunyuanVideo was given its language model's last state, with its norm. Since: the third last.",
    ),
    Change(
        name="ltx2_states_without_the_embedding", source="cornball-ai/diffuseR#12", kind="text", at=(":out",),
        model=ltx2_states_without_the_embedding,
        what="The stack of hidden states began with the first layer. Since: with the embedding.",
    ),
    Change(
        name="rope_in_bfloat16", source="huggingface/transformers#29285", kind="text", at=("encoder.rotary_emb",),
        cause="rope_dtype", model=rope_in_bfloat16,
        what="Llama's and Gemma's rotary angles were multiplied in bfloat16 where the model was. Since: float32.",
    ),
    Change(
        name="clip_pools_the_largest_id", source="huggingface/transformers#24777", kind="text",
        at=("text", "text.text_model", ":out"), model=clip_pools_the_largest_id,
        what="CLIP pooled at the largest id, which a token that was added can have. Since: at the first end of text.",
    ),
    Change(
        name="clip_without_causal_mask", source="sgl-project/sglang#14364", kind="text",
        at=("text*.encoder.layers.0.self_attn",), cause="attention.mask", model=clip_without_causal_mask,
        what="CLIP's attention was neither causal nor masked. Since: both.",
    ),
)  # fmt: skip
