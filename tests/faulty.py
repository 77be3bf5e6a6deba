"""Comparisons in this process whose candidate is changed once it is loaded: how tests put a fault into one side."""

from __future__ import annotations

from collections.abc import Callable

from parity.compare.result import Result
from parity.paths.live import Host, LiveSide
from parity.paths.loaded import Loaded
from parity.paths.plan import Role, Spec
from parity.paths.port.settings import PortInfo
from parity.runs import compare
from parity.runs.request import Request

Fault = Callable[[Loaded], object]


def nothing(side: Loaded) -> None:
    """No fault."""


class Faulty:
    """Openers in this process that give every candidate a fault; see `parity.paths.worker.openers.Openers`."""

    def __init__(self, fault: Fault = nothing) -> None:
        self.host, self.fault = Host(), fault

    def of(self, role: Role) -> Faulty:
        return self

    def port(self, option: str, text: str, timeout: float) -> PortInfo:
        return self.host.port(option, text, timeout)

    def open(self, spec: Spec) -> LiveSide:
        side = self.host.open(spec)
        if spec.role == "candidate":
            self.fault(side.loaded)
        return side


def run(request: Request, fault: Fault = nothing) -> Result:
    """The comparison, with a fault in the candidate."""
    return compare.run(request, lambda *progress: None, openers=Faulty(fault))
