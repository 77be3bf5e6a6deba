"""HunyuanVideo-1.5 as a family: inputs, settings, rows, text encoders, schedule. The forward is in `transformer`.

The text encoders are asked as its pipeline asks them: by its own static methods. The loop takes Euler steps of a flow,
combined by the checkpoint's guider.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers.models.attention_dispatch import AttentionBackendName
from diffusers.pipelines.hunyuan_video1_5.image_processor import HunyuanVideo15ImageProcessor

from parity.hooks.rows import RowFrame
from parity.models import feature_cache
from parity.models.attention import AttentionSettings
from parity.models.family import Condition, Constrain, Family, Place, Said, Sampler
from parity.models.folder import Case, GenerationSpec, frames_of, load_component, load_part, read_config
from parity.models.hunyuan_video_15 import transformer as hunyuan
from parity.models.patches import patch_norms, patch_rope, patch_timestep_embedding, place_outputs
from parity.models.stage_files import Stream
from parity.models.text import Listener, TextStage, encoder_of
from parity.settings import Reached, Settings

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
    recipe: str = "parity.models.hunyuan_video_15.traced:traceable"

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

        def qwen(encoder: Listener, prompt: str) -> None:
            pipeline._get_mllm_prompt_embeds(
                text_encoder=encoder,
                tokenizer=tokenizer,
                prompt=prompt,
                device=torch.device("cpu"),
                tokenizer_max_length=spec.tokenizer_max_length,
                num_hidden_layers_to_skip=_SKIPPED,
                crop_start=spec.crop_start,
            )

        def byt5(encoder: Listener, prompt: str) -> None:
            pipeline._get_byt5_prompt_embeds(
                tokenizer=glyphs,
                text_encoder=encoder,
                prompt=prompt,
                device=torch.device("cpu"),
                tokenizer_max_length=spec.tokenizer_2_max_length,
            )

        kind = transformers.Qwen2_5_VLTextModel
        first = encoder_of(case, "text_encoder", kind, QWEN, qwen, skip=_SKIPPED, crop=spec.crop_start)
        return TextStage((first, encoder_of(case, "text_encoder_2", transformers.T5EncoderModel, BYT5, byt5)))

    def adapt(self, model: Any, case: Case, reached: Reached, *, traced: bool, first: Condition | None = None) -> None:
        settings = reached.settings
        if traced or any(settings.changed(name) for name in _OWN_FORWARD):
            hunyuan.bind_forward(model, hunyuan.traceable_forward(settings, reached))
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
        patch_rope(model, case.latent_shape, settings, reached)
        patch_norms(model, settings, reached)
        patch_timestep_embedding(model, settings, reached)
        feature_cache.install(model, settings, reached)

    def constrain(self, model: Any, place: Constrain) -> None:
        place_outputs((model.x_embedder, *model.transformer_blocks), place)
        first = next(iter(model.transformer_blocks))
        first.register_forward_pre_hook(lambda module, args: (args[0], place(args[1]), *args[2:]))  # the joint text

    def checks(self, case: Case, role: str) -> tuple[Said, ...]:
        found: list[Said] = []
        if role == "reference" and case.config.get("task_type") == "i2v":
            said = "an image-to-video checkpoint, run as text-to-video: the code that reads an image is given zeros"
            found.append(("image", "explained", said))
        if role == "reference" and case.config.get("use_meanflow"):
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

    def rotary_tables(self, model: Any, latents: torch.Tensor) -> dict[str, torch.Tensor]:
        cos, sin = model.rope(latents)
        return {"cos": cos, "sin": sin}

    def row_rule(self, case: Case, settings: Settings, condition: Condition) -> hunyuan.HunyuanRows:
        qwen = condition["encoder_attention_mask"].shape[1]
        byt5 = condition["encoder_attention_mask_2"].shape[1]
        vision = case.spec.vision_num_semantic_tokens
        given = vision if settings.text("vision_states") == "zeros" else 0
        return hunyuan.HunyuanRows(math.prod(self.token_grid(case)), given, byt5, qwen, vision + byt5 + qwen)

    def frames(self, case: Case, settings: Settings, condition: Condition) -> dict[str, RowFrame]:
        return hunyuan.text_frames(condition, self.row_rule(case, settings, condition), settings)

    def _first_row(self, case: Case, settings: Settings, first: Condition) -> list[bool]:
        """The text mask of the first branch, in the order in which this side has the text tokens."""
        mask: list[bool] = hunyuan.joint_mask(first, self.row_rule(case, settings, first)).tolist()
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
