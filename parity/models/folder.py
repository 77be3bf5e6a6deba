"""A checkpoint's folder: its configs, and its parts loaded through their own classes, only those that a stage needs."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
    return config


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
    from parity.models.tiny.make import draw

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
        needed = "; diffusers needs another package for that: pip install accelerate"
        raise UsageError(f"{what}: {summary(error)}{needed if 'low_cpu_mem_usage' in str(error) else ''}") from error


def load_component(kind: Any, folder: Path, subfolder: str, **options: Any) -> Any:
    """Load one component by its class's `from_pretrained`, with a message that names the folder where it fails.

    Raises:
        UsageError: there is no such subfolder, it cannot be loaded, or it lacks weights of the class (what it has
            beyond them, such as a head, is what the class leaves out).
    """
    if not (folder / subfolder).is_dir():
        raise UsageError(f"{folder}: expected a subfolder {subfolder!r} with a {kind.__name__}, found none")
    return _loaded(kind, folder, subfolder, ("missing",), **options)


def bare_component(kind: Any, folder: Path, subfolder: str) -> Any:
    """One component of transformers made of its config alone: without weights, on torch's meta device."""
    import torch

    config = kind.config_class.from_pretrained(folder, subfolder=subfolder, local_files_only=True)
    with torch.device("meta"):
        return kind(config)


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
        made, found = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True, **where, **options)
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
