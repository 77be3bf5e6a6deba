"""Which step of a long run brings a difference: by itself, from the reference's latents, and in the free run.

How. A step is run alone from the latents that the reference had there, so that it inherits nothing. It is presumed that
from the first step that differs so on, each does: then halving finds it. `every` presumes nothing and runs them all.
The free run is walked from its beginning until its noise prediction leaves the floor: the step from which it shows.

Cost. Of n steps ceil(log2 n) + 1 alone, or n of them; and the free run, as far as it is within its floor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from parity.bisect.ddmin import Outcome
from parity.bisect.state import Probe, State
from parity.errors import UnjudgedError, UsageError

Alone = Callable[[int], tuple[Outcome, str]]
"""Runs this step from the reference's latents: good where its noise prediction is within its floor; and why."""

Free = Callable[[int], Iterable[tuple[Outcome, str]]]
"""Goes on with the free run of which this many steps are known: the outcome of each step that follows."""

ALONE, FREE = "alone", "free"
"""First item of a probe's subject; the second is the step."""


class Told(Protocol):
    """Hears how the search comes along."""

    def probing(self, how: str, step: int) -> None: ...

    def judged(self, probe: Probe, left: int) -> None:
        """left: steps among which the first bad one lies, or that are still to be run."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """The answer.

    Attributes:
        alone: the first step that differs by itself, None where none was seen to. free: the step from which the free
            run is beyond its floor, None where it never is or was not run.
        probes: in order; a subject is how (`alone`, `free`) and the step.
    """

    alone: int | None
    free: int | None
    probes: tuple[Probe, ...]


def bisect_steps(steps: int, alone: Alone, free: Free | None, state: State, told: Told, *, every: bool) -> Found:
    """Find the first step that differs, and that from which the free run does.

    Args:
        steps: of the run. free: None to leave the free run out. state: open; answers what was probed before.
        every: run every step alone.

    Raises:
        UsageError: every step was run and none differs. UnjudgedError: the first and the last do not, the others were
        not run, and the free run does not either.
    """
    ask = _asking(alone, state, told)
    first = _each(steps, ask) if every else _halving(steps, ask)
    left = _walk(steps, free, state, told) if free is not None else None
    found = Found(first, left, tuple(state.probes))
    if first is None and left is None:
        if every or steps <= 2:
            raise UsageError(f"there is no difference to look for: none of the {steps} steps differs")
        raise UnjudgedError(
            f"steps 0 and {steps - 1} agree, run from the reference's latents; those between were not run, since a "
            "difference is presumed to stay: --all runs each"
        )
    return found


def _asking(alone: Alone, state: State, told: Told) -> Callable[[int, int], bool]:
    """Whether a step is bad; the second argument is how many are left."""

    def ask(step: int, left: int) -> bool:
        known = state.outcome(ALONE, str(step))
        if known is None:
            told.probing(ALONE, step)
            begun = time.monotonic()
            known, evidence = alone(step)
            state.add(Probe((ALONE, str(step)), known, evidence, round(time.monotonic() - begun, 3)))
            told.judged(state.probes[-1], left)
        return known == "bad"

    return ask


def _halving(steps: int, ask: Callable[[int, int], bool]) -> int | None:
    if ask(0, steps):
        return 0
    if steps == 1 or not ask(steps - 1, steps - 1):
        return None
    good, bad = 0, steps - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if ask(middle, bad - good):
            bad = middle
        else:
            good = middle
    return bad


def _each(steps: int, ask: Callable[[int, int], bool]) -> int | None:
    bad = [step for step in range(steps) if ask(step, steps - step - 1)]
    return bad[0] if bad else None


def _walk(steps: int, free: Free, state: State, told: Told) -> int | None:
    """The first step of the free run that is bad; those known are not run again where the run can be gone on with."""
    known = list(_known(steps, state))
    if "bad" in known:
        return known.index("bad")
    if len(known) == steps:
        return None
    told.probing(FREE, len(known))
    begun = time.monotonic()
    for step, (outcome, evidence) in enumerate(free(len(known)), start=len(known)):
        state.add(Probe((FREE, str(step)), outcome, evidence, round(time.monotonic() - begun, 3)))
        told.judged(state.probes[-1], 0 if outcome == "bad" else steps - step - 1)
        if outcome == "bad":
            return step
        begun = time.monotonic()
    return None


def _known(steps: int, state: State) -> Iterator[Outcome]:
    for step in range(steps):
        outcome = state.outcome(FREE, str(step))
        if outcome is None:
            return
        yield outcome
