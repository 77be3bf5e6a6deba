"""Comparisons in this process: one reference, measured once, and many candidates, some with a fault put into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parity.compare.result import Result
from parity.paths.live import Host, LiveSide
from parity.paths.loaded import Loaded
from parity.paths.plan import Role, Spec
from parity.paths.port.settings import PortInfo
from parity.runs import compare
from parity.runs.memo import Remembering
from parity.runs.request import Request
from parity.settings import parse

Fault = Callable[[Loaded], object]


def nothing(side: Loaded) -> None:
    """No fault."""


def quiet(text: str, done: int | None = None, total: int | None = None) -> None:
    """Progress that nobody looks at."""


class Faulty:
    """Openers in this process that give every candidate a fault; see `parity.paths.plan.Openers`."""

    def __init__(self, fault: Fault = nothing) -> None:
        self.host, self.fault = Host(), fault

    def of(self, role: Role) -> Faulty:
        return self

    def port(self, option: str, text: str, timeout: float) -> PortInfo:
        return self.host.port(option, text, timeout)

    def open(self, spec: Spec) -> LiveSide:
        side = self.host.open(spec)
        assert isinstance(side, LiveSide)
        if spec.role == "candidate":
            self.fault(side.loaded)
        return side


class Lab:
    """Compares candidates with the references of one model, each measured once.

    Lab(checkpoint("wan")).judge(fault=lambda side: ...)
    """

    def __init__(self, model: str | Path) -> None:
        self.model, self._sides = str(model), Faulty()
        self._openers = Remembering(self._sides)

    def judge(self, *candidate: str, reference: Sequence[str] = (), fault: Fault = nothing, **options: Any) -> Result:
        """The result of `parity run` with these candidate settings; `options`: of `Request`."""
        request = Request(self.model, parse("torch", reference), parse("torchax", candidate), **{"steps": 1, **options})
        return run(request, fault, self._sides, self._openers)


def run(
    request: Request, fault: Fault = nothing, sides: Faulty | None = None, openers: Remembering | None = None
) -> Result:
    """A comparison in this process, with a fault in the candidate."""
    sides = sides or Faulty()
    sides.fault = fault
    try:
        return compare.run(request, quiet, openers=openers or sides)
    finally:
        sides.fault = nothing
