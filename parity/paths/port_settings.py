"""What is known of a port outside its own process, and the settings it takes. Imports neither torch nor jax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from parity.errors import UsageError
from parity.settings import CHOICES, Backend, Settings, parse

NOT_ITS_OWN = (
    "dtype", "matmul_precision", "jit", "timestep_dtype", "latents_dtype", "schedule_dtype", "guidance_dtype",
    "noise.device", "scheduler.warmup_steps",
)  # fmt: skip
"""Settings that parity realises around a port: in the loop, in what compiles it, in a torch module's weights."""


@dataclass(frozen=True, kw_only=True)
class PortInfo:
    """A port that was imported, wherever that was.

    Attributes:
        option: `--candidate-path` or `--reference-path`. text: `FILE:FUNCTION` as given. file: its path, resolved.
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
        return setting in self.settings or setting in NOT_ITS_OWN

    @property
    def named(self) -> str:
        return f"{self.option} {self.text}"


def settings_of(entry: PortInfo, base: Settings, assignments: list[str]) -> Settings:
    """A port's settings: those given on the command line over its own.

    Raises:
        UsageError: one that the port does not know.
    """
    choices = {c.name: replace(c, takes={}) for c in CHOICES}
    given = dict(entry.settings)
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or (name not in entry.settings and name not in NOT_ITS_OWN):
            known = ", ".join(entry.settings) or "none: it has no SETTINGS"
            raise UsageError(f"'{text}': {entry.named} does not know the setting '{name}'; it knows {known}")
        given[name] = value
    values = {n: choices[n].parse(v, base.backend) for n, v in given.items()}
    return Settings(base.backend, {**base.values, **values})


def typed(entry: PortInfo | None, backend: Backend, texts: Mapping[str, str]) -> Settings:
    """Settings as a golden or a plan holds them, of parity's own path (None) or of a port, which takes more.

    Raises:
        UsageError: an unknown name or value.
    """
    own = {} if entry is None else {name: text for name, text in texts.items() if name in entry.settings}
    rest = parse(backend, [f"{name}={text}" for name, text in texts.items() if name not in own])
    choices = {c.name: replace(c, takes={}) for c in CHOICES}
    return Settings(backend, {**rest.values, **{n: choices[n].parse(text, backend) for n, text in own.items()}})
