"""What a generation with a checkpoint takes beside its weights: lengths, sizes, prompt.

diffusers' HunyuanVideo-1.5 pipeline hard-codes these for the full-size model (1000 text tokens, a template prefix of
108), so a smaller checkpoint cannot say otherwise in any file that diffusers knows. A folder may therefore carry a
`parity.json`; without one the pipeline's own numbers hold (CogVideoX's stand in its transformer's config). Nothing is
loaded but two or three small JSON files.

    spec = GenerationSpec.load(folder)
    spec = msgspec.structs.replace(spec, prompt="A cat walks on the grass")
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from parity.errors import UsageError
from parity.files import read_object
from parity.models.folder import MOST_BYTES

SPEC_FILE = "parity.json"

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


class GenerationSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The inputs of one generation.

    Attributes:
        tokenizer_max_length: tokens of the first text encoder after cropping, padding included.
        tokenizer_2_max_length: tokens of the second text encoder, padding included.
        vision_num_semantic_tokens: tokens of the vision states, all zero in text-to-video.
        crop_start: tokens of the chat template before the prompt, which the pipeline cuts off.
        height: of the video, pixels.
        width: of the video, pixels.
        num_frames: frames of the video.
        prompt: what to show; a quoted part of it is drawn as text and goes to the second encoder.
        negative_prompt: what not to show.
        guidance_scale: takes the place of the checkpoint's own where it is not None.
        dynamic_guidance: whether the scale changes with the timestep (CogVideoX's `use_dynamic_cfg`).
    """

    tokenizer_max_length: _Count = 1000
    tokenizer_2_max_length: _Count = 256
    vision_num_semantic_tokens: _Count = 729
    crop_start: Annotated[int, msgspec.Meta(ge=0)] = 108
    height: _Count = 720
    width: _Count = 1280
    num_frames: _Count = 121
    prompt: str = ""
    negative_prompt: str = ""
    guidance_scale: _Finite | None = None
    dynamic_guidance: bool = False

    @classmethod
    def load(cls, folder: pathlib.Path) -> GenerationSpec:
        """Return the defaults of a checkpoint folder: its `parity.json` over the full-size pipeline's numbers.

        Height and width default to what the pipeline computes from the transformer's `target_size` for 16:9, and to
        720 x 1280 where the folder does not say. CogVideoX's lengths and sizes are its transformer's `sample_*`.

        Raises:
            UsageError: a file that is not JSON, an unknown key, a value of the wrong type or out of range.
        """
        path = folder / SPEC_FILE
        given = read_object(path, MOST_BYTES) or {}
        own = _cogvideox_defaults(folder)
        if not own and not {"height", "width"} <= given.keys():
            own = _default_size(folder)
        try:
            return msgspec.convert({**own, **given}, cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"{path}: {error}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One model folder with the sizes of one generation: what both sides agree on before they are loaded.

    Attributes:
        name: the model as the user named it. folder: its checkpoint. config: of the transformer.
        spec: prompt and sizes. latent_shape: [1, C, T, H, W] (or the family's own layout).
    """

    name: str
    folder: pathlib.Path
    config: Mapping[str, Any]
    spec: GenerationSpec
    latent_shape: tuple[int, ...]


def frames_of(spec: GenerationSpec, model: str, size: int, time: int) -> int:
    """Latent frames of a video, of which the first holds one frame and each other `time`.

    Args:
        model: what the sizes must fit, for messages. size: height and width are multiples of it.

    Raises:
        UsageError: the video does not fit.
    """
    if spec.height % size or spec.width % size or (spec.num_frames - 1) % time:
        raise UsageError(
            f"a video of {spec.num_frames} x {spec.height} x {spec.width} does not fit the {model}: height and width "
            f"must be multiples of {size}, frames one more than a multiple of {time}"
        )
    return (spec.num_frames - 1) // time + 1


def _default_size(folder: pathlib.Path) -> dict[str, int]:
    """Return the `height` and `width`, pixels, that the pipeline would choose; empty where the folder does not say."""
    target = _config(folder, "transformer").get("target_size")
    if not isinstance(target, int):
        return {}
    from diffusers.pipelines.hunyuan_video1_5.image_processor import HunyuanVideo15ImageProcessor

    factor = _config(folder, "vae").get("spatial_compression_ratio", 16)
    height, width = HunyuanVideo15ImageProcessor(vae_scale_factor=factor).calculate_default_height_width(9, 16, target)
    return {"height": int(height), "width": int(width)}


def _cogvideox_defaults(folder: pathlib.Path) -> dict[str, int]:
    """Return what CogVideoXPipeline takes from the transformer's config; empty for another transformer."""
    config = _config(folder, "transformer")
    if config.get("_class_name") != "CogVideoXTransformer3DModel":
        return {}
    levels = _config(folder, "vae").get("block_out_channels", [0] * 4)
    space = 2 ** (len(levels) - 1)
    return {
        "tokenizer_max_length": config.get("max_text_seq_length", 226),
        "height": config.get("sample_height", 60) * space,
        "width": config.get("sample_width", 90) * space,
        "num_frames": config.get("sample_frames", 49),
    }


def _config(folder: pathlib.Path, part: str) -> dict[str, Any]:
    """A part's config; empty where there is none."""
    return read_object(folder / part / "config.json", MOST_BYTES) or {}
