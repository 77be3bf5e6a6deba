"""CogVideoX 1.0 and 1.5: inputs, settings, rows, text encoder, schedule.

Its text has no mask: all tokens of the padded prompt take part, before the image tokens, in one joint attention. The
pipeline computes the rotary tables (5B and 1.5) and hands them in; here a module without weights does, so that they
are observed, perturbed and set like any other.

The text encoder is asked as its pipeline asks it: one T5, no mask. Schedule, guidance and steps are as
CogVideoXPipeline calls them: DDIM, or DPM with noise in every step.

The schedule's numbers are float64 scalars on the CPU, on both sides: a port that leaves diffusers' scheduler alone
has them there too (the pipeline keeps its timesteps on the CPU for XLA). `schedule_dtype` narrows them.

DPM adds noise at each step. Which noise is an input like the initial one: it is drawn from the seed by a CPU
generator in float32, in the order in which the pipeline's own call draws it, and handed to both sides.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from parity.errors import UsageError
from parity.hooks.methods import replaced
from parity.hooks.rows import WHOLE, Part, RowFrame, RowRule
from parity.hooks.torchtools import SDPA, Intercept, of_attention
from parity.models import feature_cache
from parity.models.attention import AttentionSettings, JointAttention
from parity.models.family import Condition, Constrain, Family, Place, Sampler
from parity.models.folder import Case, GenerationSpec, frames_of, load_component, load_part, read_config
from parity.models.patches import patch_norms, patch_rope, place_outputs
from parity.models.stage_files import Stream
from parity.models.text import Listener, TextStage, encoder_of
from parity.settings import Capability, Reached, Settings

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
    channels = 2
    streams: tuple[Stream, ...] = (T5,)

    def lacks(self, config: Mapping[str, Any]) -> Mapping[Capability, str]:
        return _LACKS if _is_rotary(config) else {**_LACKS, "rotary tables": _NO_ROTARY}

    def defaults(self, folder: Path) -> Mapping[str, int]:
        config, space = read_config(folder, "transformer"), _space(read_config(folder, "vae"))
        return {
            "tokenizer_max_length": config.get("max_text_seq_length", 226),
            "height": config.get("sample_height", 60) * space,
            "width": config.get("sample_width", 90) * space,
            "num_frames": config.get("sample_frames", 49),
        }

    def latent_shape(self, folder: Path, spec: GenerationSpec) -> tuple[int, ...]:
        """[1, T, C, H, W], T filled up to a multiple of `patch_size_t` as the pipeline does."""
        config, vae = read_config(folder, "transformer"), read_config(folder, "vae")
        channels, patch_t = int(vae["latent_channels"]), int(config.get("patch_size_t") or 1)
        if config["in_channels"] not in (channels, 2 * channels):
            raise UsageError(
                f"'{folder}': its transformer takes {config['in_channels']} channels, and its VAE's latents have "
                f"{channels}: text-to-video takes as many, image-to-video {2 * channels}"
            )
        space = _space(vae)
        frames = frames_of(spec, "model", space * int(config["patch_size"]), int(vae["temporal_compression_ratio"]))
        return (1, -(-frames // patch_t) * patch_t, channels, spec.height // space, spec.width // space)

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

        def t5(text_encoder: Listener, prompt: str) -> None:
            pipeline.__dict__.update(tokenizer=tokenizer, text_encoder=text_encoder)
            pipeline._get_t5_prompt_embeds(prompt, max_sequence_length=T5.tokens(case.spec), device=torch.device("cpu"))

        return TextStage((encoder_of(case, "text_encoder", transformers.T5EncoderModel, T5, t5),))

    def adapt(self, model: Any, case: Case, reached: Reached, *, traced: bool, first: Condition | None = None) -> None:
        settings = reached.settings
        how = replace(AttentionSettings.of(settings), mask="none")
        if traced or how != AttentionSettings("sdpa", "none"):
            from diffusers.models.attention_processor import CogVideoXAttnProcessor2_0

            for block in model.transformer_blocks:
                block.attn1.set_processor(JointAttention(CogVideoXAttnProcessor2_0(), in_sdpa, how, reached))
        else:
            reached.mark("attention.kernel")  # what diffusers' own processor calls
        if _is_rotary(case.config):
            model.rope = Rotary(case.config)
            patch_rope(model, case.latent_shape, settings, reached)
        if hasattr(model, "rope") or model.config.ofs_embed_dim:
            model.register_forward_pre_hook(give_pipeline_arguments, with_kwargs=True)
        patch_norms(model, settings, reached)
        feature_cache.install(model, settings, reached)

    def constrain(self, model: Any, place: Constrain) -> None:
        place_outputs((model.patch_embed, *model.transformer_blocks), place)

    def sampler(self, case: Case, seed: int) -> CogVideoXSampler:
        """Raises UsageError for a scheduler of another kind, or a guidance scale that switches guidance off."""
        kind = str(read_config(case.folder, "scheduler").get("_class_name", ""))
        if kind not in _SCHEDULERS:
            raise UsageError(f"'{case.folder}' has a '{kind}'; CogVideoX runs with {' or '.join(_SCHEDULERS)}")
        scale = PIPELINE_SCALE if case.spec.guidance_scale is None else float(case.spec.guidance_scale)
        if scale <= 1.0:
            raise UsageError(
                f"guidance_scale {scale:g} switches CogVideoX's guidance off, and there is no uncond branch to "
                "compare; give one above 1"
            )
        return CogVideoXSampler(load_part(case.folder, "scheduler"), scale, case.spec.dynamic_guidance, seed)

    def stage2(self, case: Case, latents: torch.Tensor) -> torch.Tensor:
        """The frames that were filled up stand first and are dropped, as the pipeline does before it decodes."""
        frames = (case.spec.num_frames - 1) // int(read_config(case.folder, "vae")["temporal_compression_ratio"]) + 1
        return latents[:, latents.shape[1] - frames :].permute(0, 2, 1, 3, 4)

    def model_arguments(
        self, case: Case, settings: Settings, latents: torch.Tensor, timestep: torch.Tensor, dtype: torch.dtype
    ) -> dict[str, Any]:
        """Image-to-video has an image's latents behind the noise."""
        with_image = int(case.config["in_channels"]) > latents.shape[2]
        given = torch.cat([latents, _image(latents)], dim=2) if with_image else latents
        return {"hidden_states": given.to(dtype), "timestep": timestep}

    def pipeline_arguments(self, case: Case) -> Mapping[str, Any]:
        offset = {"ofs": torch.full((1,), OFFSET)} if case.config.get("ofs_embed_dim") else {}
        if not _is_rotary(case.config):
            return offset
        return {"image_rotary_emb": Rotary(case.config)(torch.zeros(case.latent_shape)), **offset}

    def token_grid(self, case: Case) -> tuple[int, int, int]:
        _, frames, _, height, width = case.latent_shape
        patch, patch_t = int(case.config["patch_size"]), int(case.config.get("patch_size_t") or 1)
        return frames // patch_t, height // patch, width // patch

    def rows(self, case: Case, settings: Settings, condition: Condition) -> tuple[RowRule, Mapping[str, RowFrame]]:
        image = math.prod(self.token_grid(case))
        return CogVideoXRows(condition["encoder_hidden_states"].shape[1], image), {}


