"""Making the sides of a pair of which one or both are a user's port."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from parity.compare.reason import Note, Reason
from parity.compare.result import Check, Result, SiteDiff
from parity.golden.records import LOOP
from parity.models.spec import Case
from parity.paths.families import candidate_family, reference_family
from parity.paths.loaded import Loaded
from parity.paths.plan import Role, Spec
from parity.paths.port_load import Entry, load_entry
from parity.paths.port_settings import PortInfo
from parity.paths.ported import Ported
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


def port_checks(*sides: Any) -> tuple[Check, ...]:
    """What is to be said of ports before they run: what they changed for the process, which was put back."""
    found = []
    for family in sides:
        if isinstance(family, Ported):
            said = [*(f"importing it {x}" for x in family.entry.said), *sorted(family.said)]
            detail = f"{family.entry.text}: " + ("; ".join(said) + "; put back" if said else "changed nothing outside")
            found.append(Check(f"{family.role} port", "explained" if said else "pass", detail))
    return tuple(found)


def require_common(result: Result, candidate: Loaded, modules: Mapping[str, str]) -> Result:
    """A port's result, unjudged where it passed although none of what it named is a site of the reference's.

    Args:
        modules: of the reference.
    """
    if not isinstance(candidate.family, Ported) or result.verdict != "pass" or any(map(_module_met, result.sites)):
        return result
    seen = sorted(getattr(candidate.backend, "seen", set(candidate.modules)))
    if not seen:
        note = "the port names no site: only noise_pred and latents were compared (parity.port.tap names more)"
        return dataclasses.replace(result, notes=(*result.notes, Note(note)))
    detail = f"it names {', '.join(seen[:4])}, the reference {', '.join([*modules][:4])}"
    return dataclasses.replace(
        result, verdict="unjudged", why=Reason(kind="unjudged", problem="no_site", detail=detail)
    )


def _module_met(d: SiteDiff) -> bool:
    return d.key.module not in ("", LOOP) and all(d.dtypes) and bool(d.dtypes)
