"""HunyuanVideo-1.5: what parity knows of this family beyond diffusers' own classes.

The reference runs diffusers' own forward. That forward neither traces under jax.jit (a data-dependent branch on the
image embeddings, boolean indexing to reorder the text) nor takes the settings that ports differ in, so the
candidate, and a reference with such a setting, run `traceable_forward`: the same submodules in the same order, with
the text reordered by a stable argsort and a gather. The two give equal bits in eager torch
(`tests/models/hunyuan_video_15/test_transformer.py`).

The forward's order of operations follows diffusers' HunyuanVideo15Transformer3DModel.forward (0.42.1).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from parity.hooks.rows import WHOLE, Part, RowFrame
from parity.models.attention import AttentionSettings, attend
from parity.models.family import Condition
from parity.settings import Reached, Settings


@dataclass(frozen=True, slots=True)
class HunyuanRows:
    """Which rows of which tensors are text tokens, told by module and length (see `parity.hooks.rows`).

    Attributes:
        image: tokens of the latent. vision, byt5, qwen: tokens of the three text streams, as one side has them
            (vision 0 where it gives no vision states). frame: text tokens with all streams present.
    """

    image: int
    vision: int
    byt5: int
    qwen: int
    frame: int

    @property
    def text(self) -> int:
        return self.vision + self.byt5 + self.qwen

    def parts(self, module: str, port: str, shape: Sequence[int], masked: Collection[int] = ()) -> tuple[Part, ...]:
        """See `parity.hooks.rows`; the text of a port may be shorter, and without the vision tokens, which are padding
        throughout."""
        if len(shape) < 2:
            return WHOLE
        if module == "":
            return (Part(frame=_STREAMS[port]),) if port in _STREAMS else WHOLE
        rows, head = shape[1], module.split(".")[0]
        texts = {self.text, self.byt5 + self.qwen, *masked}
        if len(shape) == 2 and "mask" not in port:  # [B, channels], as a time embedding: as many as a mask has, perhaps
            masked, texts = (), {self.text}
        if head == "context_embedder" and "mask" not in port:
            return (Part(frame="qwen"),) if (rows == self.qwen and len(shape) <= 4) or rows in masked else WHOLE
        if head in ("context_embedder_2", "image_embedder"):
            return (Part(frame="byt5" if head == "context_embedder_2" else "vision"),)
        if head != "transformer_blocks":
            return WHOLE
        joint = (Part("image", 0, self.image), Part("text", self.image, None, "text"))
        if rows == self.image + self.text:
            return joint
        if rows in texts and (rows != self.image or _is_text_site(module, port)):
            return (Part(frame="text"),)
        return joint if rows > self.image and (rows - self.image in texts or rows in masked) else WHOLE


_STREAMS = {"in.encoder_hidden_states": "qwen", "in.encoder_hidden_states_2": "byt5", "in.image_embeds": "vision"}
"""Input of the transformer -> its text frame."""


def _is_text_site(module: str, port: str) -> bool:
    """Whether a site's name says text, for latents that have as many tokens as the text."""
    name = module.rpartition(".")[2] + "." + port
    return any(word in f"{module}.{port}" for word in ("context", ".add_", "norm_added", "to_add_out")) or any(
        word in name for word in ("encoder_hidden_states", "attention_mask", "out.1")
    )


def text_frames(condition: Condition, lengths: HunyuanRows, settings: Settings) -> dict[str, RowFrame]:
    """The row frames of one branch: valid tokens first, in the order vision, ByT5, Qwen, whatever the side's order.

    Args:
        condition: masks `encoder_attention_mask` [1, qwen] and `encoder_attention_mask_2` [1, byt5].
    """
    qwen = _mask(condition["encoder_attention_mask"])
    byt5 = _mask(condition["encoder_attention_mask_2"])
    joint = joint_mask(condition, lengths)
    # The row of the side at which each token of [vision, byt5, qwen] stands, then the frame's order over tokens.
    reordered = np.argsort(~joint, kind="stable")
    index = np.arange(len(joint)) if settings.text("text.reorder") == "valid_first" else reordered
    weight = joint[reordered]
    absent = lengths.frame - len(joint)
    vision = max(lengths.vision, lengths.frame - lengths.byt5 - lengths.qwen)
    return {
        "qwen": _frame(np.arange(len(qwen)), qwen),
        "byt5": _frame(np.arange(len(byt5)), byt5),
        "vision": _frame(np.arange(vision), np.zeros(vision)),
        "text": _frame(np.pad(index, (0, absent)), np.pad(weight.astype(np.float32), (0, absent))),
    }


def joint_mask(condition: Condition, lengths: HunyuanRows) -> np.ndarray:
    """bool [text tokens], True where valid, in the order vision (all padding in text-to-video), ByT5, Qwen."""
    streams = (condition["encoder_attention_mask_2"], condition["encoder_attention_mask"])
    return np.concatenate([np.zeros(lengths.vision, bool), *(_mask(x) for x in streams)])


def _frame(index: np.ndarray, weight: np.ndarray) -> RowFrame:
    return RowFrame(index.astype(np.int32), weight.astype(np.float32))


def _mask(x: torch.Tensor) -> np.ndarray:
    return x[0].detach().cpu().to(torch.float32).numpy() > 0


