"""Signals end a command wherever they find it: in a finaliser too, where Python would print and go on."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from parity.errors import Terminated
from parity.signals import terminable

SLOW = pytest.mark.slow


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
    [
        (signal.SIGTERM, Terminated),
        pytest.param(signal.SIGINT, KeyboardInterrupt, marks=SLOW),
        pytest.param(signal.SIGHUP, Terminated, marks=SLOW),
    ],
)
def test_signal_in_a_finaliser(number: int, raised: type[BaseException], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(raised), terminable():
        _let_go(number)
    assert capfd.readouterr().err == ""


def test_other_exceptions_of_finalisers_are_reported_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def __del__(self) -> None:
            raise ValueError("in a finaliser")

    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(found.exc_value))
    with terminable():
        thing = Fails()
        del thing
    assert [str(error) for error in told] == ["in a finaliser"]
