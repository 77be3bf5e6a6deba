"""Signals end a command wherever they find it: in a finaliser too, where Python would print and go on."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from parity.errors import Terminated
from parity.signals import signalled, terminable

pytestmark = pytest.mark.slow


class SignalsWhenGone:
    """Sends its process a signal while it is being let go of."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        for _ in range(1000):  # the handler runs here
            pass


def _let_go(number: int) -> None:
    thing = SignalsWhenGone(number)
    del thing
    time.sleep(30)
    pytest.fail("the signal was lost")


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated)],
)
def test_one_that_comes_in_a_finaliser_is_raised_after_it(
    number: int, raised: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(raised), terminable():
        _let_go(number)
    assert capfd.readouterr().err == ""


def test_other_exceptions_of_finalisers_are_told_as_ever() -> None:
    class Fails:
        def __del__(self) -> None:
            raise ValueError("in a finaliser")

    told: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda found: told.append(found.exc_value)
    try:
        with terminable():
            thing = Fails()
            del thing
    finally:
        sys.unraisablehook = before
    assert [str(error) for error in told] == ["in a finaliser"]


def test_the_signal_behind_an_error_is_found() -> None:
    """A library that is interrupted while it is imported may raise an error of its own for it."""
    error = RuntimeError("Failed to import")
    error.__context__ = KeyboardInterrupt()
    assert isinstance(signalled(error), KeyboardInterrupt)
    assert signalled(RuntimeError("its own")) is None


def test_an_error_for_an_interrupt_ends_as_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    from parity.cli import INTERRUPTED, _code

    error = RuntimeError("Failed to import")
    error.__cause__ = KeyboardInterrupt()
    assert _code(error) == INTERRUPTED
    assert capsys.readouterr().err == "parity: interrupted\n"
