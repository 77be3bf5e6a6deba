"""Which modules make the candidate differ: the fewest whose replacement by the reference's restores parity.

How. A probe is one run of a step in which some modules give what the reference's would (`parity.paths.graft`). First
none are replaced: that must differ; then all of them: that must not, or the difference is made outside them. Then
`parity.bisect.culprits`.

Cost. Of n modules ceil(log2 n) + 3 runs for one at fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from parity.bisect.culprits import fewest
from parity.bisect.ddmin import Outcome
from parity.bisect.state import Probe, State
from parity.errors import UnjudgedError, UsageError

Judge = Callable[[tuple[str, ...]], tuple[Outcome, str]]
"""Runs with these modules replaced: good where that restores parity; and one line that says why."""


class Told(Protocol):
    """Hears how the search comes along."""

    def probing(self, replaced: tuple[str, ...]) -> None: ...

    def judged(self, probe: Probe, left: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Found:
    """The answer.

    Attributes:
        culprits: replacing them restores parity, and leaving any one of them does not.
        probes: all of them, in order; a subject is the names of the modules that were replaced.
    """

    culprits: tuple[str, ...]
    probes: tuple[Probe, ...]


def bisect_modules(modules: tuple[str, ...], judge: Judge, state: State, told: Told, outside: str = "") -> Found:
    """Find the fewest modules whose replacement restores parity.

    Args:
        modules: in execution order. state: open; answers what was probed before.
        outside: what else may be at fault, for the message where replacing all is not enough.

    Raises:
        UsageError: there is no difference to look for. UnjudgedError: replacing all of them does not restore parity.
    """
    left = len(modules)

    def ask(replaced: tuple[str, ...]) -> bool:
        known = state.outcome(*replaced)
        if known is None:
            told.probing(replaced)
            begun = time.monotonic()
            known, evidence = judge(replaced)
            state.add(Probe(replaced, known, evidence, round(time.monotonic() - begun, 3)))
            told.judged(state.probes[-1], left)
        return known == "good"

    def narrowed(now: int) -> None:
        nonlocal left
        left = now

    if ask(()):
        raise UsageError(
            f"there is no difference to look for: with no module replaced {_evidence(state, ())}; both sides are in "
            "float32 here, so what only rounds is not seen: `parity bisect settings` looks for that"
        )
    if not ask(modules):
        raise UnjudgedError(
            f"replacing all {len(modules)} modules does not restore parity ({_evidence(state, modules)}): what differs "
            f"is made outside them, in the code between them or after the last one{outside}"
        )
    culprits = fewest(modules, ask, narrowed)
    return Found(culprits, tuple(state.probes))


def _evidence(state: State, replaced: tuple[str, ...]) -> str:
    return next(p.evidence for p in state.probes if p.subject == replaced)
