"""Proof that a setting took effect: the code it replaces reports that it was reached.

A setting that silently does nothing (a patched function that the model never calls) would make two equal runs look
like two different ones. Each non-default setting is expected here and must be marked by the replaced code during
the first step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from parity.errors import InconclusiveError
from parity.settings import SETTINGS, Settings


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
        return tuple(s.name for s in SETTINGS if s.applies_in(self.stage) and self.settings.changed(s.name))

    @property
    def missing(self) -> tuple[str, ...]:
        """Expected settings that were not reached."""
        return tuple(name for name in self.expected if not self.marks.get(name))

    def require(self) -> None:
        """Raise InconclusiveError if an expected setting was not reached."""
        if self.missing:
            raise InconclusiveError(
                f"the {self.settings.backend} path never reached the code that these settings replace: "
                f"{', '.join(self.missing)}; the model may not have that part, so leave them at their defaults"
            )
