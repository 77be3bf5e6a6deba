"""Signals end a command wherever they find it: in a finaliser too, where Python would print and go on."""

from __future__ import annotations

import os
import signal
import subprocess
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


KILLED = """
import os, signal, subprocess, time
from parity.signals import own_process
subprocess.Popen(own_process("import time; time.sleep(60)"))
time.sleep({})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_own_processes_end_with_the_one_that_started_them(seconds: float) -> None:
    """Also where it ended before they could ask the kernel for that: what it prints to is closed."""
    done = subprocess.run([sys.executable, "-c", KILLED.format(seconds)], stdout=subprocess.PIPE, timeout=10)
    assert done.returncode == -signal.SIGKILL
