"""Making the sides of a pair of which one or both are a user's port."""

from __future__ import annotations

from typing import Any

from parity.models.spec import Case
from parity.paths.families import candidate_family, reference_family
from parity.paths.plan import Role, Spec
from parity.paths.port_load import Entry, load_entry
from parity.paths.port_settings import PortInfo
from parity.paths.side import Side
from parity.runs.request import Ports


class Here:
    """Imports ports in this process, for what still runs in it; see `parity.runs.sides.Openers`."""

    def of(self, role: Role) -> Here:
        return self

    def port(self, option: str, text: str, timeout: float) -> PortInfo:
        return load_entry(option, text, timeout)

    def open(self, spec: Spec) -> Side:
        raise NotImplementedError


def behind(ports: Ports) -> Entry | None:
    """The reference port, where it brings its own inputs."""
    return _here(ports.reference) if ports.alone else None


def families(ports: Ports, base: Any, case: Case) -> tuple[Any, Any]:
    """Of the reference and of the candidate."""
    ours, theirs = _here(ports.reference), _here(ports.candidate)
    return reference_family(base, case, ours), candidate_family(base, case, theirs, ours)


def _here(port: PortInfo | None) -> Entry | None:
    """A port that was imported in this process."""
    assert port is None or isinstance(port, Entry)
    return port
