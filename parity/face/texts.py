"""Settings as a script gives them, as the command line takes them."""

from __future__ import annotations

from collections.abc import Mapping

Settings = Mapping[str, object]
"""Values by name: `{"attention.mask": "none", "jit": False}`."""


def texts(settings: Settings | None) -> list[str]:
    """`NAME=VALUE` of each."""
    return [f"{name}={text(value)}" for name, value in (settings or {}).items()]


def text(value: object) -> str:
    """A value as the command line spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
