"""The settings in which two sides differ, and the candidate's settings with only some of them its own.

Where the candidate's backend cannot take the reference's value (a kernel that only torch has), its own default stands
in; a setting for which that changes nothing stays as it is in every run. So does the device, which says whose program
runs, and what a port does not read: a run without any effect would be taken for a harmless one.
"""

from __future__ import annotations

from dataclasses import dataclass

from parity.errors import UsageError
from parity.paths.port.settings import PortInfo, typed
from parity.settings import SETTINGS, Settings, Value, differences, render


@dataclass(frozen=True, slots=True)
class Swap:
    """A setting that is tried with two values, as written on the command line.

    Attributes:
        setting: its name. without: the reference's value, or what stands in for it. candidate: the candidate's own.
    """

    setting: str
    without: str
    candidate: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What can be varied between two sides.

    Attributes:
        candidate: the candidate's settings. swaps: what is varied.
        kept: names of differing settings that stay the candidate's own in every run.
        port: whose settings they are, where the candidate is a port; it takes values that no path of parity's does.
    """

    candidate: Settings
    swaps: tuple[Swap, ...]
    kept: tuple[str, ...]
    port: PortInfo | None = None

    def with_only(self, names: tuple[str, ...]) -> Settings:
        """The candidate's settings with its own values for these swaps alone, and what such a value needs with it."""
        plain = {s.setting: s.without for s in self.swaps if s.setting not in names}
        values = typed(self.port, self.candidate.backend, plain)
        return _together(self.candidate.with_({name: values[name] for name in plain}), self.candidate, self.port)


def plan(reference: Settings, candidate: Settings, port: PortInfo | None = None) -> Plan:
    """What to vary between two sides.

    Args:
        port: of the candidate, where it is one.

    Raises:
        UsageError: they differ in nothing that can be varied.
    """
    swaps, kept = [], []
    for difference in differences(reference, candidate):
        name = difference.setting
        without = candidate[name]
        if name != "device" and (port is None or port.knows(name)):
            try:
                without = typed(port, candidate.backend, {name: difference.reference})[name]
            except UsageError:
                without = typed(port, candidate.backend, {})[name]
        if without == candidate[name]:
            kept.append(name)
        else:
            swaps.append(Swap(name, render(without), difference.candidate))
    if not swaps and port is None:
        raise UsageError("the two paths differ in no setting that could be varied; give --candidate K=V")
    if not swaps and port is not None:
        declared = ", ".join(port.settings) or "none (SETTINGS)"
        raise UsageError(f"the paths differ in no setting that the port knows; it declares {declared}")
    return Plan(candidate=candidate, swaps=tuple(swaps), kept=tuple(kept), port=port)


def _together(settings: Settings, candidate: Settings, port: PortInfo | None) -> Settings:
    """The same, where a value does nothing without another setting's: that comes with it.

    A value that can be no fault goes with it instead, so that what is wrong with the other stays the other's.
    """
    values: dict[str, Value] = {}
    for setting in SETTINGS if port is None else ():  # a port's settings are its own
        missing = [name for need in setting.needs if not settings.changed(name := need.partition("=")[0])]
        if not missing or not settings.changed(setting.name):
            continue
        if setting.innocent:
            values[setting.name] = setting.default_for(settings.backend)
        else:
            values |= {name: candidate[name] for name in missing}
    return settings.with_(values)
