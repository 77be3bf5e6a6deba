"""A command is remembered by what it computes, not by where its result goes."""

from __future__ import annotations

from parity.commands.parts.running import COMMAND, running


def named(**options: object) -> str:
    with running("run", options):
        return COMMAND.get()


def test_a_repeated_run_has_the_plan_of_the_first() -> None:
    first = named(steps=1, out="run", overwrite=False)
    assert first == named(steps=1, out="again", overwrite=True, details=True)
    assert first != named(steps=2, out="run", overwrite=False)
    assert COMMAND.get() == ""
