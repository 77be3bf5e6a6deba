"""`--reference-path` and `--candidate-path`: ports imported, and the settings of both sides with them."""

from __future__ import annotations

from parity.paths.port_settings import PortInfo, settings_of
from parity.runs.request import Ports
from parity.runs.sides import Openers, Workers
from parity.settings import Settings, parse


def load_paths(
    reference_path: str | None,
    candidate_path: str | None,
    model: str | None,
    reference: list[str],
    candidate: list[str],
    timeout: float,
    openers: Openers | None = None,
) -> tuple[Ports, Settings, Settings]:
    """Import the ports, each where it will run; returns them with the settings of both sides.

    Args:
        openers: who imports them; by default a process for each side.

    Raises:
        UsageError: see `parity.paths.port_load.load_entry`.
    """
    openers = openers or Workers()
    ours = theirs = None
    if reference_path is not None:
        option = "--reference-path"
        ours = openers.of("reference").port(option, reference_path, timeout)
        if candidate_path is None:  # torchax runs the reference's own module
            openers.of("candidate").port(option, reference_path, timeout)
    if candidate_path is not None:
        theirs = openers.of("candidate").port("--candidate-path", candidate_path, timeout)
    ports = Ports(ours, theirs, ours is not None and model is None, openers)
    return ports, _settings(ours, parse("torch"), reference), _settings(theirs or ours, parse("torchax"), candidate)


def _settings(port: PortInfo | None, base: Settings, assignments: list[str]) -> Settings:
    return parse(base.backend, assignments) if port is None else settings_of(port, base, assignments)
