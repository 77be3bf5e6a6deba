"""A checkpoint's folder: its configs, its parts loaded through their own classes, only those that a stage needs, and
what a generation with it takes beside its weights: lengths, sizes, prompt.

diffusers' HunyuanVideo-1.5 pipeline hard-codes these for the full-size model (1000 text tokens, a template prefix of
108), so a smaller checkpoint cannot say otherwise in any file that diffusers knows. A folder may therefore carry a
`parity.json`; without one the numbers of its family hold (`Family.defaults`), and else those of that pipeline.

    spec = GenerationSpec.load(folder, family.defaults(folder))
    spec = msgspec.structs.replace(spec, prompt="A cat walks on the grass")
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from parity.errors import UsageError, shown, summary
from parity.files import read_object

MOST_BYTES = 1 << 24
"""Of a config."""


def place_of(folder: Path, part: str) -> Path:
    """Where a part lies: its own folder, or the top where a transformer was saved alone."""
    alone = part == "transformer" and not (folder / part).exists() and (folder / "config.json").is_file()
    return folder if alone else folder / part


def is_drawn(folder: Path) -> bool:
    """Whether a folder holds a transformer's config alone, so that its weights are drawn.

    Never for a pipeline: one whose weights are missing is a broken download.
    """
    place = place_of(folder, "transformer")
    held = any(place.glob("*.safetensors*")) or any(place.glob("*.bin*"))
    return not held and not (folder / "model_index.json").exists()


def read_config(folder: Path, part: str) -> dict[str, Any]:
    """A part's config (`transformer`, `vae`, `scheduler`, `guider`).

    Raises:
        UsageError: the file is missing or no JSON object.
    """
    names = {"scheduler": "scheduler_config.json", "guider": "guider_config.json"}
    path = place_of(folder, part) / names.get(part, "config.json")
    config = read_object(path, MOST_BYTES)
    if config is None:
        raise UsageError(
            f"'{folder}' has no {part}/{path.name}: not a complete checkpoint; save all of it with "
            "pipeline.save_pretrained"
        )
    for name, value in config.items():
        if "layers" in name and isinstance(value, int) and value > MOST_LAYERS:
            raise UsageError(f"'{path}': {name} is {value}, more than the {MOST_LAYERS} that any model has")
    return config


MOST_LAYERS = 10_000


def class_of(folder: Path, part: str) -> Any:
    """The diffusers class that a part's config names.

    Raises:
        UsageError: it names none, or one that diffusers has not.
    """
    import diffusers

    name = str(read_config(folder, part).get("_class_name", ""))
    where = folder / part if (folder / part).is_dir() else folder
    if not name:
        raise UsageError(f"the config in '{where}' names no class; add \"_class_name\", as save_pretrained writes it")
    kind = getattr(diffusers, name, None) if name.isidentifier() else None
    if not (isinstance(kind, type) and hasattr(kind, "from_pretrained")):
        raise UsageError(f"'{where}' names the class '{name}', which diffusers {diffusers.__version__} lacks")
    return kind


def load_part(folder: Path, part: str, **options: Any) -> Any:
    """Load a part with the diffusers class its config names; a transformer without weights gets drawn ones.

    Raises:
        UsageError: diffusers has no such class, cannot load the folder, or its weights are not those of the class.
    """
    kind = class_of(folder, part)
    _require_sizes(folder, part)
    if part != "transformer" or not is_drawn(folder):
        return _loaded(kind, folder, part, ("missing", "unexpected"), **options)
    import torch

    from parity.models.patches import as_loaded
    from parity.models.tiny import draw

    _require_room(folder, part)
    with _explained(f"cannot make a {kind.__name__} of '{place_of(folder, part)}'"):
        drawn = draw(kind.from_config(read_config(folder, part)), part)
        return as_loaded(drawn, options.get("torch_dtype", torch.float32))


MOST_TIMESTEPS = 1_000_000
"""Of a scheduler's training: it makes tables of that length."""


def _require_sizes(folder: Path, part: str) -> None:
    """Raise UsageError where a scheduler's config asks for tables of an absurd length."""
    steps = read_config(folder, part).get("num_train_timesteps", 1) if part == "scheduler" else 1
    if not isinstance(steps, int) or not 1 <= steps <= MOST_TIMESTEPS:
        raise UsageError(f"'{folder / part}': num_train_timesteps is {shown(steps)}, not 1 to {MOST_TIMESTEPS}")


COPIES = 4
"""Of drawn weights, each in 4 bytes: the reference's, the candidate's, and one in float64 for the floors."""


