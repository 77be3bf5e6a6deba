"""A loop put before a step again."""

from __future__ import annotations

from parity.paths.loop import Around, Loop, State, prepare


def stand_before(loop: Loop, step: int, state: State, around: Around | None = None) -> Loop:
    """The same side with its schedule set anew, standing before `step` with this state; see `Loop.continue_from`."""
    again = prepare(loop.side)
    again.continue_from(step, state, around)
    return again
