"""Time and memory of candidates' steps, measured in turns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from parity.golden.records import StepRecords
from parity.paths.plan import MEMORY, SECONDS, Plan
from parity.paths.side import Side
from parity.settings import DeepCache

CALLS = 7
"""Timed calls of each kind of step at least."""

ENOUGH = 1.0
"""Seconds of calls of each side; small models are called more often than `CALLS`, up to `MOST` times."""

MOST = 50


@dataclass(frozen=True, slots=True)
class Cost:
    """Of the transformer's calls of one step, all guidance branches together.

    Attributes:
        seconds: from the step's latents to its predictions on the device, compilation left out, of each turn; the mean
            over the run's steps where a feature cache makes them differ.
        memory: bytes that the largest compiled program needs on one device, weights included; None where unknown.
    """

    seconds: tuple[float, ...]
    memory: int | None

    @property
    def median(self) -> float:
        """The median second."""
        return statistics.median(self.seconds)

    def over(self, base: Cost) -> tuple[float, tuple[float, float]]:
        """The median of the ratios to another's, turn by turn, and their quartiles.

        What slows the machine down for a while slows both calls of a turn, and leaves their ratio.
        """
        ratios = [x / y for x, y in zip(self.seconds, base.seconds, strict=True)]
        first, middle, third = statistics.quantiles(ratios, n=4, method="inclusive")
        return middle, (first, third)


def step_costs(sides: Sequence[tuple[Side, DeepCache | None]], steps: int) -> list[Cost]:
    """Measure candidates; their programs are compiled where they are not yet.

    The sides take turns call by call, so that what else the machine does in the meantime hits all of them.

    Args:
        sides: each with its feature cache. steps: of the run.
    """
    taken: list[dict[bool, list[float]]] = [{} for _ in sides]
    memory: list[int | None] = [None for _ in sides]
    spent = 0.0
    for turn in range(MOST + 1):
        if turn > CALLS and spent > ENOUGH * len(sides):
            break
        for i, (side, cache) in enumerate(sides):
            for full, kind in _kinds(cache, steps).items():
                (timed,) = side.observe(Plan(timed=True), steps=(kind[0], kind[0] + 1))
                numbers = _numbers(timed)
                memory[i] = None if MEMORY not in numbers else int(numbers[MEMORY])
                if turn:  # the first call compiles
                    taken[i].setdefault(full, []).append(numbers[SECONDS])
                    spent += numbers[SECONDS]
    found = []
    for (_, cache), times, most in zip(sides, taken, memory, strict=True):
        kinds = _kinds(cache, steps)
        turns = zip(*(times[full] for full in kinds), strict=True)
        means = (sum(x * len(kind) for x, kind in zip(turn, kinds.values(), strict=True)) / steps for turn in turns)
        found.append(Cost(tuple(means), most))
    return found


def _kinds(cache: DeepCache | None, steps: int) -> dict[bool, list[int]]:
    """The steps at which all blocks run (True, first: they fill the cache), and those at which a cache skips some."""
    kinds: dict[bool, list[int]] = {}
    for step in range(steps):
        kinds.setdefault(cache is None or cache.full(step), []).append(step)
    return kinds


def _numbers(timed: StepRecords) -> dict[str, float]:
    return {r.key.port: float(r.value) for r in timed.records if isinstance(r.value, (int, float))}
