"""HunyuanVideo-1.5 as a family: its inputs, its settings, its rows. The forward is in `hunyuan_video_15`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers.models.attention_dispatch import AttentionBackendName

from parity.hooks.rows import PairedRule, RowFrame
from parity.models import feature_cache
from parity.models.attention import AttentionSettings
from parity.models.family import Condition, Constrain, Family
from parity.models.folder import read_config
from parity.models.hunyuan_video_15 import transformer as hunyuan
from parity.models.hunyuan_video_15.sampler import FlowMatchSampler
from parity.models.hunyuan_video_15.text import BYT5, QWEN, text_stage
from parity.models.patches import patch_norms, patch_rope, patch_timestep_embedding
from parity.models.spec import Case, GenerationSpec, frames_of
from parity.models.stage1 import Stream
from parity.models.text import TextStage
from parity.reached import Reached
from parity.settings import Settings

_OWN_FORWARD = ("text.reorder", "refiner.mask", "vision_states")
"""Settings that diffusers' own forward has no place for."""


class HunyuanVideo15(Family):
    """See `parity.models.family.Family`."""

    title = "HunyuanVideo-1.5"
    batches: tuple[tuple[str, ...], ...] = (("cond",), ("uncond",))
    streams: tuple[Stream, ...] = (QWEN, BYT5)
    recipe: str = "parity.models.hunyuan_video_15.traced:traceable"

    @classmethod
    def of(cls, folder: Path, inputs: Path | None) -> HunyuanVideo15:
        return cls()

    def latent_shape(self, folder: Path, spec: GenerationSpec) -> tuple[int, ...]:
        vae = read_config(folder, "vae")
        space, time = int(vae["spatial_compression_ratio"]), int(vae["temporal_compression_ratio"])
        frames = frames_of(spec, "VAE", space, time)
        return (1, int(vae["latent_channels"]), frames, spec.height // space, spec.width // space)

    def text_lengths(self, case: Case) -> Mapping[str, int]:
        return {QWEN.argument: case.spec.tokenizer_max_length, BYT5.argument: case.spec.tokenizer_2_max_length}

    def text(self, case: Case) -> TextStage:
        return text_stage(case)

    def adapt(self, model: Any, case: Case, reached: Reached, *, traced: bool, first: Condition | None = None) -> None:
        settings = reached.settings
        own = traced or any(settings.changed(name) for name in _OWN_FORWARD)
        if own:
            place = hunyuan.Placement()
            model.parity_placement = place
            hunyuan.bind_forward(model, hunyuan.traceable_forward(settings, reached, place))
        how = AttentionSettings.of(settings)
        if traced or how != AttentionSettings("sdpa"):
            ids = None
            if how.mask == "segment_ids_first_row":
                assert first is not None, "this mask needs the first branch's condition"
                ids = self._first_row(case, settings, first)
            for block in model.transformer_blocks:
                block.attn.set_processor(hunyuan.JointAttention(how, reached, ids))
        else:
            # diffusers' own processor asks a process-wide default which kernel to call: it is sdpa here, whatever
            # another model or DIFFUSERS_ATTN_BACKEND was set to.
            for block in model.transformer_blocks:
                block.attn.processor._attention_backend = AttentionBackendName.NATIVE
            reached.mark("attention.kernel")
        parameter = next(model.parameters())
        sample = torch.zeros(case.latent_shape, device=parameter.device, dtype=parameter.dtype)
        patch_rope(model.rope, sample, settings, reached)
        patch_norms(model, settings, reached)
        patch_timestep_embedding(model, settings, reached)
        feature_cache.install(model, settings, reached)

    def constrain(self, model: Any, place: Constrain) -> None:
        model.parity_placement.place = place

    def sampler(self, case: Case, seed: int) -> FlowMatchSampler:
        return FlowMatchSampler.load(case.folder, case.spec)

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

    def rotary_tables(self, model: Any, latents: torch.Tensor) -> dict[str, torch.Tensor]:
        cos, sin = model.rope(latents)
        return {"cos": cos, "sin": sin}

    def row_rule(self, case: Case, settings: Settings, condition: Condition) -> PairedRule:
        return hunyuan.HunyuanRows(self._lengths(case, settings, condition))

    def frames(self, case: Case, settings: Settings, condition: Condition) -> dict[str, RowFrame]:
        return hunyuan.text_frames(condition, self._lengths(case, settings, condition), settings)

    def _first_row(self, case: Case, settings: Settings, first: Condition) -> list[bool]:
        """The text mask of the first branch, in the order in which this side has the text tokens."""
        mask: list[bool] = hunyuan.joint_mask(first, self._lengths(case, settings, first)).tolist()
        return sorted(mask, reverse=True) if settings.text("text.reorder") == "valid_first" else mask

    def token_grid(self, case: Case) -> tuple[int, int, int]:
        p_t, p = int(case.config["patch_size_t"]), int(case.config["patch_size"])
        _, _, frames, height, width = case.latent_shape
        return frames // p_t, height // p, width // p

    def _lengths(self, case: Case, settings: Settings, condition: Condition) -> hunyuan.TextLengths:
        qwen = condition["encoder_attention_mask"].shape[1]
        byt5 = condition["encoder_attention_mask_2"].shape[1]
        vision = case.spec.vision_num_semantic_tokens
        given = vision if settings.text("vision_states") == "zeros" else 0
        return hunyuan.TextLengths(math.prod(self.token_grid(case)), given, byt5, qwen, vision + byt5 + qwen)
