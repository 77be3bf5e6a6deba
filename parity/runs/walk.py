"""Walking both loops together, one step at a time: the reference with its floors, then the candidate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parity.golden.records import StepRecords
from parity.hooks.sites import SitePlan
from parity.paths.floors import Variant, with_floors
from parity.paths.loop import Around, Loop, State, denoise, prepare, state_of
from parity.runs.pairing import Pairing, Say


@dataclass(frozen=True, slots=True)
class Walk:
    """How two prepared sides are walked.

    Attributes:
        plan: what is observed. forcing: `none`, or `step` to start each step from the reference's latents.
        first, stop: steps from `first` to before `stop`.
    """

    plan: SitePlan
    forcing: str
    first: int
    stop: int


def walk(pairing: Pairing, variants: list[Variant], how: Walk, say: Say) -> Iterator[tuple[StepRecords, StepRecords]]:
    """The records of each step of the reference, with floors, and of the candidate.

    After the first step every setting must have reached the code it replaces.

    Raises:
        UnjudgedError: one did not, or a chosen site never fired.
    """
    states: dict[int, State] = {}
    forced = states.get if how.forcing == "step" else None

    def remembered() -> Iterator[StepRecords]:
        for step in denoise(pairing.reference, how.plan, first=how.first, stop=how.stop):
            states[step.step] = state_of(step, "before")
            say("reference and its floors", step.step, how.stop)
            yield step

    candidate = denoise(pairing.candidate, how.plan, forced, first=how.first, stop=how.stop)
    for reference_step in with_floors(remembered(), variants, how.plan, forced, first=how.first):
        step = reference_step.step
        say("candidate" + (" (tracing and compiling)" if step == how.first else ""), step, how.stop)
        candidate_step = next(candidate)
        if step == how.first:
            pairing.reference.side.reached.require()
            pairing.candidate.side.reached.require()
        states.pop(step, None)
        yield reference_step, candidate_step


def stand_before(loop: Loop, step: int, state: State, around: Around | None = None) -> Loop:
    """The same side with its schedule set anew, standing before `step` with this state; see `Loop.continue_from`."""
    again = prepare(loop.side)
    again.continue_from(step, state, around)
    return again
