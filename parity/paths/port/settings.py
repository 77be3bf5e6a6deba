"""What is known of a port outside its own process, and the settings it takes. Imports neither torch nor jax."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parity.errors import UsageError
from parity.settings import BY_NAME, Backend, Settings, parse

MOST_SECONDS = 86_400.0
"""That importing a port's file may take, at most: a day."""


@dataclass(frozen=True, kw_only=True)
class PortInfo:
    """A port that was imported, wherever that was.

    Attributes:
        option: `--port` or `--reference-port`. text: `FILE:FUNCTION` as given. file: its path, resolved.
        settings: what it declares, with its own values. digest: of what its file holds, so that an edited port is not
            taken for the one that ran. said: what importing it changed for its process, put back since.
    """

    option: str
    text: str
    file: str
    settings: Mapping[str, str]
    digest: str
    said: tuple[str, ...] = ()

    def knows(self, setting: str) -> bool:
        """Whether the setting reaches the port: it declares it, or parity realises it around the port."""
        return setting in self.settings or BY_NAME[setting].around_ports

    @property
    def named(self) -> str:
        return f"{self.option} {self.text}"


def chosen(entry: PortInfo | None, backend: Backend, assignments: Sequence[str]) -> Settings:
    """The settings of a side on the command line, of parity's own path (None) or of a port: those given over its own.

    Args:
        assignments: `NAME=VALUE`.

    Raises:
        UsageError: one that the side does not take.
    """
    if entry is None:
        return parse(backend, assignments)
    given = dict(entry.settings)
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not (name in BY_NAME and entry.knows(name)):
            known = ", ".join(entry.settings) or "none: it has no SETTINGS"
            raise UsageError(f"'{text}': {entry.named} does not know the setting '{name}'; it knows {known}")
        given[name] = value
    return parse(backend).with_({n: BY_NAME[n].read(v) for n, v in given.items()})


def typed(entry: PortInfo | None, backend: Backend, texts: Mapping[str, str]) -> Settings:
    """Settings as a golden or a plan holds them, of parity's own path (None) or of a port, which takes more.

    Raises:
        UsageError: an unknown name or value.
    """
    own = {} if entry is None else {name: text for name, text in texts.items() if name in entry.settings}
    rest = parse(backend, [f"{name}={text}" for name, text in texts.items() if name not in own])
    return rest.with_({n: BY_NAME[n].read(text) for n, text in own.items()})


def port_timeout() -> float:
    """Seconds that importing a port's file may take: `PARITY_PORT_TIMEOUT`, by default a minute.

    Raises:
        UsageError: it is no number of seconds that a timer takes.
    """
    text = os.environ.get("PARITY_PORT_TIMEOUT", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= MOST_SECONDS:  # NaN is neither
        raise UsageError(f"PARITY_PORT_TIMEOUT takes seconds above 0 and up to {MOST_SECONDS:.0f}, found '{text}'")
    return seconds
