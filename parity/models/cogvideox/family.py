"""CogVideoX 1.0 and 1.5 as a family: inputs, settings, rows, text encoder. Its schedule and steps are in `sampler`.

The text encoder is asked as its pipeline asks it: one T5, no mask.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from parity.errors import UsageError
from parity.hooks.rows import PairedRule
from parity.models import feature_cache
from parity.models.attention import AttentionSettings
from parity.models.cogvideox import transformer as cogvideox
from parity.models.cogvideox.sampler import CogVideoXSampler
from parity.models.family import Condition, Constrain, Family
from parity.models.folder import load_component, read_config
from parity.models.patches import patch_norms, patch_rope
from parity.models.spec import Case, GenerationSpec, frames_of
from parity.models.stage_files import Stream
from parity.models.text import TextStage, encoder_of
from parity.reached import Reached
from parity.settings import Capability, Settings

_LACKS: Mapping[Capability, str] = {
    "text mask": "its text has no mask, padding takes part in the attention",
    "text refiner": "it has no text refiner",
    "ByT5": "it has no ByT5 encoder",
    "vision states": "it takes no vision states",
    "step counter": "its schedulers count no steps, so that warm-up calls leave no trace",
}
_NO_ROTARY = "its positions are added to the tokens, not rotary"


def _length(config: Mapping[str, Any]) -> int | str:
    """The model without rotary embeddings has one position table, which counts the text tokens in."""
    return "L" if _is_rotary(config) else int(config["max_text_seq_length"])


T5 = Stream(
    argument="encoder_hidden_states", name="prompt_embeds", width="text_embed_dim", length=_length, masked=False
)


class CogVideoX(Family):
    """See `parity.models.family.Family`."""

    title = "CogVideoX"
    batches: tuple[tuple[str, ...], ...] = (("uncond", "cond"),)
    streams: tuple[Stream, ...] = (T5,)

    def lacks(self, config: Mapping[str, Any]) -> Mapping[Capability, str]:
        return _LACKS if _is_rotary(config) else {**_LACKS, "rotary tables": _NO_ROTARY}

    @classmethod
    def of(cls, folder: Path, inputs: Path | None) -> CogVideoX:
        return cls()

    def latent_shape(self, folder: Path, spec: GenerationSpec) -> tuple[int, ...]:
        """[1, T, C, H, W], T filled up to a multiple of `patch_size_t` as the pipeline does."""
        config, vae = read_config(folder, "transformer"), read_config(folder, "vae")
        channels, patch_t = int(config["in_channels"]), int(config.get("patch_size_t") or 1)
        if config.get("ofs_embed_dim") or channels != int(vae["latent_channels"]):
            raise UsageError(f"'{folder}' is an image-to-video CogVideoX; only text-to-video runs yet")
        space = _space(vae)
        frames = frames_of(spec, "model", space * int(config["patch_size"]), int(vae["temporal_compression_ratio"]))
        return (1, -(-frames // patch_t) * patch_t, channels, spec.height // space, spec.width // space)

    def text_lengths(self, case: Case) -> Mapping[str, int]:
        return {T5.argument: case.spec.tokenizer_max_length}

    def text(self, case: Case) -> TextStage:
        """T5, whose padded rows the transformer reads like all others.

        Raises:
            UsageError: the folder lacks the tokenizer or the encoder.
        """
        import diffusers
        import transformers

        # Of the pipeline only the method is wanted, which takes its tokenizer and encoder from `self`.
        pipeline = diffusers.CogVideoXPipeline.__new__(diffusers.CogVideoXPipeline)
        tokenizer = load_component(transformers.T5Tokenizer, case.folder, "tokenizer")
        length = case.spec.tokenizer_max_length

        def t5(encoder: Any, prompt: str, device: torch.device) -> Any:
            pipeline.__dict__.update(tokenizer=tokenizer, text_encoder=encoder)
            return pipeline._get_t5_prompt_embeds(
                prompt, max_sequence_length=length, device=device, dtype=encoder.dtype
            )

        return TextStage((encoder_of(case, "text_encoder", transformers.T5EncoderModel, T5, t5, length),))

    def adapt(self, model: Any, case: Case, reached: Reached, *, traced: bool, first: Condition | None = None) -> None:
        settings = reached.settings
        how = dataclasses.replace(AttentionSettings.of(settings), mask="none")
        if traced or how != AttentionSettings("sdpa", "none"):
            for block in model.transformer_blocks:
                block.attn1.set_processor(cogvideox.JointAttention(how, reached))
        else:
            reached.mark("attention.kernel")  # what diffusers' own processor calls
        if _is_rotary(case.config):
            model.rope = cogvideox.Rotary(case.config)
            model.register_forward_pre_hook(cogvideox.give_rotary, with_kwargs=True)
            parameter = next(model.parameters())
            sample = torch.zeros(case.latent_shape, device=parameter.device, dtype=parameter.dtype)
            patch_rope(model.rope, sample, settings, reached)
        patch_norms(model, settings, reached)
        feature_cache.install(model, settings, reached)

    def constrain(self, model: Any, place: Constrain) -> None:
        cogvideox.constrain_outputs(model, place)

    def sampler(self, case: Case, seed: int) -> CogVideoXSampler:
        return CogVideoXSampler.load(case.folder, case.spec, seed)

    def stage2(self, case: Case, latents: torch.Tensor) -> torch.Tensor:
        """The frames that were filled up stand first and are dropped, as the pipeline does before it decodes."""
        frames = (case.spec.num_frames - 1) // int(read_config(case.folder, "vae")["temporal_compression_ratio"]) + 1
        return latents[:, latents.shape[1] - frames :].permute(0, 2, 1, 3, 4)

    def model_arguments(
        self, case: Case, settings: Settings, latents: torch.Tensor, timestep: torch.Tensor, dtype: torch.dtype
    ) -> dict[str, Any]:
        return {"hidden_states": latents.to(dtype), "timestep": timestep}

    def pipeline_arguments(self, case: Case) -> Mapping[str, Any]:
        if not _is_rotary(case.config):
            return {}
        return {"image_rotary_emb": cogvideox.Rotary(case.config)(torch.zeros(case.latent_shape))}

    def rotary_tables(self, model: Any, latents: torch.Tensor) -> dict[str, torch.Tensor]:
        if not hasattr(model, "rope"):
            return {}
        cos, sin = model.rope(latents)
        return {"cos": cos, "sin": sin}

    def token_grid(self, case: Case) -> tuple[int, int, int]:
        _, frames, _, height, width = case.latent_shape
        patch, patch_t = int(case.config["patch_size"]), int(case.config.get("patch_size_t") or 1)
        return frames // patch_t, height // patch, width // patch

    def row_rule(self, case: Case, settings: Settings, condition: Condition) -> PairedRule:
        image = math.prod(self.token_grid(case))
        return cogvideox.CogVideoXRows(condition["encoder_hidden_states"].shape[1], image)


def _is_rotary(config: Mapping[str, Any]) -> bool:
    return bool(config.get("use_rotary_positional_embeddings", False))


def _space(vae: Mapping[str, Any]) -> int:
    """Pixels to a latent, as the pipeline counts them."""
    return int(2 ** (len(vae["block_out_channels"]) - 1))
