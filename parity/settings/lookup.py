"""What the catalogue says of many settings at once, by the question."""

from __future__ import annotations

from collections.abc import Mapping

from parity.settings.catalogue import SETTINGS
from parity.settings.setting import PLAIN, Advice, Capability, Input, Setting

BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}

NEUTRAL = {s.name: s.neutral for s in SETTINGS if s.neutral is not None}
"""The settings that only round, each at the value that rounds least: what the logic check gives both sides."""

LAYOUT = tuple(s.name for s in SETTINGS if s.layout)
"""The settings of which tokens there are, and in which order."""


def changed_by(what: Input) -> tuple[str, ...]:
    """The settings that may change an input, the one that changes least else first."""
    return tuple(s.name for s in sorted(SETTINGS, key=lambda s: len(s.changes)) if what in s.changes)


def meaningless(lacks: Mapping[Capability, str]) -> dict[str, str]:
    """The settings that mean nothing to a model, with the reason.

    Args:
        lacks: what the model does not have -> the reason as a user should read it.
    """
    reasons = {s.name: [lacks[need] for need in s.requires if need in lacks] for s in SETTINGS}
    return {name: found[0] for name, found in reasons.items() if found}


def sentence(name: str, value: str) -> str:
    """What a setting's fault is, in words."""
    return _advice(name).sentence.format(setting=name, value=value)


def remedy(name: str) -> str:
    """What to change about a setting's fault."""
    return _advice(name).remedy


def _advice(name: str) -> Advice:
    return BY_NAME[name].advice if name in BY_NAME else PLAIN
