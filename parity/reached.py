"""Proof that a setting took effect: the code it replaces reports that it was reached.

A setting that silently does nothing (a patched function that the model never calls) would make two equal runs look
like two different ones. Each non-default setting is expected here and must be marked by the replaced code during
the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parity.errors import UnjudgedError, UsageError
from parity.settings import CHOICES, Settings

OWN: Mapping[str, tuple[str, ...]] = {
    "text": ("dtype", "matmul_precision", "jit"),
    "text.byt5": ("dtype", "matmul_precision", "jit", "text.byt5_dtype"),
    "vae": ("dtype", "matmul_precision", "jit", "vae.tiling", "vae.slicing"),
}
"""Stage -> the settings that it has a place for; the transformer has one for all others."""


def require_used(settings: Settings, stages: tuple[str, ...]) -> None:
    """Refuse a setting that no stage of a run would read, where the transformer is not among them.

    Raises:
        UsageError: naming it.
    """
    own = {name for place, names in OWN.items() if place.partition(".")[0] in stages for name in names}
    for choice in CHOICES if "transformer" not in stages else ():
        if settings.changed(choice.name) and choice.name not in own:
            raise UsageError(
                f"'{choice.name}={settings.as_text()[choice.name]}' is a setting of the transformer, which is not run "
                f"(--stages {','.join(stages)})"
            )


@dataclass
class Reached:
    """Which settings' replaced code ran.

    Attributes:
        settings: the side's settings. stage: part of the generation; each part proves its own settings.
        marks: setting name -> how often it was reached.
    """

    settings: Settings
    stage: str = "transformer"
    marks: dict[str, int] = field(default_factory=dict)

    def mark(self, name: str) -> None:
        """Say that the code that setting `name` replaces was reached."""
        self.marks[name] = self.marks.get(name, 0) + 1

    @property
    def expected(self) -> tuple[str, ...]:
        """The settings that are not at their default."""
        return tuple(c.name for c in CHOICES if self.settings.changed(c.name) and self._is_of_stage(c.name))

    def _is_of_stage(self, name: str) -> bool:
        own = OWN.get(self.stage)
        return name in own if own is not None else not any(name.startswith(f"{stage}.") for stage in ("vae",))

    @property
    def missing(self) -> tuple[str, ...]:
        """Expected settings that were not reached."""
        return tuple(name for name in self.expected if not self.marks.get(name))

    def require(self) -> None:
        """Raise UnjudgedError if an expected setting was not reached."""
        if self.missing:
            raise UnjudgedError(
                f"the {self.settings.backend} path never reached the code that these settings replace: "
                f"{', '.join(self.missing)}; the model may not have that part, so leave them at their defaults"
            )
