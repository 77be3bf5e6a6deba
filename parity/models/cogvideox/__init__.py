"""CogVideoX 1.0 and 1.5."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parity.models.registry import Registered, register

if TYPE_CHECKING:
    from parity.models.family import Family


def _load(folder: Path, inputs: Path | None) -> Family:
    from parity.models.cogvideox.family import CogVideoX

    return CogVideoX()


def _tiny_10(folder: Path) -> None:
    from parity.models.tiny.cogvideox import make_10

    make_10(folder)


def _tiny_15(folder: Path) -> None:
    from parity.models.tiny.cogvideox import make_15

    make_15(folder)


register(
    Registered(
        title="CogVideoX",
        transformer="CogVideoXTransformer3DModel",
        load=_load,
        tiny={"tiny-cogvideox-1.0": _tiny_10, "tiny-cogvideox-1.5": _tiny_15},
    )
)
