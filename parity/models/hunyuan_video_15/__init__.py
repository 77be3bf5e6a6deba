"""HunyuanVideo-1.5."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parity.models.registry import Registered, register

if TYPE_CHECKING:
    from parity.models.family import Family


def _load(folder: Path, inputs: Path | None) -> Family:
    from parity.models.hunyuan_video_15.family import HunyuanVideo15

    return HunyuanVideo15()


def _tiny(folder: Path) -> None:
    from parity.models.tiny.hunyuan_video_15 import make

    make(folder)


register(
    Registered(
        title="HunyuanVideo-1.5",
        transformer="HunyuanVideo15Transformer3DModel",
        load=_load,
        tiny={"tiny-hunyuan-video-1.5": _tiny},
    )
)