OFFSET = 2.0
"""What CogVideoXImageToVideoPipeline hands the transformer of 1.5 as `ofs`."""


def _image(latents: torch.Tensor) -> torch.Tensor:
    """Latents of an image, shaped as a video's, whose other frames are zeros. Its values are multiples of a sixteenth
    in [-2, 2), the same bits on every device and in every dtype."""
    number = torch.arange(math.prod(latents.shape[2:]), device=latents.device)
    image = ((37 * number % 64 - 32) / 16).to(latents.dtype).reshape(1, 1, *latents.shape[2:])
    first = torch.arange(latents.shape[1], device=latents.device).reshape(1, -1, 1, 1, 1) == 0
    return (image * first).expand(latents.shape)


def _is_rotary(config: Mapping[str, Any]) -> bool:
    return bool(config.get("use_rotary_positional_embeddings", False))


def _space(vae: Mapping[str, Any]) -> int:
    """Pixels to a latent, as the pipeline counts them."""
    return int(2 ** (len(vae["block_out_channels"]) - 1))


PIPELINE_SCALE = 6.0
"""CogVideoXPipeline's own guidance scale; the checkpoint names none."""

_SCHEDULERS = ("CogVideoXDDIMScheduler", "CogVideoXDPMScheduler")
_HISTORY = "pred_original"


