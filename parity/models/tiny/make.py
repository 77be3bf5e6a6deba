"""A tiny checkpoint in the cache, made where it is not there yet."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch

from parity.cache import cache_dir
from parity.errors import UsageError

# Part of the folder's name: raise it whenever a byte of a checkpoint changes, so that no run mixes two of them.
_VERSION = 1


def ensure_tiny(name: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Return the folder of a tiny checkpoint, making it first where it is not in the cache.

    It is built in a temporary folder and renamed into place, so a killed or a concurrent run never leaves or sees half
    a checkpoint. The caller's torch random state is left as it was.

    Args:
        name: of the model. make: writes its checkpoint into an empty folder.

    Returns:
        `cache_dir()/models/<name>-v<N>`, a complete checkpoint in diffusers layout with a `parity.json`.

    Raises:
        UsageError: the cache cannot be written.
    """
    folder = cache_dir() / "models" / f"{name}-v{_VERSION}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise UsageError(
            f"cannot write the cache folder {folder.parent}: {error.strerror}; set PARITY_CACHE to another"
        ) from error
    try:
        with torch.random.fork_rng(devices=[]):
            make(building)
        building.chmod(0o755)  # mkdtemp's 0700 would keep a shared cache from being shared
        try:
            os.rename(building, folder)
        except OSError:
            # Another process was faster: its folder is the same, byte for byte.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def save(pipeline: Any, defaults: Mapping[str, Any], folder: pathlib.Path) -> None:
    """Write a diffusers pipeline as a checkpoint, with the sizes and prompts of its `parity.json`."""
    pipeline.save_pretrained(folder)
    (folder / "parity.json").write_text(json.dumps(defaults, indent=2) + "\n", encoding="utf-8")
