"""Which step of a long run brings a difference: by itself, from the reference's latents, and in the free run.

How. A step is run alone from the latents that the reference had there, so that it inherits nothing. It is presumed that
from the first step that differs so on, each does: then halving finds it. `every` presumes nothing and runs them all.
The free run is walked from its beginning until its noise prediction leaves the floor: the step from which it shows.

Cost. Of n steps ceil(log2 n) + 1 alone, or n of them; and the free run, as far as it is within its floor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from parity.bisect.report import Fact, Report, by_outcome, plural
from parity.bisect.search import Answer, Found, Listener, Subject, search
from parity.bisect.state import Probe, State
from parity.bisect.strategy import Order, Outcome, strategy
from parity.errors import ParityError, UnjudgedError, UsageError

How = Literal["alone", "free"]
CALLED: Mapping[How, str] = {"alone": "alone", "free": "of the free run"}


class Judge(Protocol):
    """Runs steps of a candidate: good where the noise prediction is within its floor; and why."""

    def alone(self, step: int) -> tuple[Outcome, str]:
        """This step from the reference's latents."""

    def free(self, known: int) -> Iterable[tuple[Outcome, str]]:
        """The free run of which this many steps are known: each step that follows."""


class Steps(Subject[int]):
    """The steps of a run, each alone or in the free run."""

    noun, phrase, checked = "step", "step {}", False

    def __init__(self, count: int, how: How, judge: Judge) -> None:
        self.order, self.presumed = Order(tuple(range(count))), {}
        self._how, self._judge = how, judge
        self._walk: Iterator[tuple[Outcome, str]] | None = None
        self._next = -1

    def key(self, items: tuple[int, ...]) -> tuple[str, ...]:
        return (self._how, str(items[0]))

    def words(self, key: tuple[str, ...]) -> str:
        return f"{key[1]} {CALLED[self._how]}"

    def probe(self, items: tuple[int, ...]) -> Answer[int]:
        (step,) = items
        if self._how == "alone":
            return Answer(*self._judge.alone(step))
        if self._walk is None or self._next != step:
            self._walk = iter(self._judge.free(step))
        self._next = step + 1
        return Answer(*next(self._walk))

    def refusal(self, items: tuple[int, ...], outcome: Outcome, evidence: str) -> ParityError:
        raise AssertionError("no outcome is presumed of a step")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSteps:
    """Both searches.

    Attributes:
        steps: of the run. alone: the first step that differs by itself, None where none was seen to.
        free: the step from which the free run is beyond its floor, None where it never is or was not run.
        walked: whether the free run was. probes: of both, in order.
    """

    steps: int
    alone: int | None
    free: int | None
    walked: bool
    probes: tuple[Probe, ...]

    def report(self) -> Report:
        """The two steps, after what was seen, sorted."""
        return Report(
            kind="steps",
            answer={
                "steps": self.steps,
                "first_alone": self.alone,
                "first_free": self.free,
                **{how: self._sorted(how) for how in CALLED},
            },
            probes=tuple(({"how": p.subject[0], "step": int(p.subject[1])}, p) for p in self.probes),
            sorted_out={},
            facts=(*self._listing(), ("", self._answer())),
        )

    def _sorted(self, how: How) -> dict[str, list[int]]:
        probes = [p for p in self.probes if p.subject[0] == how]
        return {name: sorted(steps) for name, steps in by_outcome(probes, lambda p: int(p.subject[1])).items()}

    def _listing(self) -> Iterator[Fact]:
        for how, called in CALLED.items():
            for name, steps in self._sorted(how).items():
                if steps:
                    yield f"{name}, {called}", ", ".join(map(str, steps))

    def _answer(self) -> str:
        probes = f"({plural(len(self.probes), 'probe')} of {plural(self.steps, 'step')})"
        if self.alone is not None:
            first = f"run from the reference's latents the first step that differs is {self.alone}"
        else:
            first = "run from the reference's latents no step was seen to differ"
            if self.free is not None:
                first += ": what differs is made between the steps (initial latents, scheduler), or adds up"
        if not self.walked:
            return f"{first} {probes}"
        ran = "the free run stays" if self.free is None else f"the free run leaves its floor at step {self.free}"
        return f"{first}; {ran} {probes}"


def search_steps(count: int, judge: Judge, state: State, listen: Listener, *, every: bool, free: bool) -> FoundSteps:
    """Find the first step that differs by itself, and that from which the free run does.

    Args:
        count: steps of the run. every: run every step alone. free: walk the free run.

    Raises:
        UsageError: every step was run and none differs. UnjudgedError: the first and the last do not, the others were
        not run, and the free run does not either.
    """
    alone = search(Steps(count, "alone", judge), strategy("each" if every else "halving"), state, listen)
    walk = search(Steps(count, "free", judge), strategy("until_bad"), state, listen) if free else Found((), ())
    first, left = (found.answer[0] if found.answer else None for found in (alone, walk))
    if first is None and left is None:
        if every or count <= 2:
            raise UsageError(f"there is no difference to look for: none of the {count} steps differs")
        raise UnjudgedError(
            f"steps 0 and {count - 1} agree, run from the reference's latents; those between were not run, since a "
            "difference is presumed to stay: --all runs each"
        )
    return FoundSteps(steps=count, alone=first, free=left, walked=free, probes=tuple(state.probes))
