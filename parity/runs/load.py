"""Ports imported for a command, each where it will run. Imports neither torch nor jax."""

from __future__ import annotations

from parity.paths.port.settings import port_timeout
from parity.paths.side import Openers
from parity.paths.worker.process import Workers
from parity.runs.request import Ports


def load_ports(
    reference_port: str | None, port: str | None, model: str | None, openers: Openers | None = None
) -> Ports:
    """Import the ports of a command.

    Args:
        reference_port, port: `FILE.py:FUNCTION`; None for parity's own path. model: None where a reference port has
            inputs of its own. openers: who imports; by default a process a side.

    Raises:
        UsageError: see `parity.paths.port.load.load_entry`.
    """
    openers, timeout = openers or Workers(), port_timeout()
    reference = candidate = None
    if reference_port is not None:
        option = "--reference-port"
        reference = openers.of("reference").port(option, reference_port, timeout)
        if port is None:  # torchax runs the reference's own module
            openers.of("candidate").port(option, reference_port, timeout)
    if port is not None:
        candidate = openers.of("candidate").port("--port", port, timeout)
    return Ports(reference, candidate, reference is not None and model is None, openers)
