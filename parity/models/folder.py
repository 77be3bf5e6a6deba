"""Finding a checkpoint and loading its parts through diffusers' own classes.

A model is named by a built-in tiny model, a folder in diffusers layout, or a hub name; all three end in a folder.
Only the parts that a stage needs are loaded.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.models.names import TINY_NAMES

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def resolve_model(name: str) -> Path:
    """The checkpoint folder of a model.

    Args:
        name: a built-in tiny model, a folder in diffusers layout (with `transformer/config.json`) or of a transformer
            alone (`config.json`, weights beside it or drawn), or `owner/name` on the hub (downloaded by
            huggingface_hub, or taken from its cache).

    Raises:
        UsageError: none of the three, or a folder that is no checkpoint.
    """
    if name in TINY_NAMES:
        from parity.models.tiny import ensure_tiny

        return ensure_tiny(name)
    folder = Path(name)
    if folder.exists():
        _require_checkpoint(folder)
        return folder
    if _HUB_NAME.fullmatch(name):
        return _download(name)
    raise UsageError(
        f"unknown model '{name}': neither a built-in model ({', '.join(TINY_NAMES)}), nor an existing folder, nor "
        "a hub name (owner/name)"
    )


def _require_checkpoint(folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"'{folder}' is a file; give the checkpoint's folder")
    if not (_place(folder, "transformer") / "config.json").is_file():
        raise UsageError(
            f"'{folder}' is no checkpoint in diffusers layout: it has no transformer/config.json; save it with "
            "pipeline.save_pretrained, or a transformer alone with transformer.save_pretrained"
        )


def _place(folder: Path, part: str) -> Path:
    """Where a part lies: its own folder, or the top where a transformer was saved alone."""
    alone = part == "transformer" and not (folder / part).exists() and (folder / "config.json").is_file()
    return folder if alone else folder / part


def is_drawn(folder: Path) -> bool:
    """Whether a folder holds a transformer's config alone, so that its weights are drawn.

    Never for a pipeline: one whose weights are missing is a broken download.
    """
    place = _place(folder, "transformer")
    held = any(place.glob("*.safetensors*")) or any(place.glob("*.bin*"))
    return not held and not (folder / "model_index.json").exists()


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"cannot get model '{name}' from the hub: {reason}; give a local folder instead") from None
    _require_checkpoint(folder)
    return folder


def read_config(folder: Path, part: str) -> dict[str, Any]:
    """A part's config (`transformer`, `vae`, `scheduler`, `guider`).

    Raises:
        UsageError: the file is missing or no JSON object.
    """
    names = {"scheduler": "scheduler_config.json", "guider": "guider_config.json"}
    path = _place(folder, part) / names.get(part, "config.json")
    try:
        config = json.loads(path.read_text())
    except OSError:
        raise UsageError(f"'{folder}' has no {part}/{path.name}: not a complete checkpoint") from None
    except ValueError as error:
        raise UsageError(f"'{path}' is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"'{path}' holds no JSON object")
    return config


def class_of(folder: Path, part: str) -> Any:
    """The diffusers class that a part's config names.

    Raises:
        UsageError: diffusers has no such class.
    """
    import diffusers

    name = str(read_config(folder, part).get("_class_name", ""))
    kind = getattr(diffusers, name, None) if name.isidentifier() else None
    if not (isinstance(kind, type) and hasattr(kind, "from_pretrained")):
        raise UsageError(f"'{folder / part}' names the class '{name}', which diffusers {diffusers.__version__} lacks")
    return kind


def load_part(folder: Path, part: str, **options: Any) -> Any:
    """Load a part with the diffusers class its config names; a transformer without weights gets drawn ones.

    Raises:
        UsageError: diffusers has no such class, or cannot load the folder.
    """
    kind = class_of(folder, part)
    place = _place(folder, part)
    try:
        if part == "transformer" and is_drawn(folder):
            from parity.models.tiny_weights import draw

            return draw(kind.from_config(read_config(folder, part)), part)
        where = {} if place == folder else {"subfolder": part}
        return kind.from_pretrained(folder, local_files_only=True, **where, **options)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"cannot load '{place}' as {kind.__name__}: {reason}") from error
