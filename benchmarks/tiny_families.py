"""Tiny transformers of classes that no family of parity's runs, by class and config alone: two blocks each.

Allegro has its rotary tables among its inputs, else its temporal positions are off; Cosmos no padding mask, with which
diffusers needs torchvision; SkyReels frequencies of its time embedding in float64; Qwen complex rotary tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIGS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())


def make(folder: Path, name: str, **changes: Any) -> Path:
    """Write a config alone: parity draws the weights by name.

    Args:
        folder: made where it is not there. name: of `CONFIGS`. changes: of the config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIGS[name], **changes}))
    return folder
