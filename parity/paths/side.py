"""A side of a comparison: whoever can be asked for records, and who loads the two sides. numpy only.

Torch, torchax, a port and a golden on disk are sides; so is one whose work is done in another process
(`parity.paths.worker.process`). What a comparison does is written against this protocol alone.

    with worker.open(spec) as side:
        for step in side.observe(Plan(sites=plan)):
            ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from parity.paths.plan import Forced, Plan, Role, Spec, State
from parity.paths.port.settings import PortInfo
from parity.records import Facts, StepRecords

T = TypeVar("T")


class Side(Protocol):
    """See the module's docstring."""

    @property
    def spec(self) -> Spec:
        """What it is."""
        ...

    def facts(self) -> Facts:
        """What it is about to run with. Nothing is computed but fingerprints."""
        ...

    def observe(
        self, plan: Plan, *, start: State | Forced | None = None, steps: tuple[int, int] | None = None
    ) -> Iterator[StepRecords]:
        """The records of its steps, one step at a time, each computed when it is asked for (or just before).

        Where the plan says so, `parity.paths.plan.Ends` follow them in the same stream.

        Args:
            start: the state before the first step; or what gives each step its state.
            steps: from the first to before the second; None for all.

        Raises:
            UsageError: the side's own code failed. InconclusiveError: a chosen site never fired.
        """
        ...

    def close(self) -> None:
        """Let go of its weights."""
        ...


@dataclass(frozen=True, slots=True)
class Pair(Generic[T]):
    """Something of both sides."""

    reference: T
    candidate: T


class Opener(Protocol):
    """Who loads sides of one role: a worker, or this process."""

    def port(self, option: str, text: str, timeout: float) -> PortInfo:
        """Import a port."""
        ...

    def open(self, spec: Spec) -> Side:
        """A side of this spec."""
        ...


class Openers(Protocol):
    """Openers by role: `parity.paths.worker.process.Workers`, or this process for the library form and tests."""

    def of(self, role: Role) -> Opener: ...
