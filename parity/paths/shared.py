"""What the sides of one process share: imported ports, and a prompt's embeddings, each made once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from parity.models.family import Family
from parity.models.patches import device_named
from parity.models.spec import Case
from parity.paths.inputs import Conditions
from parity.paths.plan import Spec
from parity.paths.port.load import DEFAULT_TIMEOUT, Entry, load_entry
from parity.paths.port.settings import PortInfo
from parity.settings import Settings


@dataclass
class Shared:
    """See the module's docstring."""

    _ports: dict[tuple[str, str], Entry] = field(default_factory=dict)
    _encoded: dict[object, Conditions] = field(default_factory=dict)

    def port(self, option: str, text: str, timeout: float = DEFAULT_TIMEOUT) -> PortInfo:
        """Import a port.

        Raises:
            UsageError: see `parity.paths.port.load.load_entry`.
        """
        return self.entry(option, text, timeout).info

    def entry(self, option: str, text: str, timeout: float = DEFAULT_TIMEOUT) -> Entry:
        """An imported port; it is imported once."""
        key = (option, text)
        if key not in self._ports:
            self._ports[key] = load_entry(option, text, timeout)
        return self._ports[key]

    def encoded(self, spec: Spec, family: Family, case: Case, settings: Settings) -> Conditions:
        """A prompt's embeddings, made once for each dtype of the encoders."""
        source = spec.source
        key = (source.model, source.prompt, source.stage1, settings.text("dtype"), settings.text("text.byt5_dtype"))
        if key not in self._encoded:
            stage1 = None if source.stage1 is None else Path(source.stage1)
            self._encoded[key] = family.conditions(case, settings, stage1, device_named(settings))
        return self._encoded[key]
