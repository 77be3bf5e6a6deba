"""Who loads the two sides: a process for each role, or this one. Imports neither torch nor jax."""

from __future__ import annotations

from typing import Protocol

from parity.paths.plan import Role, Spec
from parity.paths.port.settings import PortInfo
from parity.paths.side import Side
from parity.paths.worker.process import Worker


class Opener(Protocol):
    """Who loads sides of one role: a worker, or this process."""

    def port(self, option: str, text: str, timeout: float) -> PortInfo:
        """Import a port."""
        ...

    def open(self, spec: Spec) -> Side:
        """A side of this spec."""
        ...


class Workers:
    """A process for each role, started when it is first asked for, ended with the context.

    Args:
        torchax: whether the candidate runs in it, so that its process imports it while the reference loads. No other
            process does: with torchax imported, torch.compile fails (dynamo asks the wrong device for its stream).
    """

    def __init__(self, *, torchax: bool = False) -> None:
        self.torchax = torchax
        self._started: dict[str, Worker] = {}

    def of(self, role: Role) -> Opener:
        """The opener of a role."""
        if role not in self._started:
            self._started[role] = worker = Worker(role)
            if role == "candidate" and self.torchax:
                worker.send("imports")
        return self._started[role]

    def close(self) -> None:
        """End both processes."""
        for worker in self._started.values():
            worker.close()
        self._started = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()


class Openers(Protocol):
    """Openers by role: `Workers`, or this process for the library form and tests."""

    def of(self, role: Role) -> Opener: ...
