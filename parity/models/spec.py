"""What a generation with a checkpoint takes beside its weights: lengths, sizes, prompt.

diffusers' HunyuanVideo-1.5 pipeline hard-codes these for the full-size model (1000 text tokens, a template prefix of
108), so a smaller checkpoint cannot say otherwise in any file that diffusers knows. A folder may therefore carry a
`parity.json`; without one the numbers of its family hold (`Family.defaults`), and else those of that pipeline.

    spec = GenerationSpec.load(folder, family.defaults(folder))
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
    def load(cls, folder: pathlib.Path, defaults: Mapping[str, int]) -> GenerationSpec:
        """Return what a checkpoint folder asks for: its `parity.json` over the defaults of its family.

        Raises:
            UsageError: a file that is not JSON, an unknown key, a value of the wrong type or out of range.
        """
        path = folder / SPEC_FILE
        given = read_object(path, MOST_BYTES) or {}
        try:
            return msgspec.convert({**defaults, **given}, cls)
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