class JointAttention:
    """Attention processor of the transformer blocks with a choice of kernel, mask and the rest.

    Projections, norms and rotary embedding in the order of diffusers' HunyuanVideo15AttnProcessor2_0.

    Args:
        first: the text mask that takes the place of every call's own (`segment_ids_first_row`), None for none.
    """

    def __init__(self, how: AttentionSettings, reached: Reached, first: Sequence[bool] | None = None) -> None:
        self.how, self.reached, self.first = how, reached, first

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from diffusers.models.embeddings import apply_rotary_emb

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(2, (attn.heads, -1))

        query, key = attn.norm_q(heads(attn.to_q(hidden_states))), attn.norm_k(heads(attn.to_k(hidden_states)))
        value = heads(attn.to_v(hidden_states))
        if image_rotary_emb is not None:
            query = apply_rotary_emb(query, image_rotary_emb, sequence_dim=1)
            key = apply_rotary_emb(key, image_rotary_emb, sequence_dim=1)
        text_query = attn.norm_added_q(heads(attn.add_q_proj(encoder_hidden_states)))
        text_key = attn.norm_added_k(heads(attn.add_k_proj(encoder_hidden_states)))
        text_value = heads(attn.add_v_proj(encoder_hidden_states))
        query = torch.cat([query, text_query], dim=1)
        key = torch.cat([key, text_key], dim=1)
        value = torch.cat([value, text_value], dim=1)
        length = query.shape[1]
        if self.first is not None:
            given = torch.tensor(self.first, device=attention_mask.device)
            attention_mask = given.expand(attention_mask.shape[0], -1)
        valid = F.pad(attention_mask, (length - attention_mask.shape[1], 0), value=True).bool()
        out = attend(query, key, value, valid, self.how, self.reached.mark)
        out = out.flatten(2, 3).to(query.dtype)
        text = encoder_hidden_states.shape[1]
        image_out, text_out = out[:, :-text], out[:, -text:]
        return attn.to_out[1](attn.to_out[0](image_out)), attn.to_add_out(text_out)


def traceable_forward(settings: Settings, reached: Reached) -> Callable[..., tuple[torch.Tensor] | Any]:
    """A forward for HunyuanVideo15Transformer3DModel that traces and follows the settings; bind it to the model."""

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        timestep_r: torch.Tensor | None = None,
        encoder_hidden_states_2: torch.Tensor | None = None,
        encoder_attention_mask_2: torch.Tensor | None = None,
        image_embeds: torch.Tensor | None = None,
        attention_kwargs: dict[str, Any] | None = None,
        return_dict: bool = True,
    ) -> tuple[torch.Tensor]:
        batch, _, frames, height, width = hidden_states.shape
        p_t, p = self.config.patch_size_t, self.config.patch_size
        rotary = self.rope(hidden_states)
        temb = self.time_embed(timestep, timestep_r=timestep_r)
        x = self.x_embedder(hidden_states)
        refiner_mask = None if settings.text("refiner.mask") == "none" else encoder_attention_mask
        reached.mark("refiner.mask")
        qwen = self.context_embedder(encoder_hidden_states, timestep, refiner_mask)
        qwen = qwen + _type_embedding(self, qwen, 0)
        assert encoder_attention_mask_2 is not None, "HunyuanVideo-1.5 is always given ByT5's embeddings and mask"
        byt5 = self.context_embedder_2(encoder_hidden_states_2)
        byt5 = byt5 + _type_embedding(self, byt5, 1)
        streams = [(byt5, encoder_attention_mask_2.bool()), (qwen, encoder_attention_mask.bool())]
        reached.mark("vision_states")
        if image_embeds is not None:
            streams.insert(0, _vision_stream(self, image_embeds))
        text, mask = _joint_text(streams, settings.text("text.reorder") == "valid_first")
        reached.mark("text.reorder")
        for block in self.transformer_blocks:
            x, text = block(x, text, temb, mask, rotary)
        x = self.proj_out(self.norm_out(x, temb))
        x = x.reshape(batch, frames // p_t, height // p, width // p, -1, p_t, p, p)
        x = x.permute(0, 4, 1, 5, 2, 6, 3, 7)
        return (x.flatten(6, 7).flatten(4, 5).flatten(2, 3),)

    return forward


def _type_embedding(model: Any, stream: torch.Tensor, kind: int) -> torch.Tensor:
    return model.cond_type_embed(torch.full_like(stream[:, :, 0], kind, dtype=torch.long))


def _vision_stream(model: Any, image_embeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The vision tokens and their mask; text-to-video shows in all-zero embeddings, without a branch in Python."""
    given = torch.any(image_embeds != 0).reshape(1, 1)
    vision = model.image_embedder(image_embeds)
    vision = vision * given[:, :, None].to(vision.dtype)
    mask = given.expand(vision.shape[0], vision.shape[1])
    return vision + _type_embedding(model, vision, 2), mask


def _joint_text(
    streams: Sequence[tuple[torch.Tensor, torch.Tensor]], valid_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Text tokens [B, L, C] and their bool mask [B, L]: padding of the last two streams zeroed, valid tokens first."""
    zeroed = [
        tokens if i < len(streams) - 2 else tokens * mask[:, :, None].to(tokens.dtype)
        for i, (tokens, mask) in enumerate(streams)
    ]
    text = torch.cat(zeroed, dim=1)
    mask = torch.cat([m for _, m in streams], dim=1)
    if not valid_first:
        return text, mask
    order = torch.argsort((~mask).to(torch.int32), dim=1, stable=True)
    return torch.gather(text, 1, order[:, :, None].expand(-1, -1, text.shape[2])), torch.gather(mask, 1, order)


def bind_forward(model: torch.nn.Module, forward: Callable[..., Any]) -> None:
    """Replace the forward of this one instance."""
    model.forward = types.MethodType(forward, model)