def _require_room(folder: Path, part: str) -> None:
    """Raise UsageError where drawn weights are more than this machine holds, before memory is taken for them."""
    model = skeleton(folder, part)
    count = sum(x.numel() for x in model.parameters())
    needed, held = 4 * COPIES * count, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > held:
        raise UsageError(
            f"'{folder}' holds no weights, and a {type(model).__name__} of its config has {count / 1e9:.1f} billion: "
            f"to draw them takes {needed / 2**30:.0f} GiB of {held / 2**30:.0f}; give a smaller config, or a checkpoint"
        )


def skeleton(folder: Path, part: str) -> Any:
    """A part's module without weights, on torch's meta device, for the names and kinds of its modules.

    Raises:
        UsageError: diffusers has no such class, or cannot make it of the config.
    """
    import torch

    kind = class_of(folder, part)
    with _explained(f"cannot make a {kind.__name__} of '{place_of(folder, part)}'"), torch.device("meta"):
        return kind.from_config(read_config(folder, part))


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Says in one line why a class cannot be made of a folder."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        said, more = summary(error), ""
        if "expected shape" in said:
            said, more = said.partition(". ")[0], "; its config and its weights are of two models"
        elif "low_cpu_mem_usage" in str(error):
            more = "; diffusers needs another package for that: pip install accelerate"
        raise UsageError(f"{what}: {said}{more}") from error


def load_component(kind: Any, folder: Path, subfolder: str, **options: Any) -> Any:
    """Load one component by its class's `from_pretrained`, with a message that names the folder where it fails.

    Raises:
        UsageError: there is no such subfolder, it cannot be loaded, or it lacks weights of the class (what it has
            beyond them, such as a head, is what the class leaves out).
    """
    if not (folder / subfolder).is_dir():
        raise UsageError(f"{folder}: expected a subfolder {subfolder!r} with a {kind.__name__}, found none")
    return _loaded(kind, folder, subfolder, ("missing",), **options)


def _loaded(kind: Any, folder: Path, part: str, problems: tuple[str, ...], **options: Any) -> Any:
    """What a class makes of a part of a folder.

    Args:
        problems: what its weights may not be, of `missing` and `unexpected`: the class draws or ones what is missing
            without a word.

    Raises:
        UsageError: it cannot, or the weights are not those of the class.
    """
    import torch

    place = place_of(folder, part)
    where = {} if place == folder else {"subfolder": part}
    with _explained(f"cannot load '{place}' as {kind.__name__}"):
        if not issubclass(kind, torch.nn.Module):
            return kind.from_pretrained(folder, local_files_only=True, **where, **options)
        # Nothing in a file is executed, as a pickle may be.
        options |= {"local_files_only": True, "output_loading_info": True, "use_safetensors": True}
        made, found = kind.from_pretrained(folder, **where, **options)
    for problem in problems:
        names = sorted(found.get(f"{problem}_keys", ()))
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise UsageError(
                f"'{place}': {problem} in its weights for a {kind.__name__}: {shown}; download or convert it again, "
                "or use the diffusers or transformers version it was made for"
            )
    return made


DIVIDES: Mapping[str, bool] = {"AutoencoderKLHunyuanVideo15": True, "AutoencoderKLCogVideoX": False}
"""Class -> whether its pipeline divides the latents by the scaling factor, or multiplies by its inverse."""


def vae_config(folder: Path) -> dict[str, Any]:
    """The config of a checkpoint's VAE.

    Raises:
        UsageError: its class is not known, or its config has what the pipelines do not do.
    """
    config = read_config(folder, "vae")
    name = str(config.get("_class_name", ""))
    if name not in DIVIDES:
        known = ", ".join(DIVIDES)
        raise UsageError(
            f"'{folder}' holds a VAE '{name}', which no stage decodes yet (known: {known}); give both decoders as "
            "ports, with latents as the reference's inputs (--reference-port, --port)"
        )
    other = [k for k in ("shift_factor", "latents_mean", "latents_std", "use_post_quant_conv") if config.get(k)]
    if other:
        raise UsageError(f"the VAE of '{folder}' has a {other[0]}, which its pipeline leaves out; not decoded yet")
    factor = config.get("scaling_factor")
    if not isinstance(factor, (int, float)) or not 0 < factor < math.inf:
        raise UsageError(f"the VAE of '{folder}' has the scaling_factor {factor!r}, which must be a positive number")
    return config


# --- a generation with it

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
    def load(cls, folder: Path, defaults: Mapping[str, int]) -> GenerationSpec:
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


@dataclass(frozen=True, slots=True)
class Case:
    """One model folder with the sizes of one generation: what both sides agree on before they are loaded.

    Attributes:
        name: the model as the user named it. folder: its checkpoint. config: of the transformer.
        spec: prompt and sizes. latent_shape: [1, C, T, H, W] (or the family's own layout).
    """

    name: str
    folder: Path
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
