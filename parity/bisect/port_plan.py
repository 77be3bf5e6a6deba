"""What can be swapped between a reference and a candidate that is a port: the settings that the port knows.

A setting that it does not know stays as it is: the port would not read it, and a run without any effect would be taken
for a harmless one.
"""

from __future__ import annotations

from dataclasses import dataclass

from parity.bisect.settings import Plan, Swap
from parity.errors import UsageError
from parity.paths.port_settings import PortInfo, typed
from parity.settings import Settings, differences, render


@dataclass(frozen=True)
class PortPlan(Plan):
    """A plan for a port, which takes values that no path of parity's does.

    Attributes:
        entry: the port.
    """

    entry: PortInfo

    def with_only(self, names: tuple[str, ...]) -> Settings:
        plain = {s.setting: s.without for s in self.swaps if s.setting not in names}
        values = typed(self.entry, self.candidate.backend, plain)
        return Settings(self.candidate.backend, {**self.candidate.values, **{name: values[name] for name in plain}})


def plan_of_port(entry: PortInfo, reference: Settings, candidate: Settings) -> PortPlan:
    """What to vary between a reference and a port.

    Raises:
        UsageError: they differ in nothing that the port knows.
    """
    swaps, kept = [], []
    for found in differences(reference, candidate):
        if not entry.knows(found.setting):
            kept.append(found.setting)
            continue
        try:
            without = typed(entry, candidate.backend, {found.setting: found.reference})[found.setting]
        except UsageError:  # parity realises it around the port, and has no such value here
            without = typed(entry, candidate.backend, {})[found.setting]
        if without == candidate[found.setting]:
            kept.append(found.setting)
        else:
            swaps.append(Swap(found.setting, render(without), found.candidate))
    if not swaps:
        raise UsageError(
            "the paths differ in no setting that the port knows; it declares "
            + (", ".join(entry.settings) or "none (SETTINGS)")
        )
    return PortPlan(candidate, tuple(swaps), tuple(kept), entry)
