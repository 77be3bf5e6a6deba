"""Checkpoints of one or two blocks, through the same code as large ones: a comparison takes seconds."""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from pathlib import Path

from benchmarks.tiny_families import CONFIGS, make as make_generic
from parity.cache import cache_dir
from parity.models.registry import resolve_model

NANO = "nano-hunyuan-video-1.5"
_NANO_VERSION = 1


@functools.cache
def checkpoint(name: str) -> Path:
    """The folder of `NANO`, or of a two-block transformer of `CONFIGS`; made in the cache of the tests once."""
    folder = cache_dir() / "nano" / f"{name}-v{_NANO_VERSION}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent))
    if name == NANO:
        _hunyuan(building)
    else:
        make_generic(building, name)
    try:
        os.rename(building, folder)
    except OSError:  # another worker was faster
        shutil.rmtree(building)
    return folder


def _hunyuan(folder: Path) -> None:
    """The tiny HunyuanVideo-1.5 with one block, one refiner block and one frame."""
    import diffusers

    from parity.models.tiny import TRANSFORMER_RULES, fill

    tiny = resolve_model("tiny-hunyuan-video-1.5")
    for part in tiny.iterdir():
        if part.name not in ("transformer", "parity.json"):
            (folder / part.name).symlink_to(part.resolve())  # a test may have a cache of links
    config = diffusers.HunyuanVideo15Transformer3DModel.load_config(tiny / "transformer")
    model = diffusers.HunyuanVideo15Transformer3DModel.from_config(
        {**config, "num_layers": 1, "num_refiner_layers": 1, "num_attention_heads": 2}
    )
    fill(model, "transformer", TRANSFORMER_RULES)
    model.save_pretrained(folder / "transformer")
    sizes = json.loads((tiny / "parity.json").read_text("utf-8"))
    (folder / "parity.json").write_text(json.dumps({**sizes, "height": 32, "width": 48, "num_frames": 1}))


__all__ = ["CONFIGS", "NANO", "checkpoint"]
