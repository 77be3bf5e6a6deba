"""Any diffusers transformer by class and config alone, for a class that no other family runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parity.models.registry import ANY, Registered, register

if TYPE_CHECKING:
    from parity.models.family import Family


def _load(folder: Path, inputs: Path | None) -> Family:
    from parity.models.generic.family import Generic

    return Generic.of(folder, inputs)


register(Registered(title="a diffusers transformer by class and config", transformer=ANY, load=_load))
