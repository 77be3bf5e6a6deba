"""`--reference-path` and `--candidate-path`: ports imported, and the settings of both sides with them."""

from __future__ import annotations

from parity.paths.port_load import Entry, load_entry
from parity.paths.port_settings import settings_of
from parity.runs.ports import Ports
from parity.settings import Settings, parse


def load_paths(
    reference_path: str | None,
    candidate_path: str | None,
    model: str | None,
    reference: list[str],
    candidate: list[str],
    timeout: float,
) -> tuple[Ports, Settings, Settings]:
    """Import the ports; returns them with the settings of both sides.

    Raises:
        UsageError: see `parity.paths.port_load.load_entry`.
    """
    ours = None if reference_path is None else load_entry("--reference-path", reference_path, timeout)
    theirs = None if candidate_path is None else load_entry("--candidate-path", candidate_path, timeout)
    ports = Ports(ours, theirs, alone=ours is not None and model is None)
    return ports, _settings(ours, parse("torch"), reference), _settings(theirs or ours, parse("torchax"), candidate)


def _settings(entry: Entry | None, base: Settings, assignments: list[str]) -> Settings:
    return parse(base.backend, assignments) if entry is None else settings_of(entry, base, assignments)