class CogVideoXSampler(Sampler):
    """See `parity.models.family.Sampler`.

    Attributes:
        dynamic: whether the guidance scale changes with the timestep (the pipeline's `use_dynamic_cfg`).
        seed: of the initial noise and of the steps'.
    """

    def __init__(self, scheduler: Any, scale: float, dynamic: bool, seed: int) -> None:
        self.scheduler, self.guidance_scale, self.dynamic, self.seed = scheduler, scale, dynamic, seed
        self._exact = (scheduler.alphas_cumprod, scheduler.final_alpha_cumprod)
        self._keeps_history = "old_pred_original_sample" in inspect.signature(scheduler.step).parameters
        self._place: Place = lambda x: x
        self._noise: Iterator[torch.Tensor] = iter(())
        self._drawn = -1

    @property
    def end(self) -> float:
        # Where the training steps are no multiple of the steps, diffusers' last step ends at timestep 0, not before it.
        return float(self.sigmas[-1])

    def set_schedule(self, steps: int, device: Any, place: Place, dtype: torch.dtype | None) -> None:
        """Timesteps are indices into alphas_cumprod and stay integers; `dtype` narrows what they point at.

        Raises:
            UsageError: more steps than the model was trained with, or a number that diffusers' spacing gets wrong.
        """
        trained = int(self.scheduler.config.num_train_timesteps)
        if steps > trained:
            raise UsageError(f"--steps {steps}: the scheduler has {trained} training steps")
        self.scheduler.set_timesteps(steps, device="cpu")
        self.timesteps, self.state, self._place = self.scheduler.timesteps, {}, place
        if len(self.timesteps) != steps:
            # numpy.arange of a step that is no integer: 61 trailing steps come out as 62, the last at -1.
            raise UsageError(
                f"--steps {steps}: diffusers' scheduler makes {len(self.timesteps)} timesteps of it, the last "
                f"{int(self.timesteps[-1])}; take another number"
            )
        alphas = (x if dtype is None else x.to(dtype) for x in self._exact)
        self.scheduler.alphas_cumprod, self.scheduler.final_alpha_cumprod = alphas

    def start(self, noise: torch.Tensor) -> torch.Tensor:
        return noise * self.scheduler.init_noise_sigma

    def model_input(self, latents: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return latents, self._place(self.timesteps[step].expand(latents.shape[0]))

    def guide(self, predictions: Mapping[str, torch.Tensor], step: int, dtype: torch.dtype | None) -> torch.Tensor:
        # The pipeline's `noise_pred.float()`; only the float64 variant of a floor is wider, and stays so.
        own = torch.float64 if predictions["cond"].dtype == torch.float64 else torch.float32
        cond, uncond = (predictions[b].to(dtype or own) for b in ("cond", "uncond"))
        return (uncond + self._scale(step) * (cond - uncond)).to(own)

    def _scale(self, step: int) -> float:
        """The pipeline's formula, in which a timestep stands where a step would be expected."""
        if not self.dynamic:
            return self.guidance_scale
        count = len(self.timesteps)
        angle = math.pi * ((count - self.timesteps[step].item()) / count) ** 5.0
        return 1 + self.guidance_scale * ((1 - math.cos(angle)) / 2)

    def step(self, guided: torch.Tensor, latents: torch.Tensor, step: int) -> torch.Tensor:
        if not self._keeps_history:
            return super().step(guided, latents, step)
        from diffusers.schedulers import scheduling_dpm_cogvideox

        first = 2 * step if step else 1
        if self._drawn != first:  # another step than the next
            self._noise = itertools.islice(_draws(self.seed, tuple(latents.shape)), first, None)
            self._drawn = first

        def noise(shape: Any, generator: Any = None, device: Any = None, dtype: Any = None) -> torch.Tensor:
            self._drawn += 1
            return self._place(next(self._noise)).to(dtype)

        before = self.state.get(_HISTORY), self.timesteps[step], self.timesteps[step - 1] if step > 0 else None
        # It ignores its `variance_noise`, and a generator draws other numbers in each dtype.
        with replaced(scheduling_dpm_cogvideox, "randn_tensor", noise):
            stepped, original = self.scheduler.step(guided, *before, latents, return_dict=False)
        self.state = {_HISTORY: original}
        return stepped


def _draws(seed: int, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """The float32 noise of a seed's stream: the initial noise first, then one for step 0 and two for every later step,
    which uses the second."""
    generator = torch.Generator("cpu").manual_seed(seed)
    while True:
        # The device is named because torchax would draw on its own where none is.
        yield torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)


# --- the transformer, beyond diffusers' own class


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
    """The rotary tables that CogVideoXPipeline computes before its loop, by its own method.

    Args:
        config: the transformer's.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        transformer = SimpleNamespace(config=SimpleNamespace(**{"patch_size_t": None, **config}))
        self.pipeline = SimpleNamespace(vae_scale_factor_spatial=1, transformer=transformer)  # sizes are the latents'

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), float32 [tokens, head dim], for latents [B, T, C, H, W], of which only the shape counts."""
        from diffusers import CogVideoXPipeline

        _, frames, _, height, width = hidden_states.shape
        # Under torchax the default device is JAX's; a tensor that is being traced lies on none.
        device: Any = hidden_states.device if type(hidden_states) is torch.Tensor else None
        cos, sin = CogVideoXPipeline._prepare_rotary_positional_embeddings(self.pipeline, height, width, frames, device)
        return cos, sin


def give_pipeline_arguments(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Forward pre-hook: hands the model what its pipeline does, the tables of its own `rope` and its offset."""
    latents = kwargs["hidden_states"]
    tables = {"image_rotary_emb": model.rope(latents)} if hasattr(model, "rope") else {}
    offset = {"ofs": latents.new_full((1,), OFFSET)} if model.config.ofs_embed_dim else {}
    return args, {**kwargs, **tables, **offset}


def in_sdpa(attention: Callable[..., torch.Tensor]) -> Intercept:
    """Within it, diffusers' processor calls this function of query, key and value."""

    def handle(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        given = of_attention(args, kwargs)
        return attention(*(given[name].transpose(1, 2) for name in ("query", "key", "value"))).transpose(1, 2)

    return Intercept(handle, only={SDPA})
