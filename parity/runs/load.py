"""Ports imported for a command, each where it will run. Imports neither torch nor jax."""

from __future__ import annotations

from parity.paths.worker.openers import Openers, Workers
from parity.runs.request import Ports


def load_ports(
    reference_path: str | None,
    candidate_path: str | None,
    model: str | None,
    timeout: float,
    openers: Openers | None = None,
) -> Ports:
    """Import the ports of a command.

    Args:
        reference_path, candidate_path: `FILE:FUNCTION`; None for parity's own path. model: None where a reference port
            has inputs of its own. timeout: in seconds, for each file.
        openers: who imports; by default a process a side.

    Raises:
        UsageError: see `parity.paths.port.load.load_entry`.
    """
    openers = openers or Workers()
    reference = candidate = None
    if reference_path is not None:
        option = "--reference-path"
        reference = openers.of("reference").port(option, reference_path, timeout)
        if candidate_path is None:  # torchax runs the reference's own module
            openers.of("candidate").port(option, reference_path, timeout)
    if candidate_path is not None:
        candidate = openers.of("candidate").port("--candidate-path", candidate_path, timeout)
    return Ports(reference, candidate, reference is not None and model is None, openers)
