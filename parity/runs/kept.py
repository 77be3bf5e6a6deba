"""What a kept run was asked for, read back: its ports are imported only where their files are still those that ran."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from parity.errors import UsageError
from parity.files import read_bytes
from parity.paths.plan import Role
from parity.paths.port.settings import PortInfo
from parity.runs.request import Ports
from parity.runs.sides import Openers

MOST_BYTES = 1 << 26
"""Of a port's file."""
TIMEOUT = 60.0
"""Seconds that importing a port's file may take."""


def ports_of(document: Mapping[str, object], openers: Openers) -> tuple[str | None, Path | None, Ports]:
    """Model, file of inputs and ports of a kept run, from its request.json; one that names none had none.

    Raises:
        UsageError: a port that cannot be loaded any more, or was edited.
    """

    def text(name: str) -> str | None:
        value = document.get(name)
        return value if isinstance(value, str) else None

    def port(role: Role) -> PortInfo | None:
        path = text(f"{role}_path")
        if path is None:
            return None
        _require_unchanged(Path(path.rpartition(":")[0]), text(f"{role}_code"))
        info = openers.of(role).port(f"--{role}-path", path, TIMEOUT)
        if role == "reference" and text("candidate_path") is None:  # torchax runs the reference's own module
            openers.of("candidate").port(f"--{role}-path", path, TIMEOUT)
        return info

    reference = port("reference")
    candidate = port("candidate")
    any_port = reference is not None or candidate is not None
    ports = Ports(reference, candidate, reference is not None and not text("model"), openers if any_port else None)
    inputs = text("inputs")
    return (text("model") if any_port else None), None if inputs is None else Path(inputs), ports


def _require_unchanged(file: Path, digest: str | None) -> None:
    """Refuse a port's file that is not what ran, before any of it is executed."""
    try:
        found = hashlib.sha256(read_bytes(file, MOST_BYTES)).hexdigest()[:16]
    except (OSError, ValueError):  # a path with a null is a ValueError
        found = None
    if found is None or found != digest:
        raise UsageError(f"'{file}' is no longer the port that was run: run it again with --out, then explain that")
