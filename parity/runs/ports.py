"""Ports imported for a command, each where it will run.

To run a kept run again its ports are named on the command line, with their files as they were: a run folder may come
from somebody else, so its request.json never decides which file is executed. Imports neither torch nor jax.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from parity.errors import UsageError
from parity.files import read_bytes
from parity.paths.plan import Openers, Role
from parity.paths.port.settings import port_timeout
from parity.paths.worker.process import Workers
from parity.runs.request import NO_PORTS, Ports, RunSpec


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


MOST_BYTES = 1 << 26
"""Of a port's file."""
_OPTIONS = {"reference": "--reference-port", "candidate": "--port"}


def ports_of(spec: RunSpec, openers: Openers, named: Mapping[Role, str | None]) -> Ports:
    """The ports of a kept run, which the user names again.

    Args:
        named: `FILE:FUNCTION` by role.

    Raises:
        UsageError: a port of the run is not named, was edited since, or cannot be loaded.
    """

    def port(role: Role, path: str | None, code: str | None) -> str | None:
        again = named.get(role)
        if path is None:
            return None
        if again is None:
            raise UsageError(f"this run was created with a port; name it again: {_OPTIONS[role]} {path}")
        _require_unchanged(Path(again.rpartition(":")[0]), code)
        return again

    reference = port("reference", spec.reference_port, spec.reference_code)
    candidate = port("candidate", spec.port, spec.port_code)
    if reference is None and candidate is None:
        return NO_PORTS
    return load_ports(reference, candidate, spec.model, openers)


def _require_unchanged(file: Path, digest: str | None) -> None:
    """Refuse a port's file that is not what ran, before any of it is executed."""
    try:
        found = hashlib.sha256(read_bytes(file, MOST_BYTES)).hexdigest()[:16]
    except (OSError, ValueError):  # a path with a null is a ValueError
        found = None
    if found is None or found != digest:
        raise UsageError(f"'{file}' is not the port that was run, or was edited since: run it again with --out")
