"""Sides that are measured once: what one has shown before is shown again, without running it again.

For whoever judges many candidates against one reference (`parity.bisect.settings`, the fault bench): they compare as
`parity run` does, against an opener whose reference remembers its runs. A comparison that closes such a side leaves it
open. Cost: the records of its runs are held (8 KB a site and step).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from parity.golden.fingerprint import fingerprint
from parity.paths.plan import Ends, Forced, Opener, Openers, Plan, Role, Side, Spec, State
from parity.paths.port.settings import PortInfo
from parity.records import Facts, StepRecords


@dataclass
class Memo:
    """A side that remembers its whole runs; everything else is asked of the side itself."""

    side: Side
    spec: Spec
    runs: dict[object, tuple[list[StepRecords], Ends]] = field(default_factory=dict)
    _ends: Ends | None = None

    def facts(self) -> Facts:
        return self.side.facts()

    def observe(
        self, plan: Plan, *, start: State | Forced | None = None, steps: tuple[int, int] | None = None
    ) -> Iterator[StepRecords]:
        if start is not None or steps is not None:
            self._ends = None
            return self.side.observe(plan, start=start, steps=steps)
        key = (plan.sites, plan.floors, plan.forced)
        if key not in self.runs:
            self.runs[key] = list(self.side.observe(plan)), self.side.ends()
        records, self._ends = self.runs[key]
        return iter(records)

    def ends(self, leave: str | None = None) -> Ends:
        return self.side.ends(leave) if self._ends is None or leave is not None else self._ends

    def close(self) -> None:
        """It is kept."""


@dataclass
class Remembering:
    """Openers whose references remember, and the opener of these.

    Attributes:
        inner: who opens.
    """

    inner: Openers
    sides: dict[object, Memo] = field(default_factory=dict)

    def of(self, role: Role) -> Opener:
        opener = self.inner.of(role)
        return self if role == "reference" else opener

    def port(self, option: str, text: str) -> PortInfo:
        return self.inner.of("reference").port(option, text)

    def open(self, spec: Spec) -> Side:
        """A side of a spec, the one that was opened before where there is one."""
        given = spec.start.inputs
        prints = None if given is None else tuple((n, x.dtype, fingerprint(x.values)) for n, x in given.items())
        key = (spec.source, spec.port, tuple(spec.settings.items()), prints)
        if key not in self.sides:
            self.sides[key] = Memo(self.inner.of("reference").open(spec), spec)
        return self.sides[key]
