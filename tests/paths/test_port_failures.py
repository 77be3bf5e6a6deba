"""Whatever a port raises, and however badly it says so, is one line with the port's name and exit code 2."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.paths.port.load import build, failures, load_entry
from parity.port import Case

PORT = """
class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Odd:
    def __getattr__(self, name):
        raise OSError("no attribute")

def mute(case):
    raise Mute

def odd(case):
    return Odd()

def interrupts(case):
    raise KeyboardInterrupt
"""


@pytest.fixture
def as_in_a_process() -> Iterator[None]:
    """A side's process leaves interrupts to its parent."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("as_in_a_process")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("mute", "Mute: (its message cannot be read: RuntimeError)"),
        ("odd", "OSError: no attribute"),
        ("interrupts", "KeyboardInterrupt"),
    ],
)
def test_a_port_that_fails_badly_is_said(tmp_path: Path, function: str, said: str) -> None:
    file = tmp_path / "port.py"
    file.write_text(PORT)
    entry = load_entry("--candidate-path", f"{file}:{function}")
    case = Case.__new__(Case)
    with pytest.raises(UsageError, match=r"port\.py") as raised:
        build(entry, case)
    assert said in str(raised.value)


def test_an_interrupt_of_the_user_passes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), failures("importing", tmp_path / "port.py"):
        raise KeyboardInterrupt
