"""HunyuanVideo-1.5: inputs, settings, rows, text encoders, schedule, and a forward that can be traced.

The text encoders are asked as its pipeline asks them: by its own static methods. The loop takes Euler steps of a flow,
combined by the checkpoint's guider.

The reference runs diffusers' own forward. That forward neither traces under jax.jit (a data-dependent branch on the
image embeddings, boolean indexing to reorder the text) nor takes the settings that ports differ in, so the
candidate, and a reference with such a setting, run `traceable_forward`: the same submodules in the same order, with
the text reordered by a stable argsort and a gather. The two give equal bits in eager torch
(`tests/models/hunyuan_video_15/test_transformer.py`).

The forward's order of operations follows diffusers' HunyuanVideo15Transformer3DModel.forward (0.42.1).
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers.models.attention_dispatch import AttentionBackendName
from diffusers.models.transformers import transformer_hunyuan_video15 as diffusers_model
from diffusers.pipelines.hunyuan_video1_5.image_processor import HunyuanVideo15ImageProcessor

from parity.hooks.methods import replaced
from parity.hooks.rows import WHOLE, Part, RowFrame
from parity.models import feature_cache
from parity.models.attention import AttentionSettings, JointAttention
from parity.models.family import Condition, Constrain, Family, Place, Said, Sampler
from parity.models.folder import Case, GenerationSpec, frames_of, load_component, load_part, read_config
from parity.models.patches import patch_norms, patch_rope, patch_timestep_embedding, place_outputs
from parity.models.stage_files import Stream
from parity.models.text import TextStage, encoder_of, row_frame, valid_of
from parity.settings import Reached, Settings, parse

_OWN_FORWARD = ("text.reorder", "refiner.mask", "vision_states")
"""Settings that diffusers' own forward has no place for."""

QWEN = Stream(argument="encoder_hidden_states", name="prompt_embeds", width="text_embed_dim")
BYT5 = Stream(
    argument="encoder_hidden_states_2", name="prompt_embeds_2", width="text_embed_2_dim", may_be_empty=True, byt5=True,
    tokens=lambda spec: spec.tokenizer_2_max_length,
)  # fmt: skip

_SKIPPED = 2
"""Hidden layers that the pipeline leaves out from the end."""


class HunyuanVideo15(Family):
    """See `parity.models.family.Family`."""

    title = "HunyuanVideo-1.5"
    batches: tuple[tuple[str, ...], ...] = (("cond",), ("uncond",))
    streams: tuple[Stream, ...] = (QWEN, BYT5)

    def defaults(self, folder: Path) -> Mapping[str, int]:
        """The size of a 16:9 video, from the transformer's `target_size`; none where that is not in its config."""
        target = read_config(folder, "transformer").get("target_size")
        if not isinstance(target, int):
            return {}
        factor = read_config(folder, "vae").get("spatial_compression_ratio", 16)
        sizes = HunyuanVideo15ImageProcessor(vae_scale_factor=factor)
        height, width = sizes.calculate_default_height_width(9, 16, target)
        return {"height": int(height), "width": int(width)}

    def latent_shape(self, folder: Path, spec: GenerationSpec) -> tuple[int, ...]:
        vae = read_config(folder, "vae")
        space, time = int(vae["spatial_compression_ratio"]), int(vae["temporal_compression_ratio"])
        frames = frames_of(spec, "VAE", space, time)
        return (1, int(vae["latent_channels"]), frames, spec.height // space, spec.width // space)

    def text(self, case: Case) -> TextStage:
        """Qwen2.5-VL, and ByT5 for the quoted parts of a prompt; without any, its embeddings and mask are zero.

        Raises:
            UsageError: the folder lacks a tokenizer or an encoder.
        """
        import diffusers
        import transformers

        pipeline, spec = diffusers.HunyuanVideo15Pipeline, case.spec
        tokenizer = load_component(transformers.Qwen2Tokenizer, case.folder, "tokenizer")
        glyphs = load_component(transformers.ByT5Tokenizer, case.folder, "tokenizer_2")

        qwen = partial(
            pipeline._get_mllm_prompt_embeds,
            tokenizer=tokenizer,
            device=torch.device("cpu"),
            tokenizer_max_length=spec.tokenizer_max_length,
            num_hidden_layers_to_skip=_SKIPPED,
            crop_start=spec.crop_start,
        )
        byt5 = partial(
            pipeline._get_byt5_prompt_embeds,
            tokenizer=glyphs,
            device=torch.device("cpu"),
            tokenizer_max_length=spec.tokenizer_2_max_length,
        )
        kind = transformers.Qwen2_5_VLTextModel
        first = encoder_of(case, "text_encoder", kind, QWEN, qwen, skip=_SKIPPED, crop=spec.crop_start)
        return TextStage((first, encoder_of(case, "text_encoder_2", transformers.T5EncoderModel, BYT5, byt5)))

    def adapt(self, model: Any, case: Case, reached: Reached, *, traced: bool, first: Condition | None = None) -> None:
        settings = reached.settings
        if traced or any(settings.changed(name) for name in _OWN_FORWARD):
            bind_forward(model, traceable_forward(settings, reached))
        how = AttentionSettings.of(settings)
        if traced or how != AttentionSettings("sdpa"):
            use_attention(model, how, reached, self._first_row(case, settings, first))
        else:
            # diffusers' own processor asks a process-wide default which kernel to call: it is sdpa here, whatever
            # another model or DIFFUSERS_ATTN_BACKEND was set to.
            for block in model.transformer_blocks:
                block.attn.processor._attention_backend = AttentionBackendName.NATIVE
            reached.mark("attention.kernel")
        patch_rope(model, case.latent_shape, settings, reached)
        patch_norms(model, settings, reached)
        patch_timestep_embedding(model, settings, reached)
        feature_cache.install(model, settings, reached)

    def constrain(self, model: Any, place: Constrain) -> None:
        place_outputs((model.x_embedder, *model.transformer_blocks), place)
        first = next(iter(model.transformer_blocks))
        first.register_forward_pre_hook(lambda module, args: (args[0], place(args[1]), *args[2:]))  # the joint text

    def checks(self, case: Case) -> tuple[Said, ...]:
        found: list[Said] = []
        if case.config.get("task_type") == "i2v":
            said = "an image-to-video checkpoint, run as text-to-video: the code that reads an image is given zeros"
            found.append(("image", "explained", said))
        if case.config.get("use_meanflow"):
            found.append(("timestep_r", "explained", "not given: what this checkpoint makes of it is not compared"))
        return tuple(found)

    def sampler(self, case: Case, seed: int) -> FlowMatchSampler:
        return FlowMatchSampler(case)

    def model_arguments(
        self, case: Case, settings: Settings, latents: torch.Tensor, timestep: torch.Tensor, dtype: torch.dtype
    ) -> dict[str, Any]:
        """Latents, then the condition latents and their mask, both zero in text-to-video, along the channels."""
        x = latents.to(dtype)
        zeros = torch.zeros_like(x)
        if not settings.changed("timestep_dtype"):
            timestep = timestep.to(dtype)  # as the pipeline does
        arguments = {"hidden_states": torch.cat([x, zeros, zeros[:, :1]], dim=1), "timestep": timestep}
        if settings.text("vision_states") == "none":
            return {**arguments, "image_embeds": None}
        tokens, width = case.spec.vision_num_semantic_tokens, int(case.config["image_embed_dim"])
        return {**arguments, "image_embeds": x.new_zeros((x.shape[0], tokens, width))}

    def rows(self, case: Case, settings: Settings, condition: Condition) -> tuple[HunyuanRows, Mapping[str, RowFrame]]:
        qwen = condition["encoder_attention_mask"].shape[1]
        byt5 = condition["encoder_attention_mask_2"].shape[1]
        vision = case.spec.vision_num_semantic_tokens
        given = vision if settings.text("vision_states") == "zeros" else 0
        rule = HunyuanRows(math.prod(self.token_grid(case)), given, byt5, qwen, vision + byt5 + qwen)
        return rule, text_frames(condition, rule, settings)

    def _first_row(self, case: Case, settings: Settings, first: Condition | None) -> list[bool] | None:
        """The text mask of the first branch, in the order in which this side has the text tokens, if every branch is
        given that; None for its own."""
        if settings.text("attention.mask") != "segment_ids_first_row":
            return None
        assert first is not None, "this mask needs the first branch's condition"
        mask: list[bool] = joint_mask(first, self.rows(case, settings, first)[0]).tolist()
        return sorted(mask, reverse=True) if settings.text("text.reorder") == "valid_first" else mask

    def token_grid(self, case: Case) -> tuple[int, int, int]:
        p_t, p = int(case.config["patch_size_t"]), int(case.config["patch_size"])
        _, _, frames, height, width = case.latent_shape
        return frames // p_t, height // p, width // p


class FlowMatchSampler(Sampler):
    """See `parity.models.family.Sampler`; with the checkpoint's guider, whose scale a `parity.json` may replace."""

    def __init__(self, case: Case) -> None:
        self.scheduler, self.guider = (load_part(case.folder, part) for part in ("scheduler", "guider"))
        if case.spec.guidance_scale is not None:
            config = {**self.guider.config, "guidance_scale": case.spec.guidance_scale}
            self.guider = type(self.guider).from_config(config)
        self.guidance_scale = float(self.guider.config.get("guidance_scale", 1.0))

    def set_schedule(self, steps: int, device: Any, place: Place, dtype: torch.dtype | None) -> None:
        # The pipeline's own sigmas (HunyuanVideo15Pipeline.__call__, step 4).
        self.scheduler.set_timesteps(sigmas=np.linspace(1.0, 0.0, steps + 1)[:-1], device=device)
        if dtype is not None:
            self.scheduler.sigmas = self.scheduler.sigmas.to(dtype)
            self.scheduler.timesteps = self.scheduler.timesteps.to(dtype)
        self.timesteps = self.scheduler.timesteps

    def guide(self, predictions: Mapping[str, torch.Tensor], step: int, dtype: torch.dtype | None) -> torch.Tensor:
        parts = {b: x if dtype is None else x.to(dtype) for b, x in predictions.items()}
        count = len(self.timesteps)
        self.guider.set_state(step=step, num_inference_steps=count, timestep=self.timesteps[step])
        guided: torch.Tensor = self.guider.forward(parts["cond"], parts["uncond"]).pred
        return guided.to(predictions["cond"].dtype)


# --- the transformer, beyond diffusers' own class


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
    joint = joint_mask(condition, lengths)
    # The row of the side at which each token of [vision, byt5, qwen] stands, then the frame's order over tokens.
    reordered = np.argsort(~joint, kind="stable")
    index = np.arange(len(joint)) if settings.text("text.reorder") == "valid_first" else reordered
    weight = joint[reordered]
    absent = lengths.frame - len(joint)
    return {
        "qwen": row_frame(valid_of(condition["encoder_attention_mask"])),
        "byt5": row_frame(valid_of(condition["encoder_attention_mask_2"])),
        "vision": row_frame(np.zeros(lengths.frame - lengths.byt5 - lengths.qwen)),
        "text": row_frame(np.pad(weight, (0, absent)), np.pad(index, (0, absent))),
    }


def joint_mask(condition: Condition, lengths: HunyuanRows) -> np.ndarray:
    """bool [text tokens], True where valid, in the order vision (all padding in text-to-video), ByT5, Qwen."""
    streams = (condition["encoder_attention_mask_2"], condition["encoder_attention_mask"])
    return np.concatenate([np.zeros(lengths.vision, bool), *(valid_of(x) for x in streams)])


def use_attention(model: Any, how: AttentionSettings, reached: Reached, first: Sequence[bool] | None = None) -> None:
    """Have the blocks attend as these settings say; `first`: see `JointAttention`."""
    for block in model.transformer_blocks:
        own = diffusers_model.HunyuanVideo15AttnProcessor2_0()
        block.attn.set_processor(JointAttention(own, in_dispatch, how, reached, first))


def in_dispatch(attention: Callable[..., torch.Tensor]) -> AbstractContextManager[None]:
    """Within it, diffusers' processor calls this function of query, key and value."""
    return replaced(diffusers_model, "dispatch_attention_fn", attention)


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


def traceable(model: torch.nn.Module) -> torch.nn.Module:
    """For a port: the model itself, changed so that torchax can compile it.

        from parity.models.hunyuan_video_15 import traceable

        model = traceable(HunyuanVideo15Transformer3DModel.from_pretrained(folder))

    diffusers' forward asks values of tensors what to do (`if is_t2v:`, rows picked by a boolean mask), which no
    compiled program can; and in the text refiner padded rows have no key at all, of which torch makes 0 and torchax
    NaN. So the same submodules run in the same order by `traceable_forward`, the joint attention by parity's processor,
    and in the refiner each padded row sees itself, which no valid row reads. Weights and module names stay. What the
    port changes after this call, it changes.

    Args:
        model: diffusers' HunyuanVideo15Transformer3DModel.
    """
    reached = Reached(parse("torchax", []))
    changed: Any = model
    bind_forward(model, traceable_forward(reached.settings, reached))
    use_attention(model, AttentionSettings("sdpa"), reached)
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
